#include "runner/check/rules.h"

#include <algorithm>

#include "runner/check/text.h"

namespace runner::check {

namespace {

using diag::Code;

bool is_any(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string number(std::int64_t n) { return std::to_string(n); }

/// "2 GPUs", "all GPUs", "2 processes", "the CPU".
std::string devices_text(const Facts& f) {
  if (f.all_gpus && f.gpus_unknown) return "all GPUs";
  if (f.gpus > 0) return counted(f.gpus, "GPU");
  if (f.num_processes) return counted(*f.num_processes, "process") + " on the CPU";
  return "the CPU";
}

bool several_devices(const Facts& f) { return f.gpus_unknown || f.devices() > 1; }

// ---- devices -----------------------------------------------------------------------------------

bool wants_ddp_for_devices(const Facts& f) {
  return f.backend.empty() && f.num_nodes == 1 && several_devices(f);
}
bool is_alone(const Facts& f) { return f.one_device() && f.num_nodes == 1; }

// ---- length of the run -------------------------------------------------------------------------

bool runs_in_full(const Facts& f) { return !f.fast_dev_run; }
bool has_no_end(const Facts& f) {
  return runs_in_full(f) && !f.max_epochs && !f.max_steps && !f.has_max_time;
}
bool above(const std::optional<std::int64_t>& min, const std::optional<std::int64_t>& max) {
  return min && max && *min > *max;
}
/// True if an interval of steps is known never to pass.
bool never_passes(const std::optional<std::int64_t>& every, const Facts& f) {
  return every && f.total_steps > 0 && *every > f.total_steps;
}
bool has_no_validation_data(const Facts& f) { return f.validation_size == 0; }
/// Length of the run in the schedule's unit; 0 if unknown.
std::int64_t schedule_length(const Facts& f) {
  return f.schedule_unit == "epoch" ? f.total_epochs : f.total_steps;
}
/// A period is complete at its end; a change must come while there are steps left.
bool schedule_never_happens(const Facts& f) {
  const std::int64_t length = schedule_length(f);
  if (f.schedule_mark == 0 || length == 0) return false;
  return f.scheduler == "cosine" ? f.schedule_mark > length : f.schedule_mark >= length;
}
std::string run_text(const Facts& f) { return counted(f.total_steps, "step"); }

/// "checkpoint.every_n_steps = 100, and the run has 45 steps".
std::string interval_message(std::string_view key, const std::optional<std::int64_t>& every,
                             const Facts& f) {
  return std::string(key) + " = " + number(*every) + ", and the run has " + run_text(f);
}

constexpr Rule kRules[] = {
    // ---- what a silent file gets
    {.code = Code::inferred_ddp,
     .stage = Stage::settings,
     .ruling = Ruling::infer,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies = wants_ddp_for_devices,
     .message =
         [](const Facts& f) {
           return devices_text(f) + (f.gpus_unknown ? ", which may be several," : "") +
                  " and no backend named";
         },
     .fix = "write backend = \"ddp\" to say the same, or another backend",
     .example = "[trainer]\ngpus = 2",
     .value = "\"ddp\""},
    {.code = Code::inferred_ddp_nodes,
     .stage = Stage::settings,
     .ruling = Ruling::infer,
     .keys = {"trainer.backend", "trainer.num_nodes"},
     .applies = [](const Facts& f) { return f.backend.empty() && f.num_nodes > 1; },
     .message =
         [](const Facts& f) { return counted(f.num_nodes, "node") + " and no backend named"; },
     .fix = "write backend = \"ddp\" to say the same, or another backend",
     .example = "[trainer]\nnum_nodes = 2",
     .value = "\"ddp\""},
    {.code = Code::overfit_order,
     .stage = Stage::settings,
     .ruling = Ruling::infer,
     .keys = {"dataset.shuffle", "trainer.overfit_batches"},
     .applies = [](const Facts& f) { return f.overfit_batches > 0 && !f.shuffle; },
     .message =
         [](const Facts& f) {
           return "overfit_batches = " + number(f.overfit_batches) +
                  " trains on the same batches in each epoch";
         },
     .fix = "write shuffle = false to say the same",
     .example = "[trainer]\noverfit_batches = 1",
     .value = "false"},

    // ---- devices
    {.code = Code::nodes_backend,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.backend", "trainer.num_nodes"},
     .applies =
         [](const Facts& f) {
           return f.num_nodes > 1 && is_any(f.backend, {"none", "dp", "balanced"});
         },
     .message =
         [](const Facts& f) {
           return "backend '" + f.backend +
                  "' runs in one process and can't use num_nodes = " + number(f.num_nodes);
         },
     .fix = "use backend = \"ddp\", or num_nodes = 1",
     .example = "[trainer]\nbackend = \"dp\"\nnum_nodes = 2"},
    {.code = Code::none_several,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies =
         [](const Facts& f) {
           return f.backend == "none" && f.num_nodes == 1 && !f.gpus_unknown && f.devices() > 1;
         },
     .message =
         [](const Facts& f) {
           return "backend 'none' trains on one device, and the file asks for " + devices_text(f);
         },
     .fix = "use backend = \"ddp\" (or leave it out), or ask for one device",
     .example = "[trainer]\nbackend = \"none\"\ngpus = 2"},
    {.code = Code::balanced_one,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies = [](const Facts& f) { return f.backend == "balanced" && is_alone(f); },
     .message =
         [](const Facts& f) {
           return "backend 'balanced' lays parts of the model on several devices, and there is " +
                  std::string(f.gpus > 0 ? "1 GPU" : "1 process on the CPU");
         },
     .fix = "ask for more devices, or leave backend out",
     .example = "[trainer]\nbackend = \"balanced\"\ngpus = 1"},
    {.code = Code::processes_and_gpus,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.num_processes", "trainer.gpus"},
     .applies = [](const Facts& f) { return f.num_processes && f.on_gpu() && f.backend != "tpu"; },
     .message =
         [](const Facts& f) {
           return "num_processes = " + number(*f.num_processes) +
                  " is for runs on the CPU, and the file asks for " + devices_text(f);
         },
     .fix = "leave num_processes out (gpus says how many there are), or leave gpus out",
     .example = "[trainer]\ngpus = 1\nnum_processes = 2"},
    {.code = Code::ddp_alone,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies =
         [](const Facts& f) {
           return is_any(f.backend, {"ddp", "ddp2", "horovod"}) && is_alone(f);
         },
     .message =
         [](const Facts& f) {
           return "backend '" + f.backend + "' synchronises processes, and there is only one";
         },
     .fix = "leave backend out, or ask for more devices",
     .example = "[trainer]\nbackend = \"ddp\"\ngpus = 1"},
    {.code = Code::dp_alone,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies = [](const Facts& f) { return f.backend == "dp" && is_alone(f); },
     .message =
         [](const Facts&) {
           return std::string("backend 'dp' spreads a batch over replicas, and there is only one");
         },
     .fix = "leave backend out, or ask for more devices",
     .example = "[trainer]\nbackend = \"dp\"\ngpus = 1"},
    {.code = Code::ddp2_one,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies =
         [](const Facts& f) { return f.backend == "ddp2" && f.num_nodes > 1 && f.one_device(); },
     .message =
         [](const Facts&) {
           return std::string("backend 'ddp2' with one device a node is the same as 'ddp'");
         },
     .fix = "use backend = \"ddp\", or more devices a node",
     .example = "[trainer]\nbackend = \"ddp2\"\ngpus = 1\nnum_nodes = 2"},
    {.code = Code::ids_on_nodes,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.gpus", "trainer.num_nodes"},
     .applies = [](const Facts& f) { return f.has_gpu_ids && f.num_nodes > 1; },
     .message =
         [](const Facts& f) {
           return "the ids in gpus are used on each of " + number(f.num_nodes) + " nodes";
         },
     .fix = "write a count, or make sure that each node has these GPUs",
     .example = "[trainer]\ngpus = [2, 3]\nnum_nodes = 2\nbackend = \"ddp\""},
    {.code = Code::auto_select_ids,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.auto_select_gpus", "trainer.gpus"},
     .applies = [](const Facts& f) { return f.auto_select_gpus && f.has_gpu_ids; },
     .message =
         [](const Facts&) {
           return std::string("auto_select_gpus chooses GPUs, and gpus names them already");
         },
     .fix = "write a count (gpus = 2), or leave auto_select_gpus out",
     .example = "[trainer]\ngpus = [0, 1]\nauto_select_gpus = true"},
    {.code = Code::auto_select_nothing,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.auto_select_gpus", "trainer.gpus"},
     .applies = [](const Facts& f) { return f.auto_select_gpus && (f.all_gpus || !f.on_gpu()); },
     .message =
         [](const Facts& f) {
           return "auto_select_gpus has no effect on " +
                  std::string(f.all_gpus ? "all GPUs" : "the CPU");
         },
     .fix = "write a count (gpus = 2), or leave auto_select_gpus out",
     .example = "[trainer]\ngpus = -1\nauto_select_gpus = true"},
    {.code = Code::ids_in_slurm,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.gpus"},
     .applies = [](const Facts& f) { return f.has_gpu_ids && f.in_slurm_step; },
     .message =
         [](const Facts&) {
           return std::string("gpus names ids inside a SLURM job, where SLURM hands out the GPUs");
         },
     .fix = "write a count (gpus = 2), as in the job's --gpus-per-node",
     .example = "[trainer]\ngpus = [0, 1]"},
    {.code = Code::mig_several,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.gpus", "trainer.backend"},
     .applies = [](const Facts& f) { return f.mig_slices > 0 && f.gpus > 1; },
     .message =
         [](const Facts& f) {
           return "gpus asks for " + number(f.gpus) +
                  " MIG slices, and one process can enumerate one MIG device";
         },
     .fix = "use gpus = 1, or turn MIG off on this machine",
     .example = "[trainer]\ngpus = 2            # CUDA_VISIBLE_DEVICES=MIG-a,MIG-b"},
    {.code = Code::nccl_cpu,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.communication", "trainer.gpus"},
     .applies = [](const Facts& f) { return f.communication == "nccl" && !f.on_gpu(); },
     .message =
         [](const Facts& f) {
           return "communication 'nccl' needs GPUs, and the run is on " +
                  std::string(f.backend == "tpu" ? "TPUs" : "the CPU");
         },
     .fix = "use communication = \"gloo\" (or leave it out), or ask for GPUs",
     .example = "[trainer]\nnum_processes = 2\ncommunication = \"nccl\""},
    {.code = Code::sync_batchnorm_alone,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.sync_batchnorm", "trainer.gpus", "trainer.num_processes"},
     .applies = [](const Facts& f) { return f.sync_batchnorm && is_alone(f); },
     .message =
         [](const Facts&) {
           return std::string("sync_batchnorm has no effect in a run of one process");
         },
     .fix = "leave sync_batchnorm out, or ask for more devices",
     .example = "[trainer]\nsync_batchnorm = true"},
    {.code = Code::sync_batchnorm_dp,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.sync_batchnorm", "trainer.backend"},
     .applies =
         [](const Facts& f) {
           return f.sync_batchnorm && is_any(f.backend, {"dp", "ddp2", "balanced"}) &&
                  several_devices(f);
         },
     .message =
         [](const Facts& f) {
           return "sync_batchnorm combines statistics of processes, and backend '" + f.backend +
                  (f.backend == "ddp2" ? "' has several replicas in each" : "' has one");
         },
     .fix = "use backend = \"ddp\", or leave sync_batchnorm out",
     .example = "[trainer]\nsync_batchnorm = true\nbackend = \"dp\"\ngpus = 2"},
    {.code = Code::without_processes,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.gradient_compression"},
     .applies = [](const Facts& f) { return f.gradient_compression != "none" && f.one_process(); },
     .message =
         [](const Facts& f) {
           return "gradient_compression = \"" + f.gradient_compression +
                  "\" has no effect in a run of one process";
         },
     .fix = "leave it out, or train with backend = \"ddp\" on several devices",
     .example = "[trainer]\ngradient_compression = \"fp16\""},
    {.code = Code::without_processes,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.find_unused_parameters"},
     .applies = [](const Facts& f) { return f.find_unused_parameters && f.one_process(); },
     .message =
         [](const Facts&) {
           return std::string("find_unused_parameters has no effect in a run of one process");
         },
     .fix = "leave it out, or train with backend = \"ddp\" on several devices",
     .example = "[trainer]\nfind_unused_parameters = true"},
    {.code = Code::without_processes,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.scale_lr"},
     .applies = [](const Facts& f) { return f.scale_lr && f.one_process(); },
     .message =
         [](const Facts&) { return std::string("scale_lr has no effect in a run of one process"); },
     .fix = "leave it out, or train with backend = \"ddp\" on several devices",
     .example = "[trainer]\nscale_lr = true"},
    {.code = Code::without_processes,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"dataset.sampler"},
     .applies = [](const Facts& f) { return f.replicated_samples && f.one_process(); },
     .message =
         [](const Facts&) {
           return std::string("sampler = \"replicated\" has no effect in a run of one process");
         },
     .fix = "leave it out, or train with backend = \"ddp\" on several devices",
     .example = "[dataset]\nsampler = \"replicated\""},
    {.code = Code::horovod_restarts,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.max_restarts", "trainer.backend"},
     .applies = [](const Facts& f) { return f.backend == "horovod" && f.max_restarts > 0; },
     .message =
         [](const Facts& f) {
           return "max_restarts = " + number(f.max_restarts) +
                  " can't be used with backend 'horovod': MPI starts a rank once";
         },
     .fix = "leave max_restarts out and start mpirun again with checkpoint.resume=auto, or use "
            "backend = \"ddp\"",
     .example = "[trainer]\nbackend = \"horovod\"\nnum_processes = 2\nmax_restarts = 1"},
    {.code = Code::horovod_communication,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.communication", "trainer.backend"},
     .applies = [](const Facts& f) { return f.backend == "horovod" && f.communication != "auto"; },
     .message =
         [](const Facts& f) {
           return "backend 'horovod' communicates through MPI, and communication is '" +
                  f.communication + "'";
         },
     .fix = "leave communication out, or use backend = \"ddp\"",
     .example = "[trainer]\nbackend = \"horovod\"\nnum_processes = 2\ncommunication = \"gloo\""},
    {.code = Code::tpu_devices,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies =
         [](const Facts& f) { return f.backend == "tpu" && (f.on_gpu() || f.num_processes); },
     .message =
         [](const Facts& f) {
           return "backend 'tpu' works on TPU cores, and the file asks for " + devices_text(f);
         },
     .fix = "leave gpus and num_processes out, or use backend = \"ddp\"",
     .example = "[trainer]\nbackend = \"tpu\"\ngpus = 1"},

    {.code = Code::micro_batches_unused,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.micro_batches", "trainer.backend"},
     .applies = [](const Facts& f) { return f.micro_batches && resolved_backend(f) != "balanced"; },
     .message =
         [](const Facts& f) {
           return "micro_batches = " + number(*f.micro_batches) + " has no effect with backend '" +
                  resolved_backend(f) + "'";
         },
     .fix = "leave micro_batches out, or use backend = \"balanced\"; accumulate takes several "
            "batches for a step",
     .example = "[trainer]\nmicro_batches = 4"},
    {.code = Code::micro_batches_many,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.micro_batches", "dataset.batch_size"},
     .applies =
         [](const Facts& f) {
           return f.backend == "balanced" && f.micro_batches && *f.micro_batches > f.batch_size;
         },
     .message =
         [](const Facts& f) {
           return "micro_batches = " + number(*f.micro_batches) +
                  " can't share a batch of batch_size = " + number(f.batch_size);
         },
     .fix = "use micro_batches of at most batch_size, or leave it out",
     .example = "[dataset]\nbatch_size = 2\n[trainer]\nbackend = \"balanced\"\nnum_processes = "
                "2\nmicro_batches = 4"},

    // ---- precision
    {.code = Code::dp_16,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.precision", "trainer.backend"},
     .applies = [](const Facts& f) { return f.backend == "dp" && f.precision == "16"; },
     .message =
         [](const Facts&) {
           return std::string(
               "precision 16 can't be used with backend 'dp': its replicas share one process and "
               "one loss scale");
         },
     .fix = "use backend = \"ddp\", or precision = 32",
     .example = "[trainer]\nbackend = \"dp\"\ngpus = 2\nprecision = 16"},
    {.code = Code::ddp2_16,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.precision", "trainer.backend"},
     .applies =
         [](const Facts& f) {
           return f.backend == "ddp2" && f.precision == "16" && several_devices(f);
         },
     .message =
         [](const Facts& f) {
           return "precision 16 with backend 'ddp2', which works as dp does over the " +
                  devices_text(f) + " of a node";
         },
     .fix = "use backend = \"ddp\", or precision = \"bf16\", which needs no loss scale",
     .example = "[trainer]\nbackend = \"ddp2\"\ngpus = 2\nprecision = 16"},
    {.code = Code::amp_level_precision,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.amp_level", "trainer.precision"},
     .applies = [](const Facts& f) { return f.has_amp_level && f.precision != "16"; },
     .message =
         [](const Facts& f) {
           return "amp_level says how precision 16 is mixed in, and precision is " + f.precision;
         },
     .fix = "use precision = 16, or leave amp_level out",
     .example = "[trainer]\namp_level = \"O1\"\nprecision = 32"},
    {.code = Code::cpu_16,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"trainer.precision", "trainer.gpus"},
     .applies =
         [](const Facts& f) { return f.precision == "16" && !f.on_gpu() && f.backend != "tpu"; },
     .message =
         [](const Facts&) { return std::string("precision 16 on the CPU works, and is slow"); },
     .fix = "use precision = 32, or \"bf16\", which many CPUs have instructions for",
     .example = "[trainer]\nprecision = 16"},
    {.code = Code::tpu_16,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.precision", "trainer.backend"},
     .applies = [](const Facts& f) { return f.backend == "tpu" && f.precision == "16"; },
     .message =
         [](const Facts&) {
           return std::string("precision 16 is fp16, which backend 'tpu' doesn't have");
         },
     .fix = "use precision = \"bf16\"",
     .example = "[trainer]\nbackend = \"tpu\"\nprecision = 16"},
    {.code = Code::deterministic_benchmark,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.benchmark", "trainer.deterministic"},
     .applies = [](const Facts& f) { return f.deterministic && f.benchmark; },
     .message =
         [](const Facts&) {
           return std::string(
               "benchmark chooses kernels by today's timings, and deterministic wants the same "
               "bits every time");
         },
     .fix = "leave one of the two out",
     .example = "[trainer]\ndeterministic = true\nbenchmark = true"},

    // ---- length of the run, from the file alone
    {.code = Code::no_end,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.max_epochs", "trainer.max_steps", "trainer.max_time"},
     .applies = has_no_end,
     .message =
         [](const Facts&) {
           return std::string(
               "nothing ends the run: max_epochs, max_steps and max_time are absent");
         },
     .fix = "add max_epochs = 10, or another end, to [trainer]",
     .example = "[trainer]                # no max_epochs, max_steps, max_time"},
    {.code = Code::min_above_max,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.min_epochs", "trainer.max_epochs"},
     .applies = [](const Facts& f) { return runs_in_full(f) && above(f.min_epochs, f.max_epochs); },
     .message =
         [](const Facts& f) {
           return "min_epochs = " + number(*f.min_epochs) +
                  " is above max_epochs = " + number(*f.max_epochs);
         },
     .fix = "raise the maximum, or lower the minimum",
     .example = "[trainer]\nmin_epochs = 5\nmax_epochs = 1"},
    {.code = Code::min_above_max,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.min_steps", "trainer.max_steps"},
     .applies = [](const Facts& f) { return runs_in_full(f) && above(f.min_steps, f.max_steps); },
     .message =
         [](const Facts& f) {
           return "min_steps = " + number(*f.min_steps) +
                  " is above max_steps = " + number(*f.max_steps);
         },
     .fix = "raise the maximum, or lower the minimum",
     .example = "[trainer]\nmin_steps = 50\nmax_steps = 5"},
    {.code = Code::validation_twice,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"trainer.val_every_n_steps", "trainer.val_every_n_epochs"},
     .applies = [](const Facts& f) { return f.val_every_n_steps && f.val_every_n_epochs; },
     .message =
         [](const Facts& f) {
           return "val_every_n_steps = " + number(*f.val_every_n_steps) +
                  " and val_every_n_epochs = " + number(*f.val_every_n_epochs) +
                  " exclude each other";
         },
     .fix = "leave one of the two out",
     .example = "[trainer]\nval_every_n_steps = 100\nval_every_n_epochs = 2"},
    {.code = Code::overfit_shuffle,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"dataset.shuffle", "trainer.overfit_batches"},
     .applies = [](const Facts& f) { return f.overfit_batches > 0 && f.shuffle.value_or(false); },
     .message =
         [](const Facts& f) {
           return "shuffle = true can't be used with overfit_batches = " +
                  number(f.overfit_batches) + ", which needs the same batches in each epoch";
         },
     .fix = "use shuffle = false (or leave it out), or overfit_batches = 0",
     .example = "[dataset]\nshuffle = true\n[trainer]\noverfit_batches = 1"},
    {.code = Code::early_stopping_off,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"early_stopping"},
     .applies = [](const Facts& f) { return f.has_early_stopping && !f.patience; },
     .message =
         [](const Facts&) {
           return std::string("[early_stopping] has no effect without patience");
         },
     .fix = "add patience = 3, or leave the section out",
     .example = "[early_stopping]\nmin_delta = 0.01"},
    {.code = Code::keep_none_resume,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"checkpoint.resume", "checkpoint.keep", "checkpoint.last"},
     .applies = [](const Facts& f) { return f.resumes && !f.keeps_checkpoints; },
     .message =
         [](const Facts&) {
           return std::string(
               "resume = 'auto' has nothing to go on from: keep = 0 and last = false keep no "
               "checkpoint");
         },
     .fix = "use last = true",
     .example = "[checkpoint]\nresume = \"auto\"\nkeep = 0\nlast = false"},
    {.code = Code::nesterov,
     .stage = Stage::settings,
     .ruling = Ruling::refuse,
     .keys = {"optimizer.nesterov", "optimizer.momentum", "optimizer.dampening"},
     .applies = [](const Facts& f) { return f.nesterov && (f.momentum == 0 || f.dampening != 0); },
     .message =
         [](const Facts& f) {
           return std::string("nesterov needs ") + (f.momentum == 0
                                                        ? "momentum above 0, and momentum is 0"
                                                        : "dampening = 0, and dampening is set");
         },
     .fix = "use momentum = 0.9 and dampening = 0, or leave nesterov out",
     .example = "[optimizer]\nname = \"sgd\"\nnesterov = true"},
    {.code = Code::lr_unused,
     .stage = Stage::settings,
     .ruling = Ruling::warn,
     .keys = {"optimizer.lr", "scheduler.name"},
     .applies = [](const Facts& f) { return f.scheduler == "one_cycle" && f.has_lr; },
     .message =
         [](const Facts&) {
           return std::string(
               "lr has no effect with the scheduler 'one_cycle', which runs up to "
               "scheduler.max_lr");
         },
     .fix = "leave lr out and write scheduler.max_lr",
     .example = "[optimizer]\nlr = 0.1\n[scheduler]\nname = \"one_cycle\""},

    // ---- stages of a model
    {.code = Code::balanced_layers,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies =
         [](const Facts& f) {
           return f.backend == "balanced" && !f.gpus_unknown && f.layers > 0 &&
                  f.layers < f.devices();
         },
     .message =
         [](const Facts& f) {
           return "backend 'balanced' can't cut a model of " + counted(f.layers, "layer") +
                  " into a part for each of " + devices_text(f);
         },
     .fix = "ask for fewer devices, or use backend = \"ddp\"",
     .example = "[model]\nname = \"mlp\"         # 4 layers\n[trainer]\nbackend = "
                "\"balanced\"\ngpus = 8"},
    {.code = Code::balanced_batch_norm,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"trainer.backend", "trainer.micro_batches"},
     .applies =
         [](const Facts& f) {
           return f.backend == "balanced" && !f.batch_norm_layer.empty() && f.micro_batches &&
                  *f.micro_batches > 1;
         },
     .message =
         [](const Facts& f) {
           return "layer '" + f.batch_norm_layer + "' normalises over each of " +
                  number(*f.micro_batches) + " micro-batches, not over the batch of " +
                  number(f.batch_size);
         },
     .fix = "use a model without batch normalisation, fewer micro_batches, or backend = \"ddp\"",
     .example = "[model]\nname = \"resnet\"\n[trainer]\nbackend = \"balanced\"\ngpus = 2"},

    // ---- samples and batches
    {.code = Code::too_few_samples,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"trainer.backend", "trainer.gpus", "trainer.num_processes"},
     .applies = [](const Facts& f) { return f.train_size > 0 && f.train_size < f.replicas; },
     .message =
         [](const Facts& f) {
           return counted(f.replicas, "replica") + " can't share " +
                  counted(f.train_size, "training sample");
         },
     .fix = "ask for fewer devices",
     .example = "[dataset]\nname = \"synthetic\"\ntrain_size = 2\n[trainer]\nnum_processes = 4"},
    {.code = Code::batch_too_large,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"dataset.batch_size", "dataset.drop_last"},
     .applies =
         [](const Facts& f) {
           return f.drop_last && f.train_size >= f.replicas && f.full_batches == 0;
         },
     .message =
         [](const Facts& f) {
           return "batch_size = " + number(f.batch_size) + " is above the " +
                  number(f.train_size / f.replicas) + " training samples" +
                  (f.replicas > 1 ? " of each replica" : "") +
                  ", and drop_last drops the batch that isn't full";
         },
     .fix = "use a smaller batch_size, or drop_last = false",
     .example = "[dataset]\nname = \"digits\"     # 1437 training samples\nbatch_size = 2000\n"
                "drop_last = true"},
    {.code = Code::batch_above_data,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"dataset.batch_size"},
     .applies =
         [](const Facts& f) {
           return !f.drop_last && f.train_size >= f.replicas &&
                  f.batch_size > (f.train_size + f.replicas - 1) / f.replicas;
         },
     .message =
         [](const Facts& f) {
           return "batch_size = " + number(f.batch_size) + " is above the " +
                  number((f.train_size + f.replicas - 1) / f.replicas) + " training samples" +
                  (f.replicas > 1 ? " of each replica" : "");
         },
     .fix = "use a batch_size of at most that",
     .example = "[dataset]\nname = \"digits\"     # 1437 training samples\nbatch_size = 2000"},
    {.code = Code::batch_norm_one,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"dataset.batch_size", "dataset.drop_last"},
     .applies =
         [](const Facts& f) {
           const bool shared = f.sync_batchnorm && !f.one_process();
           return !f.one_value_layer.empty() && f.last_batch == 1 && !shared;
         },
     .message =
         [](const Facts& f) {
           return "layer '" + f.one_value_layer + "' normalises over the batch, and " +
                  (f.batch_size == 1 ? "batch_size is 1"
                                     : "the last batch of an epoch has 1 sample") +
                  (f.replicas > 1 ? " a replica" : "");
         },
     .fix = "use another batch_size above 1, or drop_last = true with one above 1",
     .example = "[model]\nname = \"mlp\"\nbatch_norm = true\n[dataset]\nbatch_size = 1"},
    {.code = Code::batch_norm_one,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"trainer.micro_batches", "dataset.batch_size", "dataset.drop_last"},
     .applies =
         [](const Facts& f) {
           return !f.one_value_layer.empty() && f.last_batch > 1 && f.smallest_micro_batch() == 1;
         },
     .message =
         [](const Facts& f) {
           return "layer '" + f.one_value_layer + "' normalises over the micro-batch, and " +
                  number(*f.micro_batches) + " micro-batches of " +
                  (f.last_batch < f.batch_size
                       ? "an epoch's last " + number(f.last_batch) + " samples"
                       : "a batch of " + number(f.last_batch)) +
                  " leave one with 1 sample";
         },
     .fix = "use fewer micro_batches, a larger batch_size, or drop_last = true",
     .example = "[model]\nname = \"mlp\"\nbatch_norm = true\n[dataset]\nbatch_size = 4\n[trainer]\n"
                "backend = \"balanced\"\nnum_processes = 2\nmicro_batches = 4"},
    {.code = Code::accumulate_long,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"trainer.accumulate", "dataset.batch_size"},
     .applies =
         [](const Facts& f) {
           return runs_in_full(f) && f.batches_per_epoch > 0 && f.accumulate > f.batches_per_epoch;
         },
     .message =
         [](const Facts& f) {
           return "accumulate = " + number(f.accumulate) + ", and an epoch has " +
                  counted(f.batches_per_epoch, "batch");
         },
     .fix = "use accumulate of at most that",
     .example = "[trainer]\naccumulate = 100         # of 45 batches"},

    // ---- intervals and schedules
    {.code = Code::validation_never,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"trainer.val_every_n_epochs", "trainer.max_epochs"},
     .applies =
         [](const Facts& f) {
           return runs_in_full(f) && f.val_every_n_epochs && f.total_epochs > 0 &&
                  *f.val_every_n_epochs > f.total_epochs;
         },
     .message =
         [](const Facts& f) {
           return "val_every_n_epochs = " + number(*f.val_every_n_epochs) + ", and the run has " +
                  counted(f.total_epochs, "epoch");
         },
     .fix = "validate more often, or train for longer",
     .example = "[trainer]\nmax_epochs = 1\nval_every_n_epochs = 5"},
    {.code = Code::validation_never,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"trainer.val_every_n_steps", "trainer.max_steps", "trainer.max_epochs"},
     .applies =
         [](const Facts& f) { return runs_in_full(f) && never_passes(f.val_every_n_steps, f); },
     .message =
         [](const Facts& f) {
           return interval_message("val_every_n_steps", f.val_every_n_steps, f);
         },
     .fix = "validate more often, or train for longer",
     .example = "[trainer]\nmax_steps = 10\nval_every_n_steps = 100"},
    {.code = Code::checkpoint_never,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"checkpoint.every_n_steps", "trainer.max_steps", "trainer.max_epochs"},
     .applies =
         [](const Facts& f) {
           return runs_in_full(f) && never_passes(f.checkpoint_every_n_steps, f);
         },
     .message =
         [](const Facts& f) {
           return interval_message("every_n_steps", f.checkpoint_every_n_steps, f);
         },
     .fix = "save more often, or leave every_n_steps out",
     .example = "[trainer]\nmax_steps = 10\n[checkpoint]\nevery_n_steps = 100"},
    {.code = Code::log_never,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"logger.every_n_steps", "trainer.max_steps", "trainer.max_epochs"},
     .applies =
         [](const Facts& f) { return runs_in_full(f) && never_passes(f.log_every_n_steps, f); },
     .message =
         [](const Facts& f) { return interval_message("every_n_steps", f.log_every_n_steps, f); },
     .fix = "log more often, or leave every_n_steps out",
     .example = "[trainer]\nmax_steps = 10\n[logger]\nevery_n_steps = 100"},
    {.code = Code::patience_too_long,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"early_stopping.patience", "trainer.max_epochs", "trainer.max_steps"},
     .applies =
         [](const Facts& f) {
           return runs_in_full(f) && f.patience && f.validations > 0 &&
                  *f.patience >= f.validations;
         },
     .message =
         [](const Facts& f) {
           return "patience = " + number(*f.patience) + ", and the run has " +
                  counted(f.validations, "validation");
         },
     .fix = "use a smaller patience, train for longer, or leave [early_stopping] out",
     .example = "[trainer]\nmax_epochs = 5\n[early_stopping]\npatience = 10"},
    {.code = Code::plateau_blind,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"scheduler.name", "scheduler.monitor"},
     .applies =
         [](const Facts& f) {
           return f.scheduler == "plateau" && has_no_validation_data(f) &&
                  f.plateau_monitor.empty();
         },
     .message =
         [](const Facts&) {
           return std::string(
               "the scheduler 'plateau' watches validation, and the dataset has no validation "
               "samples");
         },
     .fix = "give the dataset validation samples, or write scheduler.monitor = \"train_loss\"",
     .example = "[dataset]\nname = \"synthetic\"\nvalidation_size = 0\n[scheduler]\nname = "
                "\"plateau\""},
    {.code = Code::schedule_needs_end,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"scheduler.name", "trainer.max_time"},
     .applies =
         [](const Facts& f) {
           return runs_in_full(f) && f.schedule_needs_length && f.has_max_time && !f.max_epochs &&
                  !f.max_steps;
         },
     .message =
         [](const Facts& f) {
           return "the scheduler '" + f.scheduler +
                  "' spans the whole run, and max_time alone doesn't say how many steps that is";
         },
     .fix = "add max_epochs or max_steps, or use another scheduler",
     .example = "[trainer]\nmax_time = \"01:00:00\"\n[scheduler]\nname = \"one_cycle\""},
    {.code = Code::warmup_too_long,
     .stage = Stage::run,
     .ruling = Ruling::refuse,
     .keys = {"scheduler.steps", "trainer.max_epochs", "trainer.max_steps"},
     .applies =
         [](const Facts& f) {
           return runs_in_full(f) && f.total_steps > 0 && f.warmup_steps > f.total_steps;
         },
     .message =
         [](const Facts& f) {
           return "the warm-up takes " + counted(f.warmup_steps, "step") + ", and the run has " +
                  number(f.total_steps);
         },
     .fix = "warm up over fewer steps, or train for longer",
     .example = "[trainer]\nmax_steps = 100\n[scheduler]\nname = \"linear_warmup\"\nsteps = 1000"},
    {.code = Code::schedule_never,
     .stage = Stage::run,
     .ruling = Ruling::warn,
     .keys = {"scheduler.name", "trainer.max_epochs", "trainer.max_steps"},
     .applies = [](const Facts& f) { return runs_in_full(f) && schedule_never_happens(f); },
     .message =
         [](const Facts& f) {
           return "the scheduler '" + f.scheduler + "' has " + f.schedule_key + " at " +
                  counted(f.schedule_mark, f.schedule_unit) + ", and the run has " +
                  number(schedule_length(f));
         },
     .fix = "make it shorter, train for longer, or count it in the other interval",
     .example = "[trainer]\nmax_epochs = 10\n[scheduler]\nname = \"step\"\nstep_size = 30"},
};

bool mentions(const Rule& rule, std::span<const std::string_view> keys) {
  return std::any_of(rule.keys.begin(), rule.keys.end(), [keys](std::string_view key) {
    return !key.empty() && std::find(keys.begin(), keys.end(), key) != keys.end();
  });
}

}  // namespace

std::string_view to_text(Ruling ruling) {
  switch (ruling) {
    case Ruling::refuse:
      return "refused";
    case Ruling::warn:
      return "warned";
    case Ruling::infer:
      return "inferred";
  }
  return "";
}

std::span<const Rule> rules() { return kRules; }

std::vector<const Rule*> apply_rules(const Facts& facts, Stage stage,
                                     std::span<const std::string_view> unknown) {
  std::vector<const Rule*> applied;
  std::vector<std::string_view> refused;
  for (const Rule& rule : kRules) {
    if (rule.stage != stage || mentions(rule, unknown) || !rule.applies(facts)) continue;
    applied.push_back(&rule);
    if (rule.ruling != Ruling::refuse) continue;
    for (const std::string_view key : rule.keys) {
      if (!key.empty()) refused.push_back(key);
    }
  }
  std::erase_if(applied, [&](const Rule* rule) {
    return rule->ruling == Ruling::warn && mentions(*rule, refused);
  });
  return applied;
}

std::string resolved_backend(const Facts& facts) {
  if (!facts.backend.empty()) return facts.backend;
  return several_devices(facts) || facts.num_nodes > 1 ? "ddp" : "none";
}

}  // namespace runner::check
