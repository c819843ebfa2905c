#include <algorithm>
#include <array>

#include "runner/check/gpus.h"
#include "runner/check/passes.h"
#include "runner/check/text.h"
#include "runner/check/time_text.h"
#include "runner/config/fault.h"

namespace runner::check {

namespace {

using registry::Value;

// ---- precision ---------------------------------------------------------------------------------

/// What to write in the place of a precision that people know from elsewhere.
std::string precision_help(const Value& value) {
  struct Foreign {
    std::string_view text, use;
  };
  static constexpr std::array kForeign = {
      Foreign{"16-mixed", "16"},   Foreign{"16-true", "16"},
      Foreign{"fp16", "16"},       Foreign{"half", "16"},
      Foreign{"float16", "16"},    Foreign{"bf16-mixed", "\"bf16\""},
      Foreign{"BF16", "\"bf16\""}, Foreign{"bfloat16", "\"bf16\""},
      Foreign{"32-true", "32"},    Foreign{"fp32", "32"},
      Foreign{"float32", "32"},    Foreign{"single", "32"},
      Foreign{"64-true", "64"},    Foreign{"fp64", "64"},
      Foreign{"float64", "64"},    Foreign{"double", "64"},
      Foreign{"16", "16"},         Foreign{"32", "32"},
      Foreign{"64", "64"}};
  if (const auto* text = value.get_if<std::string>()) {
    for (const Foreign& foreign : kForeign) {
      if (foreign.text == *text) return "write precision = " + std::string(foreign.use);
    }
  }
  return "write precision = 32, or leave it out";
}

/// The canonical name of a precision; nothing for a value that is none.
std::optional<std::string> parse_precision(const Value& value) {
  if (const auto* bits = value.get_if<std::int64_t>()) {
    if (*bits == 64 || *bits == 32 || *bits == 16) return std::to_string(*bits);
    return {};
  }
  const auto* text = value.get_if<std::string>();
  if (text != nullptr && *text == "bf16") return *text;
  return {};
}

void read_precision(Judgement& j) {
  const Value& value = j.experiment.trainer.precision;
  if (const auto precision = parse_precision(value)) {
    j.facts.precision = *precision;
    j.verdict.precision = *precision;
    return;
  }
  j.bad_value(
      diag::Code::bad_value,
      "'trainer.precision': expected 64, 32, 16 or \"bf16\", found " + registry::to_toml(value),
      "trainer.precision", precision_help(value));
}

// ---- devices -----------------------------------------------------------------------------------

void report_problem(Judgement& j, const GpuProblem& problem) {
  if (problem.index) {
    j.bad_element(problem.code, problem.message, "trainer.gpus", *problem.index, problem.help);
  } else {
    j.bad_value(problem.code, problem.message, "trainer.gpus", problem.help);
  }
}

/// "-1" and -1 are one value, so that two spellings of a file have one plan.
void write_all_as_number(config::Experiment& e) {
  e.trainer.gpus = -1;
  for (config::Setting& setting : e.settings) {
    if (setting.key == "trainer.gpus") setting.value = -1;
  }
}

void read_gpus(Judgement& j) {
  const ParsedGpus parsed = parse_gpus(j.experiment.trainer.gpus);
  for (const GpuProblem& problem : parsed.problems) report_problem(j, problem);
  const GpuSpec& spec = parsed.spec;
  if (spec.kind == GpuSpec::Kind::cpu) return;

  const VisibleGpus visible{.count = j.machine.gpus_available, .mask = j.machine.visible_mask};
  const ResolvedGpus resolved = resolve(spec, visible);
  if (resolved.problem) {
    j.report(resolved.problem->code, resolved.problem->message, "trainer.gpus",
             resolved.problem->help);
  }
  for (const std::string& remark : resolved.remarks) j.remark("trainer.gpus", remark);

  Facts& f = j.facts;
  f.all_gpus = spec.kind == GpuSpec::Kind::all;
  f.has_gpu_ids = spec.kind == GpuSpec::Kind::ids;
  // Judged as asked for, even where the machine lacks some.
  f.gpus = spec.kind == GpuSpec::Kind::count ? spec.count
           : f.has_gpu_ids                   ? static_cast<std::int64_t>(spec.ids.size())
                                             : static_cast<std::int64_t>(resolved.ids.size());
  f.gpus_unknown = f.all_gpus && resolved.ids.empty();
  j.verdict.device_type = "cuda";
  j.verdict.gpu_ids = resolved.ids;
  j.verdict.all_gpus = resolved.all;
  if (f.all_gpus && spec.is_text) write_all_as_number(j.experiment);
  if (resolved.all) {
    j.remark("trainer.gpus",
             "the number of GPUs isn't known here, so batches and steps are those of one; "
             "--gpus-available N counts with N");
  }
}

void resolve_devices(Judgement& j) {
  const Facts& f = j.facts;
  Verdict& v = j.verdict;
  v.backend = resolved_backend(f);
  if (v.backend == "tpu") v.device_type = "xla";
  v.num_nodes = f.num_nodes;
  const std::int64_t devices = f.gpus_unknown ? 1 : f.devices();
  const bool process_each = v.backend == "ddp" || v.backend == "horovod";
  const bool replica_each = process_each || v.backend == "dp" || v.backend == "ddp2";
  v.processes_per_node = process_each ? devices : 1;
  v.devices_per_process = process_each || v.backend == "none" || v.backend == "tpu" ? 1 : devices;
  v.replicas = f.num_nodes * (replica_each ? devices : 1);
}

/// Two micro-batches a stage keep the stages busy for most of a step; more make small kernels.
void infer_micro_batches(Judgement& j) {
  const Verdict& v = j.verdict;
  if (v.backend != "balanced" || v.devices_per_process < 2 || j.facts.micro_batches) return;
  const std::int64_t wanted = 2 * v.devices_per_process;
  const std::int64_t batch = j.experiment.data.batch_size;
  j.facts.micro_batches = std::min(wanted, batch);
  j.infer("trainer.micro_batches", *j.facts.micro_batches,
          wanted <= batch
              ? "two for each of the " + std::to_string(v.devices_per_process) + " stages"
              : "no more than batch_size = " + std::to_string(batch));
}

// ---- the rest of the file ----------------------------------------------------------------------

void read_max_time(Judgement& j) {
  const auto& text = j.experiment.trainer.max_time;
  if (!text) return;
  j.facts.has_max_time = true;
  const auto seconds = parse_duration(*text);
  if (seconds && *seconds > 0) {
    j.verdict.max_seconds = *seconds;
    return;
  }
  j.bad_value(diag::Code::bad_value,
              seconds ? "'trainer.max_time': a time of 0 leaves nothing to train"
                      : "'trainer.max_time': expected \"MM:SS\", \"HH:MM:SS\" or \"DD:HH:MM:SS\", "
                        "found the string " +
                            registry::to_toml(*text),
              "trainer.max_time", "ten minutes are \"10:00\", two hours \"02:00:00\"");
}

/// True if the file says something else than the default. A default that is written says nothing
/// new: `--print-config` writes them all, and its output is the same experiment.
bool is_changed(const config::Experiment& e, const config::Setting& setting) {
  return e.is_set(setting.key) && setting.value != setting.option->default_value;
}
bool is_changed(const config::Experiment& e, std::string_view key) {
  const config::Setting* setting = e.setting(key);
  return setting != nullptr && is_changed(e, *setting);
}

void read_schedule(Facts& f, const config::Experiment& e) {
  f.scheduler = e.scheduler.name;
  if (e.scheduler.entry == nullptr) return;
  const auto& entry = static_cast<const components::Scheduler&>(*e.scheduler.entry);
  const std::any& any = e.scheduler.options;
  f.schedule_needs_length = entry.needs_total_steps;
  if (const auto* step = std::any_cast<components::StepSchedule>(&any)) {
    f.schedule_mark = step->step_size;
    f.schedule_key = "its first change";
    f.schedule_unit = step->interval;
  } else if (const auto* multi = std::any_cast<components::MultiStep>(&any)) {
    if (!multi->milestones.empty()) {
      f.schedule_mark = *std::min_element(multi->milestones.begin(), multi->milestones.end());
    }
    f.schedule_key = "its first change";
    f.schedule_unit = multi->interval;
  } else if (const auto* cosine = std::any_cast<components::Cosine>(&any)) {
    f.schedule_mark = cosine->period.value_or(0);
    f.schedule_needs_length = !cosine->period.has_value();
    f.schedule_key = "its end";
    f.schedule_unit = cosine->interval;
  } else if (const auto* warmup = std::any_cast<components::LinearWarmup>(&any)) {
    f.warmup_steps = warmup->steps;
  } else if (const auto* plateau = std::any_cast<components::PlateauOptions>(&any)) {
    f.plateau_monitor = plateau->monitor.value_or("");
  }
}

void need_scheduler_options(Judgement& j) {
  const Facts& f = j.facts;
  std::string_view missing;
  if (f.scheduler == "linear_warmup" && f.warmup_steps == 0) missing = "steps";
  if (f.scheduler == "multistep" && f.schedule_mark == 0) missing = "milestones";
  if (missing.empty()) return;
  const bool is_steps = missing == "steps";
  j.bad_value(
      diag::Code::missing_key,
      "'scheduler." + std::string(missing) + "' is missing, without which '" + f.scheduler +
          "' has nothing to do",
      is_steps ? "scheduler.steps" : "scheduler.milestones",
      is_steps ? "add steps = 100 to [scheduler]" : "add milestones = [30, 60] to [scheduler]");
}

void read_optimizer(Facts& f, const config::Experiment& e) {
  f.has_lr = is_changed(e, "optimizer.lr");
  if (const auto* sgd = std::any_cast<components::Sgd>(&e.optimizer.options)) {
    f.nesterov = sgd->nesterov;
    f.momentum = sgd->momentum;
    f.dampening = sgd->dampening;
  }
}

void read_fault(Judgement& j) {
  const auto& text = j.experiment.debug.fail;
  if (!text || config::parse_fault(*text)) return;
  j.bad_value(diag::Code::bad_value,
              "'debug.fail': expected \"rank=1,step=3\" and at most how and attempts, found the "
              "string " +
                  registry::to_toml(*text),
              "debug.fail",
              "ranks count from 0, steps from 1; how is throw, kill, abort, exit, hang, stop or "
              "memory");
}

/// A fault of a rank that doesn't exist would never come.
void need_rank_of_fault(Judgement& j) {
  const auto& text = j.experiment.debug.fail;
  const auto fault = text ? config::parse_fault(*text) : std::nullopt;
  const std::int64_t world = j.verdict.num_nodes * j.verdict.processes_per_node;
  if (!fault || j.verdict.all_gpus || fault->rank < world) return;
  j.bad_value(diag::Code::bad_value,
              "'debug.fail': the run has " + counted(world, "rank") + ", and rank " +
                  std::to_string(fault->rank) + " is asked to fail",
              "debug.fail", "ranks count from 0");
}

void read_settings(Judgement& j) {
  const config::Experiment& e = j.experiment;
  const config::Trainer& t = e.trainer;
  Facts& f = j.facts;
  f.backend = t.backend.value_or("");
  f.has_amp_level = t.amp_level.has_value();
  f.auto_select_gpus = t.auto_select_gpus;
  f.num_processes = t.num_processes;
  f.num_nodes = t.num_nodes;
  f.mig_slices = mig_slices(j.machine.visible_mask);
  f.in_slurm_step = j.machine.in_slurm_step;
  f.communication = t.communication;
  f.gradient_compression = t.gradient_compression;
  f.max_restarts = t.max_restarts;
  f.find_unused_parameters = t.find_unused_parameters;
  f.scale_lr = t.scale_lr;
  f.replicated_samples = e.data.sampler == "replicated";
  f.sync_batchnorm = t.sync_batchnorm;
  f.micro_batches = t.micro_batches;
  f.deterministic = t.deterministic;
  f.benchmark = t.benchmark;

  f.fast_dev_run = t.fast_dev_run;
  f.max_epochs = t.max_epochs;
  f.min_epochs = t.min_epochs;
  f.max_steps = t.max_steps;
  f.min_steps = t.min_steps;
  f.accumulate = t.accumulate;
  f.overfit_batches = t.overfit_batches;
  if (e.is_set("dataset.shuffle")) f.shuffle = e.data.shuffle;
  if (is_changed(e, "trainer.val_every_n_epochs")) f.val_every_n_epochs = t.val_every_n_epochs;
  f.val_every_n_steps = t.val_every_n_steps;
  f.checkpoint_every_n_steps = e.checkpoint.every_n_steps;
  f.log_every_n_steps = e.logger.every_n_steps;
  f.patience = e.early_stopping.patience;
  f.has_early_stopping = std::any_of(e.settings.begin(), e.settings.end(), [&e](const auto& s) {
    return s.key.starts_with("early_stopping.") && is_changed(e, s);
  });
  f.keeps_checkpoints = e.checkpoint.keep != 0 || e.checkpoint.last;
  f.resumes = e.checkpoint.resume == "auto";
  f.batch_size = e.data.batch_size;
  f.drop_last = e.data.drop_last;
  read_optimizer(f, e);
  read_schedule(f, e);
}

}  // namespace

void judge_settings(Judgement& j) {
  read_settings(j);
  read_precision(j);
  read_gpus(j);
  read_max_time(j);
  need_scheduler_options(j);
  read_fault(j);
  j.apply(Stage::settings);
  resolve_devices(j);
  need_rank_of_fault(j);
  infer_micro_batches(j);
}

}  // namespace runner::check
