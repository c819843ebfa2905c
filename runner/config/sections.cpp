#include <array>

#include "models/support/layers.h"
#include "runner/config/experiment.h"

namespace runner::config {

namespace {

using registry::above;
using registry::at_least;
using registry::Resume;

constexpr double kLargestSeed = 9007199254740992.0;  // 2^53: survives a trip through JSON readers

constexpr auto kGeneral = registry::rows<General>({
    {.name = "name",
     .member = &General::name,
     .doc =
         "what the experiment is called; names its folder under root; the file's name when absent",
     .resume = Resume::free},
    {.name = "seed",
     .member = &General::seed,
     .doc = "of the weights, the order of the samples and dropout",
     .range = {.min = 0, .max = kLargestSeed}},
    {.name = "root",
     .member = &General::root,
     .doc = "folder of the run folders, relative to the working directory",
     .resume = Resume::free},
});
static_assert(registry::covers<General>(kGeneral));

constexpr auto kTrainer = registry::rows<Trainer>({
    {.name = "gpus",
     .member = &Trainer::gpus,
     .doc = "absent or 0: the CPU; 3: GPUs 0, 1, 2; -1: all; [1, 3] or \"1, 3\": those ids",
     .resume = Resume::warn,
     .type = "integer, list of ids or string of ids"},
    {.name = "auto_select_gpus",
     .member = &Trainer::auto_select_gpus,
     .doc = "with a count: pick GPUs that are free instead of the first ones",
     .resume = Resume::free},
    {.name = "num_processes",
     .member = &Trainer::num_processes,
     .doc = "processes on each node when training on the CPU",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "num_nodes",
     .member = &Trainer::num_nodes,
     .doc = "machines that train together",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "backend",
     .member = &Trainer::backend,
     .doc = "how several devices share the work; inferred when absent",
     .choices = {"none", "dp", "ddp", "ddp2", "horovod", "balanced", "tpu"},
     .resume = Resume::warn},
    {.name = "precision",
     .member = &Trainer::precision,
     .doc = "bits of the arithmetic: 64, 32, 16 (fp16 with loss scaling) or \"bf16\"",
     .type = "64, 32, 16 or \"bf16\""},
    {.name = "amp_level",
     .member = &Trainer::amp_level,
     .doc = "how mixed precision is applied; only with precision 16",
     .choices = {"O0", "O1", "O2", "O3"}},
    {.name = "max_epochs",
     .member = &Trainer::max_epochs,
     .doc = "stop after so many epochs",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "min_epochs",
     .member = &Trainer::min_epochs,
     .doc = "early stopping waits for so many epochs",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "max_steps",
     .member = &Trainer::max_steps,
     .doc = "stop after so many optimizer steps",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "min_steps",
     .member = &Trainer::min_steps,
     .doc = "early stopping waits for so many optimizer steps",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "max_time",
     .member = &Trainer::max_time,
     .doc = "stop after this time: \"MM:SS\", \"HH:MM:SS\" or \"DD:HH:MM:SS\"",
     .resume = Resume::warn},
    {.name = "accumulate",
     .member = &Trainer::accumulate,
     .doc = "batches whose gradients are added up for one optimizer step",
     .range = at_least(1)},
    {.name = "gradient_clip",
     .member = &Trainer::gradient_clip,
     .doc = "largest 2-norm of all gradients together; larger ones are scaled down",
     .range = above(0)},
    {.name = "val_every_n_epochs",
     .member = &Trainer::val_every_n_epochs,
     .doc = "epochs between validations",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "val_every_n_steps",
     .member = &Trainer::val_every_n_steps,
     .doc = "optimizer steps between validations, instead of epochs",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "limit_train_batches",
     .member = &Trainer::limit_train_batches,
     .doc = "train on so many batches an epoch (an integer), or on a share of them (\"50%\")",
     .type = "integer of at least 1, or a string like \"50%\""},
    {.name = "limit_val_batches",
     .member = &Trainer::limit_val_batches,
     .doc = "validate on so many batches (an integer), or on a share of them (\"50%\")",
     .resume = Resume::warn,
     .type = "integer of at least 1, or a string like \"50%\""},
    {.name = "overfit_batches",
     .member = &Trainer::overfit_batches,
     .doc = "train and validate on the same first n batches, unshuffled; 0: off",
     .range = at_least(0)},
    {.name = "fast_dev_run",
     .member = &Trainer::fast_dev_run,
     .doc = "one batch of training and one of validation, to see that everything works"},
    {.name = "deterministic",
     .member = &Trainer::deterministic,
     .doc = "only kernels that give the same bits every time"},
    {.name = "benchmark",
     .member = &Trainer::benchmark,
     .doc = "let cuDNN time its kernels and choose; not with deterministic",
     .resume = Resume::warn},
    {.name = "sync_batchnorm",
     .member = &Trainer::sync_batchnorm,
     .doc = "batch statistics over all processes"},
    {.name = "communication",
     .member = &Trainer::communication,
     .doc = "library that carries gradients between processes",
     .choices = {"auto", "gloo", "nccl"},
     .resume = Resume::warn},
    {.name = "timeout",
     .member = &Trainer::timeout,
     .doc = "seconds that the ranks of a run wait for one that doesn't come to the next exchange",
     .range = {.min = 1, .max = 1e7},
     .resume = Resume::free},
    {.name = "start_timeout",
     .member = &Trainer::start_timeout,
     .doc = "seconds that the ranks of a run wait for each other at its start",
     .range = {.min = 1, .max = 1e7},
     .resume = Resume::free},
    {.name = "max_restarts",
     .member = &Trainer::max_restarts,
     .doc = "restarts from the last checkpoint after a failed rank",
     .range = at_least(0),
     .resume = Resume::free},
    {.name = "bucket_mb",
     .member = &Trainer::bucket_mb,
     .doc = "MiB of gradients that are sent together; another number changes the order of sums",
     .range = {.min = 1, .max = 4096},
     .resume = Resume::warn},
    {.name = "gradient_as_bucket_view",
     .member = &Trainer::gradient_as_bucket_view,
     .doc = "gradients live in the buffers that are sent, which saves a copy",
     .resume = Resume::free},
    {.name = "find_unused_parameters",
     .member = &Trainer::find_unused_parameters,
     .doc = "each step, look for parameters that had no part in the loss",
     .resume = Resume::free},
    {.name = "gradient_compression",
     .member = &Trainer::gradient_compression,
     .doc = "number format in which gradients travel between processes",
     .choices = {"none", "fp16", "bf16"},
     .resume = Resume::warn},
    {.name = "scale_lr",
     .member = &Trainer::scale_lr,
     .doc = "multiply the learning rate by the number of processes",
     .resume = Resume::warn},
    {.name = "micro_batches",
     .member = &Trainer::micro_batches,
     .doc = "parts of a batch that are on their way through backend balanced's stages at once; "
            "two for each stage when absent",
     .range = {.min = 1, .max = 4096},
     .resume = Resume::warn},
    {.name = "threads",
     .member = &Trainer::threads,
     .doc = "threads of one process's arithmetic, which its replicas or stages share; when absent, "
            "the "
            "process's share of the cores",
     .range = {.min = 1, .max = 1024},
     .resume = Resume::warn},
    {.name = "metrics",
     .member = &Trainer::metrics,
     .doc =
         "what validation reports beside the loss: accuracy, top<k>, mae, r2; inferred when empty",
     .resume = Resume::warn},
});
static_assert(registry::covers<Trainer>(kTrainer));

constexpr auto kData = registry::rows<Data>({
    {.name = "batch_size",
     .member = &Data::batch_size,
     .doc = "samples a batch, per process",
     .range = {.min = 1, .max = 1e9},
     .resume = Resume::warn},
    {.name = "eval_batch_size",
     .member = &Data::eval_batch_size,
     .doc = "samples a batch of validation and test; batch_size when absent",
     .range = {.min = 1, .max = 1e9},
     .resume = Resume::warn},
    {.name = "shuffle",
     .member = &Data::shuffle,
     .doc = "a new order of the training samples each epoch"},
    {.name = "drop_last",
     .member = &Data::drop_last,
     .doc = "leave out a last batch that isn't full"},
    {.name = "sampler",
     .member = &Data::sampler,
     .doc = "auto: the processes of a run share the samples of an epoch out; replicated: each goes "
            "through all of them, in an order of its own",
     .choices = {"auto", "replicated"}},
    {.name = "num_threads",
     .member = &Data::num_threads,
     .doc = "threads that prepare batches ahead; no say in the result",
     .range = {.min = 1, .max = 256},
     .resume = Resume::free},
});
static_assert(registry::covers<Data>(kData));

constexpr auto kCheckpoint = registry::rows<Checkpoint>({
    {.name = "monitor",
     .member = &Checkpoint::monitor,
     .doc = "column that decides which checkpoint is best; inferred when absent",
     .resume = Resume::warn},
    {.name = "mode",
     .member = &Checkpoint::mode,
     .doc = "whether the smallest or the largest value is best; inferred from the metric",
     .choices = {"min", "max"},
     .resume = Resume::warn},
    {.name = "keep",
     .member = &Checkpoint::keep,
     .doc = "best checkpoints to keep; 0: none, -1: all",
     .range = at_least(-1),
     .resume = Resume::warn},
    {.name = "last",
     .member = &Checkpoint::last,
     .doc = "keep the newest checkpoint too, to resume from",
     .resume = Resume::warn},
    {.name = "every_n_epochs",
     .member = &Checkpoint::every_n_epochs,
     .doc = "epochs between checkpoints",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "every_n_steps",
     .member = &Checkpoint::every_n_steps,
     .doc = "optimizer steps between checkpoints, in addition",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "resume",
     .member = &Checkpoint::resume,
     .doc = "auto: go on with the newest unfinished run of this name, if there is one",
     .choices = {"never", "auto"},
     .resume = Resume::free},
    {.name = "on_save_error",
     .member = &Checkpoint::on_save_error,
     .doc = "what a checkpoint that can't be written does to the run",
     .choices = {"stop", "continue"},
     .resume = Resume::free},
});
static_assert(registry::covers<Checkpoint>(kCheckpoint));

constexpr auto kEarlyStopping = registry::rows<EarlyStopping>({
    {.name = "monitor",
     .member = &EarlyStopping::monitor,
     .doc = "column that must get better; the checkpoints' when absent",
     .resume = Resume::warn},
    {.name = "mode",
     .member = &EarlyStopping::mode,
     .doc = "whether smaller or larger is better; inferred from the metric",
     .choices = {"min", "max"},
     .resume = Resume::warn},
    {.name = "patience",
     .member = &EarlyStopping::patience,
     .doc = "validations without improvement before the run stops; absent: never",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "min_delta",
     .member = &EarlyStopping::min_delta,
     .doc = "smallest change that counts as an improvement",
     .range = at_least(0),
     .resume = Resume::warn},
});
static_assert(registry::covers<EarlyStopping>(kEarlyStopping));

constexpr auto kLogger = registry::rows<Logger>({
    {.name = "level",
     .member = &Logger::level,
     .doc = "least severity that the log file keeps",
     .choices = {"trace", "debug", "info", "warn", "error", "off"},
     .resume = Resume::free},
    {.name = "every_n_steps",
     .member = &Logger::every_n_steps,
     .doc = "optimizer steps between rows of metrics.csv, beside those of each validation",
     .range = at_least(1),
     .resume = Resume::fixed},
});
static_assert(registry::covers<Logger>(kLogger));

constexpr auto kDebug = registry::rows<Debug>({
    {.name = "fail",
     .member = &Debug::fail,
     .doc = "make one rank fail: \"rank=1,step=3\", with how=throw, kill, abort, exit, hang, stop "
            "or memory, and attempts=n",
     .resume = Resume::free},
});
static_assert(registry::covers<Debug>(kDebug));

constexpr auto kSlurm = registry::rows<Slurm>({
    {.name = "partition",
     .member = &Slurm::partition,
     .doc = "partition to submit to",
     .resume = Resume::free},
    {.name = "account",
     .member = &Slurm::account,
     .doc = "account to charge",
     .resume = Resume::free},
    {.name = "qos", .member = &Slurm::qos, .doc = "quality of service", .resume = Resume::free},
    {.name = "constraint",
     .member = &Slurm::constraint,
     .doc = "features that the nodes must have",
     .resume = Resume::free},
    {.name = "time",
     .member = &Slurm::time,
     .doc = "time limit as SLURM writes it",
     .resume = Resume::free},
    {.name = "nodes",
     .member = &Slurm::nodes,
     .doc = "nodes of the job",
     .range = at_least(1),
     .resume = Resume::free},
    {.name = "gpus_per_node",
     .member = &Slurm::gpus_per_node,
     .doc = "GPUs of each node",
     .range = at_least(0),
     .resume = Resume::free},
    {.name = "tasks_per_node",
     .member = &Slurm::tasks_per_node,
     .doc = "tasks on each node",
     .range = at_least(1),
     .resume = Resume::free},
    {.name = "cpus_per_task",
     .member = &Slurm::cpus_per_task,
     .doc = "cores of each task",
     .range = at_least(1),
     .resume = Resume::free},
    {.name = "memory",
     .member = &Slurm::memory,
     .doc = "memory of each node, \"32G\"",
     .resume = Resume::free},
    {.name = "requeue",
     .member = &Slurm::requeue,
     .doc = "let SLURM start the job again after a time limit or a lost node",
     .resume = Resume::free},
});
static_assert(registry::covers<Slurm>(kSlurm));

constexpr auto kSweep = registry::rows<Sweep>({
    {.name = "strategy",
     .member = &Sweep::strategy,
     .doc = "how points are chosen",
     .choices = {"grid"},
     .resume = Resume::free},
    {.name = "grid",
     .member = &Sweep::grid,
     .doc = "quoted keys with the list of their values",
     .resume = Resume::free,
     .type = "table of lists"},
});
static_assert(registry::covers<Sweep>(kSweep));

}  // namespace

std::span<const SectionInfo> sections() {
  static const std::array<SectionInfo, 13> kSections = {{
      {"", "keys at the top of the file", &registry::table_of<General>(kGeneral), ""},
      {"model", "the network", nullptr, "models"},
      {"dataset", "the samples and how they are batched", &registry::table_of<Data>(kData),
       "datasets"},
      {"loss", "what training makes small; inferred from the dataset when absent", nullptr,
       "losses"},
      {"optimizer", "how weights are changed", nullptr, "optimizers"},
      {"scheduler", "how the learning rate changes", nullptr, "schedulers"},
      {"trainer", "devices, precision, length and checks of the run",
       &registry::table_of<Trainer>(kTrainer), ""},
      {"checkpoint", "what is kept, and resuming", &registry::table_of<Checkpoint>(kCheckpoint),
       ""},
      {"early_stopping", "ending a run that no longer gets better",
       &registry::table_of<EarlyStopping>(kEarlyStopping), ""},
      {"logger", "logs and metrics.csv", &registry::table_of<Logger>(kLogger), ""},
      {"debug", "faults on demand", &registry::table_of<Debug>(kDebug), ""},
      {"slurm", "what a submitted job asks for", &registry::table_of<Slurm>(kSlurm), ""},
      {"sweep", "a search over keys", &registry::table_of<Sweep>(kSweep), ""},
  }};
  return kSections;
}

namespace {

template <class C>
std::vector<const registry::Entry*> pointers(const C& catalog) {
  std::vector<const registry::Entry*> result;
  for (const auto& entry : catalog.entries()) result.push_back(&entry);
  return result;
}

}  // namespace

std::vector<const registry::Entry*> catalog_entries(std::string_view catalog) {
  if (catalog == "models") return pointers(models::all());
  if (catalog == "layers") return pointers(models::layer_types());
  if (catalog == "datasets") return pointers(datasets::all());
  if (catalog == "losses") return pointers(components::losses());
  if (catalog == "optimizers") return pointers(components::optimizers());
  if (catalog == "schedulers") return pointers(components::schedulers());
  return {};
}

}  // namespace runner::config
