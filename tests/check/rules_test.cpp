#include "runner/check/rules.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace runner;
using check::Facts;
using check::Rule;
using check::Ruling;
using check::Stage;
using diag::Code;

namespace {

using Names = std::set<std::string>;

Names names_of(const Facts& facts, Stage stage, Ruling ruling) {
  Names result;
  for (const Rule* rule : check::apply_rules(facts, stage)) {
    if (rule->ruling == ruling) result.insert(std::string(diag::info(rule->code).name));
  }
  return result;
}

/// What the design's prose says of a combination, written without a look at the rule table.
struct Expected {
  Names refused;
  Names warned;
  std::string backend;  ///< resolved
};

enum class Devices { cpu, one_gpu, two_gpus, two_processes };

Expected expected(const std::string& backend, const std::string& precision, Devices devices,
                  int nodes, bool amp_level) {
  Expected e;
  const bool has_gpu = devices == Devices::one_gpu || devices == Devices::two_gpus;
  const bool several = devices == Devices::two_gpus || devices == Devices::two_processes;

  // "k > 1 GPUs, backend absent: inferred (ddp)"; "num_nodes > 1, backend absent: becomes ddp".
  e.backend = backend;
  if (backend.empty()) e.backend = several || nodes > 1 ? "ddp" : "none";

  // "num_nodes > 1 with dp, balanced or none written out: rejected (can't leave its node)".
  const bool stays_on_node = backend == "dp" || backend == "balanced" || backend == "none";
  if (nodes > 1 && stays_on_node) e.refused.insert("nodes_backend");
  // "backend none with 2 devices R".
  if (nodes == 1 && several && backend == "none") e.refused.insert("none_several");
  // "balanced + 1 device: rejected".
  if (nodes == 1 && !several && backend == "balanced") e.refused.insert("balanced_one");
  // "dp + 16: rejected".
  if (backend == "dp" && precision == "16") e.refused.insert("dp_16");
  // "amp_level without precision 16: rejected".
  if (amp_level && precision != "16") e.refused.insert("amp_level_precision");
  // A TPU has neither GPUs nor CPU processes nor fp16.
  if (backend == "tpu") {
    if (has_gpu || devices == Devices::two_processes) e.refused.insert("tpu_devices");
    if (precision == "16") e.refused.insert("tpu_16");
  }

  // "ddp with 1 device and 1 node W"; dp on one device: "allowed with a warning"; "ddp2 with 1
  // GPU".
  if (!several) {
    if (nodes == 1 && (backend == "ddp" || backend == "ddp2" || backend == "horovod")) {
      e.warned.insert("ddp_alone");
    }
    if (nodes == 1 && backend == "dp") e.warned.insert("dp_alone");
    if (nodes > 1 && backend == "ddp2") e.warned.insert("ddp2_one");
  }
  if (backend == "ddp2" && precision == "16" && several) e.warned.insert("ddp2_16");
  // "16 on CPU: warn that it is slow".
  if (precision == "16" && !has_gpu && backend != "tpu") e.warned.insert("cpu_16");

  // One mistake is one diagnostic: a refused key isn't warned of as well.
  if (e.refused.contains("dp_16")) {
    e.warned.erase("cpu_16");
    e.warned.erase("dp_alone");
  }
  if (e.refused.contains("none_several")) e.warned.erase("cpu_16");
  if (e.refused.contains("balanced_one")) e.warned.erase("cpu_16");
  return e;
}

Facts facts_of(const std::string& backend, const std::string& precision, Devices devices, int nodes,
               bool amp_level) {
  Facts f;
  f.backend = backend;
  f.precision = precision;
  f.gpus = devices == Devices::one_gpu ? 1 : devices == Devices::two_gpus ? 2 : 0;
  if (devices == Devices::two_processes) f.num_processes = 2;
  f.num_nodes = nodes;
  f.has_amp_level = amp_level;
  f.max_epochs = 1;
  return f;
}

}  // namespace

TEST_CASE("rules: every combination has the verdict that the design's prose gives it") {
  int combinations = 0;
  int refused = 0;
  for (const std::string backend :
       {"", "none", "dp", "ddp", "ddp2", "horovod", "balanced", "tpu"}) {
    for (const std::string precision : {"64", "32", "16", "bf16"}) {
      for (const Devices devices :
           {Devices::cpu, Devices::one_gpu, Devices::two_gpus, Devices::two_processes}) {
        for (const int nodes : {1, 2}) {
          for (const bool amp_level : {false, true}) {
            CAPTURE(backend);
            CAPTURE(precision);
            CAPTURE(static_cast<int>(devices));
            CAPTURE(nodes);
            CAPTURE(amp_level);
            const Facts facts = facts_of(backend, precision, devices, nodes, amp_level);
            const Expected e = expected(backend, precision, devices, nodes, amp_level);
            // With amp_level refused, precision isn't warned of either.
            Names warned = e.warned;
            if (e.refused.contains("amp_level_precision")) {
              warned.erase("cpu_16");
              warned.erase("ddp2_16");
            }
            CHECK(names_of(facts, Stage::settings, Ruling::refuse) == e.refused);
            CHECK(names_of(facts, Stage::settings, Ruling::warn) == warned);
            CHECK(check::resolved_backend(facts) == e.backend);
            const Names inferred = names_of(facts, Stage::settings, Ruling::infer);
            CHECK(inferred.empty() == !(backend.empty() && e.backend == "ddp"));
            ++combinations;
            if (!e.refused.empty()) ++refused;
          }
        }
      }
    }
  }
  MESSAGE(combinations << " combinations, " << refused << " refused");
  CHECK(combinations == 512);
}

namespace {

/// Facts of a plain run on the CPU: 45 batches an epoch, 10 epochs.
Facts plain() {
  Facts f;
  f.max_epochs = 10;
  f.train_size = 1437;
  f.validation_size = 360;
  f.batch_size = 32;
  f.full_batches = 45;
  f.batches_per_epoch = 45;
  f.last_batch = 29;
  f.total_steps = 450;
  f.total_epochs = 10;
  f.validations = 10;
  return f;
}

Facts with(void (*change)(Facts&)) {
  Facts f = plain();
  change(f);
  return f;
}

struct Case {
  const char* code;
  const char* message;  ///< nullptr: the rule must not apply
  Facts facts;
};

/// The message of the rule with this code, or nullptr-like "" if it doesn't apply.
std::string message_of(const Facts& facts, std::string_view name) {
  for (const Stage stage : {Stage::settings, Stage::run}) {
    for (const Rule* rule : check::apply_rules(facts, stage)) {
      if (diag::info(rule->code).name == name) return rule->message(facts);
    }
  }
  return {};
}

}  // namespace

TEST_CASE("rules: nothing is said of a plain run") {
  CHECK(check::apply_rules(plain(), Stage::settings).empty());
  CHECK(check::apply_rules(plain(), Stage::run).empty());
}

TEST_CASE("rules: each names both sides of what it finds, and stops at its border") {
  const std::vector<Case> cases = {
      {"inferred_ddp", "2 GPUs and no backend named", with([](Facts& f) { f.gpus = 2; })},
      {"inferred_ddp", "2 processes on the CPU and no backend named",
       with([](Facts& f) { f.num_processes = 2; })},
      {"inferred_ddp", "all GPUs, which may be several, and no backend named",
       with([](Facts& f) { f.all_gpus = f.gpus_unknown = true; })},
      {"inferred_ddp", nullptr, with([](Facts& f) { f.gpus = 1; })},
      {"inferred_ddp_nodes", "2 nodes and no backend named",
       with([](Facts& f) { f.num_nodes = 2; })},
      {"overfit_order", "overfit_batches = 2 trains on the same batches in each epoch",
       with([](Facts& f) { f.overfit_batches = 2; })},
      {"overfit_order", nullptr, with([](Facts& f) {
         f.overfit_batches = 2;
         f.shuffle = false;
       })},
      {"overfit_shuffle",
       "shuffle = true can't be used with overfit_batches = 2, which needs the same batches in "
       "each "
       "epoch",
       with([](Facts& f) {
         f.overfit_batches = 2;
         f.shuffle = true;
       })},
      {"processes_and_gpus",
       "num_processes = 2 is for runs on the CPU, and the file asks for 1 GPU", with([](Facts& f) {
         f.gpus = 1;
         f.num_processes = 2;
       })},
      {"ids_on_nodes", "the ids in gpus are used on each of 2 nodes", with([](Facts& f) {
         f.gpus = 2;
         f.has_gpu_ids = true;
         f.num_nodes = 2;
         f.backend = "ddp";
       })},
      {"auto_select_ids", "auto_select_gpus chooses GPUs, and gpus names them already",
       with([](Facts& f) {
         f.gpus = 1;
         f.has_gpu_ids = f.auto_select_gpus = true;
       })},
      {"auto_select_ids", nullptr, with([](Facts& f) {
         f.gpus = 1;
         f.auto_select_gpus = true;
       })},
      {"auto_select_nothing", "auto_select_gpus has no effect on all GPUs", with([](Facts& f) {
         f.gpus = 4;
         f.all_gpus = f.auto_select_gpus = true;
       })},
      {"auto_select_nothing", "auto_select_gpus has no effect on the CPU",
       with([](Facts& f) { f.auto_select_gpus = true; })},
      {"ids_in_slurm", "gpus names ids inside a SLURM job, where SLURM hands out the GPUs",
       with([](Facts& f) {
         f.gpus = 1;
         f.has_gpu_ids = f.in_slurm_step = true;
       })},
      {"ids_in_slurm", nullptr, with([](Facts& f) {
         f.gpus = 1;
         f.in_slurm_step = true;
       })},
      {"mig_several", "gpus asks for 2 MIG slices, and one process can enumerate one MIG device",
       with([](Facts& f) {
         f.gpus = f.mig_slices = 2;
         f.backend = "ddp";
       })},
      {"mig_several", nullptr, with([](Facts& f) {
         f.gpus = 1;
         f.mig_slices = 2;
       })},
      {"nccl_cpu", "communication 'nccl' needs GPUs, and the run is on the CPU",
       with([](Facts& f) { f.communication = "nccl"; })},
      {"sync_batchnorm_alone", "sync_batchnorm has no effect in a run of one process",
       with([](Facts& f) { f.sync_batchnorm = true; })},
      {"sync_batchnorm_dp",
       "sync_batchnorm combines statistics of processes, and backend 'dp' has one",
       with([](Facts& f) {
         f.sync_batchnorm = true;
         f.backend = "dp";
         f.gpus = 2;
       })},
      {"sync_batchnorm_dp",
       "sync_batchnorm combines statistics of processes, and backend 'ddp2' has several replicas "
       "in "
       "each",
       with([](Facts& f) {
         f.sync_batchnorm = true;
         f.backend = "ddp2";
         f.gpus = 2;
       })},
      {"sync_batchnorm_dp", nullptr, with([](Facts& f) {
         f.sync_batchnorm = true;
         f.backend = "ddp2";
         f.gpus = 1;
         f.num_nodes = 2;
       })},
      {"deterministic_benchmark",
       "benchmark chooses kernels by today's timings, and deterministic wants the same bits every "
       "time",
       with([](Facts& f) { f.deterministic = f.benchmark = true; })},
      {"no_end", "nothing ends the run: max_epochs, max_steps and max_time are absent",
       with([](Facts& f) { f.max_epochs.reset(); })},
      {"no_end", nullptr, with([](Facts& f) {
         f.max_epochs.reset();
         f.has_max_time = true;
       })},
      {"no_end", nullptr, with([](Facts& f) {
         f.max_epochs.reset();
         f.fast_dev_run = true;
       })},
      {"min_above_max", "min_epochs = 11 is above max_epochs = 10",
       with([](Facts& f) { f.min_epochs = 11; })},
      {"min_above_max", nullptr, with([](Facts& f) { f.min_epochs = 10; })},
      {"min_above_max", "min_steps = 50 is above max_steps = 5", with([](Facts& f) {
         f.min_steps = 50;
         f.max_steps = 5;
       })},
      {"validation_twice", "val_every_n_steps = 5 and val_every_n_epochs = 1 exclude each other",
       with([](Facts& f) {
         f.val_every_n_steps = 5;
         f.val_every_n_epochs = 1;
       })},
      {"early_stopping_off", "[early_stopping] has no effect without patience",
       with([](Facts& f) { f.has_early_stopping = true; })},
      {"keep_none_resume",
       "resume = 'auto' has nothing to go on from: keep = 0 and last = false keep no checkpoint",
       with([](Facts& f) {
         f.resumes = true;
         f.keeps_checkpoints = false;
       })},
      {"nesterov", "nesterov needs momentum above 0, and momentum is 0",
       with([](Facts& f) { f.nesterov = true; })},
      {"nesterov", "nesterov needs dampening = 0, and dampening is set", with([](Facts& f) {
         f.nesterov = true;
         f.momentum = 0.9;
         f.dampening = 0.1;
       })},
      {"lr_unused",
       "lr has no effect with the scheduler 'one_cycle', which runs up to scheduler.max_lr",
       with([](Facts& f) {
         f.has_lr = true;
         f.scheduler = "one_cycle";
       })},
      {"too_few_samples", "4 replicas can't share 2 training samples", with([](Facts& f) {
         f.train_size = 2;
         f.replicas = 4;
       })},
      {"batch_too_large",
       "batch_size = 2000 is above the 1437 training samples, and drop_last drops the batch that "
       "isn't full",
       with([](Facts& f) {
         f.batch_size = 2000;
         f.drop_last = true;
         f.full_batches = f.batches_per_epoch = 0;
       })},
      {"batch_above_data", "batch_size = 2000 is above the 719 training samples of each replica",
       with([](Facts& f) {
         f.batch_size = 2000;
         f.replicas = 2;
       })},
      {"batch_above_data", nullptr, with([](Facts& f) { f.batch_size = 1437; })},
      {"batch_norm_one",
       "layer 'bn1' normalises over the batch, and the last batch of an epoch has 1 sample",
       with([](Facts& f) {
         f.one_value_layer = "bn1";
         f.last_batch = 1;
       })},
      {"batch_norm_one", "layer 'bn1' normalises over the batch, and batch_size is 1",
       with([](Facts& f) {
         f.one_value_layer = "bn1";
         f.last_batch = f.batch_size = 1;
       })},
      {"batch_norm_one", nullptr, with([](Facts& f) { f.last_batch = 1; })},
      {"accumulate_long", "accumulate = 46, and an epoch has 45 batches",
       with([](Facts& f) { f.accumulate = 46; })},
      {"accumulate_long", nullptr, with([](Facts& f) { f.accumulate = 45; })},
      {"validation_never", "val_every_n_epochs = 11, and the run has 10 epochs",
       with([](Facts& f) { f.val_every_n_epochs = 11; })},
      {"validation_never", nullptr, with([](Facts& f) { f.val_every_n_epochs = 10; })},
      {"validation_never", "val_every_n_steps = 451, and the run has 450 steps",
       with([](Facts& f) { f.val_every_n_steps = 451; })},
      {"validation_never", nullptr, with([](Facts& f) { f.val_every_n_steps = 450; })},
      {"checkpoint_never", "every_n_steps = 451, and the run has 450 steps",
       with([](Facts& f) { f.checkpoint_every_n_steps = 451; })},
      {"log_never", "every_n_steps = 451, and the run has 450 steps",
       with([](Facts& f) { f.log_every_n_steps = 451; })},
      {"log_never", nullptr, with([](Facts& f) {
         f.log_every_n_steps = 451;
         f.total_steps = 0;
       })},
      {"patience_too_long", "patience = 10, and the run has 10 validations",
       with([](Facts& f) { f.patience = 10; })},
      {"patience_too_long", nullptr, with([](Facts& f) { f.patience = 9; })},
      {"plateau_blind",
       "the scheduler 'plateau' watches validation, and the dataset has no validation samples",
       with([](Facts& f) {
         f.scheduler = "plateau";
         f.validation_size = 0;
       })},
      {"plateau_blind", nullptr, with([](Facts& f) {
         f.scheduler = "plateau";
         f.validation_size.reset();
       })},
      {"schedule_needs_end",
       "the scheduler 'cosine' spans the whole run, and max_time alone doesn't say how many steps "
       "that is",
       with([](Facts& f) {
         f.scheduler = "cosine";
         f.schedule_needs_length = f.has_max_time = true;
         f.max_epochs.reset();
       })},
      {"warmup_too_long", "the warm-up takes 451 steps, and the run has 450",
       with([](Facts& f) { f.warmup_steps = 451; })},
      {"warmup_too_long", nullptr, with([](Facts& f) { f.warmup_steps = 450; })},
      {"schedule_never",
       "the scheduler 'step' has its first change at 10 epochs, and the run has 10",
       with([](Facts& f) {
         f.scheduler = "step";
         f.schedule_mark = 10;
         f.schedule_key = "its first change";
         f.schedule_unit = "epoch";
       })},
      {"schedule_never", nullptr, with([](Facts& f) {
         f.scheduler = "cosine";
         f.schedule_mark = 450;
         f.schedule_key = "its end";
         f.schedule_unit = "step";
       })},
  };
  for (const Case& c : cases) {
    CAPTURE(c.code);
    CHECK(message_of(c.facts, c.code) == (c.message == nullptr ? "" : c.message));
  }
}

TEST_CASE("rules: of a value that was wrong nothing more is said") {
  Facts facts = plain();
  facts.backend = "dp";
  facts.precision = "16";
  const std::string_view unknown[] = {"trainer.precision"};
  CHECK_FALSE(check::apply_rules(facts, Stage::settings).empty());
  for (const Rule* rule : check::apply_rules(facts, Stage::settings, unknown)) {
    CHECK(diag::info(rule->code).name == std::string_view("dp_alone"));
  }
}

TEST_CASE("rules: a rule's code has the severity and exit status of its ruling") {
  for (const Rule& rule : check::rules()) {
    const diag::CodeInfo& info = diag::info(rule.code);
    CAPTURE(info.id);
    CHECK(info.id.front() == 'M');
    switch (rule.ruling) {
      case Ruling::refuse:
        CHECK(info.severity == diag::Severity::error);
        CHECK(info.exit == diag::Exit::incompatible);
        break;
      case Ruling::warn:
        CHECK(info.severity == diag::Severity::warning);
        break;
      case Ruling::infer:
        CHECK(info.severity == diag::Severity::note);
        CHECK_FALSE(rule.value.empty());
        break;
    }
    CHECK_FALSE(rule.fix.empty());
    CHECK_FALSE(rule.example.empty());
    CHECK_FALSE(rule.keys.front().empty());
  }
}

TEST_CASE("rules: every code of the matrix has a rule") {
  for (const diag::CodeInfo& info : diag::all_codes()) {
    if (info.id.front() != 'M') continue;
    CAPTURE(info.id);
    const auto all = check::rules();
    CHECK(std::any_of(all.begin(), all.end(),
                      [&info](const Rule& rule) { return rule.code == info.code; }));
  }
}
