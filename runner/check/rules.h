// The compatibility matrix as data: one table of rules.
//
// A rule is a condition on Facts, a small flat struct, and what follows from it: the experiment is
// refused, warned of, or completed by a value that nobody wrote. `--check` applies the table to an
// experiment, `--matrix` and docs/matrix.md apply it to every combination, `--explain` prints a
// row. A new rule is a row here and a code in diagnostics.def.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/diag/diagnostic.h"

namespace runner::check {

/// All that the rules speak of. Numbers that aren't known (yet) are 0 or absent, and a rule that
/// needs one doesn't apply then.
struct Facts {
  // Devices and precision: known from the file.
  std::string backend = {};      ///< as written; "" if the file is silent
  std::string precision = "32";  ///< "64", "32", "16" or "bf16"
  bool has_amp_level = false;
  std::int64_t gpus = 0;      ///< on each node; 0: the CPU
  bool gpus_unknown = false;  ///< -1, on a machine that isn't known
  bool all_gpus = false;      ///< -1
  bool has_gpu_ids = false;   ///< a list, not a count
  bool auto_select_gpus = false;
  std::optional<std::int64_t> num_processes = {};
  std::int64_t num_nodes = 1;
  std::int64_t mig_slices = 0;  ///< in CUDA_VISIBLE_DEVICES
  bool in_slurm_step = false;
  std::string communication = "auto";
  std::string gradient_compression = "none";
  bool find_unused_parameters = false;
  std::int64_t max_restarts = 0;
  bool scale_lr = false;
  bool replicated_samples = false;
  bool sync_batchnorm = false;
  std::optional<std::int64_t> micro_batches = {};  ///< as written; for Stage::run, as resolved
  bool deterministic = false;
  bool benchmark = false;

  // Length of the run; the rest is known from the file too.
  bool fast_dev_run = false;
  std::optional<std::int64_t> max_epochs = {};
  std::optional<std::int64_t> min_epochs = {};
  std::optional<std::int64_t> max_steps = {};
  std::optional<std::int64_t> min_steps = {};
  bool has_max_time = false;
  std::int64_t accumulate = 1;
  std::int64_t overfit_batches = 0;
  std::optional<bool> shuffle = {};                     ///< as written
  std::optional<std::int64_t> val_every_n_epochs = {};  ///< if not the default
  std::optional<std::int64_t> val_every_n_steps = {};
  std::optional<std::int64_t> checkpoint_every_n_steps = {};
  std::optional<std::int64_t> log_every_n_steps = {};
  std::optional<std::int64_t> patience = {};
  bool has_early_stopping = false;  ///< a key of the section isn't the default
  bool keeps_checkpoints = true;
  bool resumes = false;  ///< checkpoint.resume = "auto"

  // Optimizer and schedule.
  std::string scheduler = "none";
  bool schedule_needs_length = false;
  std::int64_t warmup_steps = 0;
  std::int64_t schedule_mark = 0;    ///< first change, or end, of the schedule
  std::string schedule_key = {};     ///< the option that says so: "step_size"
  std::string schedule_unit = {};    ///< "step" or "epoch"
  std::string plateau_monitor = {};  ///< as written
  bool has_lr = false;               ///< optimizer.lr isn't the default
  bool nesterov = false;
  double momentum = 0;
  double dampening = 0;

  // Known once dataset and model are.
  std::int64_t train_size = 0;
  std::optional<std::int64_t> validation_size = {};
  std::int64_t replicas = 1;
  std::int64_t batch_size = 1;
  bool drop_last = false;
  std::int64_t full_batches = 0;       ///< of a process in an epoch, before limits
  std::int64_t batches_per_epoch = 0;  ///< after limits
  std::int64_t last_batch = 0;         ///< samples of an epoch's last batch
  std::int64_t total_steps = 0;
  std::int64_t total_epochs = 0;
  std::int64_t validations = 0;
  std::int64_t layers = 0;            ///< of the model, without its input
  std::string batch_norm_layer = {};  ///< the first batch normalisation
  std::string one_value_layer = {};   ///< a batch normalisation that sees one value a sample

  /// On each node: GPUs, or processes that stand in for them.
  [[nodiscard]] std::int64_t devices() const { return gpus > 0 ? gpus : num_processes.value_or(1); }
  [[nodiscard]] bool on_gpu() const { return gpus > 0 || gpus_unknown; }
  /// Samples of the smallest micro-batch of an epoch's last batch; 0 without micro-batches.
  [[nodiscard]] std::int64_t smallest_micro_batch() const {
    if (backend != "balanced" || !micro_batches || last_batch == 0) return 0;
    return *micro_batches < last_batch ? last_batch / *micro_batches : 1;
  }
  /// True if it is certain that the run is one process.
  [[nodiscard]] bool one_process() const {
    const bool many_possible = backend.empty() || backend == "ddp" || backend == "horovod";
    return num_nodes == 1 && !(many_possible && (gpus_unknown || devices() > 1));
  }
  /// True if it is certain that a node works with one device.
  [[nodiscard]] bool one_device() const { return !gpus_unknown && devices() == 1; }
};

enum class Ruling { refuse, warn, infer };
[[nodiscard]] std::string_view to_text(Ruling ruling);

/// When a rule's facts are known.
enum class Stage {
  settings,  ///< from the file and the machine
  run,       ///< with dataset and model
};

struct Rule {
  diag::Code code;
  Stage stage;
  Ruling ruling;
  /// Dotted keys the rule is about; the diagnostic points at the first that is written, a note at
  /// each other.
  std::array<std::string_view, 3> keys;
  bool (*applies)(const Facts&);
  std::string (*message)(const Facts&);  ///< with the values; for infer, the reason
  std::string_view fix;
  std::string_view example;     ///< lines of TOML that the rule applies to
  std::string_view value = {};  ///< infer: TOML of the first key's value
};

[[nodiscard]] std::span<const Rule> rules();

/// The rules of a stage that apply, in the order of the table. One mistake is one diagnostic: no
/// rule speaks of a key in `unknown` (its value was wrong, so its facts are defaults), and no
/// warning of a key that a refusal speaks of.
[[nodiscard]] std::vector<const Rule*> apply_rules(const Facts& facts, Stage stage,
                                                   std::span<const std::string_view> unknown = {});

/// The backend that the run has: as written, or as the rules infer it.
[[nodiscard]] std::string resolved_backend(const Facts& facts);

}  // namespace runner::check
