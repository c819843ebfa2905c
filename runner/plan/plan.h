// plan: what will happen, as a value.
//
// Everything that the experiment and the machine decide together: devices, processes, batches,
// steps, costs, and each value that was inferred with its reason. It prints (print.h), it is what
// `--plan --format json` shows, and its JSON is all that a worker receives.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "registry/value.h"
#include "runner/check/cost.h"
#include "runner/check/inference.h"

namespace runner::plan {

enum class Mode { fit, test };

struct Devices {
  std::string type = "cpu";       ///< LibTorch's name of the kind: "cpu", "cuda", "xla"
  std::vector<std::int64_t> ids;  ///< GPU ids on each node, root first; empty on the CPU
  std::string note;               ///< "id 0 of the mask (physical 1)", …
};

struct Plan {
  static constexpr int kFormat = 1;  ///< of the JSON; changes when a field changes its meaning

  Mode mode = Mode::fit;
  std::string name;
  registry::Value::Table experiment;  ///< resolved: every key, inferred values included

  std::string backend = "none";
  std::string precision = "32";
  Devices devices;
  std::int64_t num_nodes = 1;
  std::int64_t processes_per_node = 1;
  std::int64_t world_size = 1;
  std::int64_t devices_per_process = 1;  ///< that a process splits its batches or its model among
  std::int64_t timeout_seconds = 600;    ///< that ranks wait for one that doesn't come
  std::int64_t start_timeout_seconds = 300;  ///< that ranks wait for each other at the start
  std::int64_t max_restarts = 0;

  std::int64_t batch_size = 0;       ///< per process
  std::int64_t effective_batch = 0;  ///< batch x replicas x accumulate
  std::int64_t train_samples = 0, validation_samples = 0, test_samples = 0;  ///< 0: unknown or none
  std::int64_t batches_per_epoch = 0;   ///< of a process, after limits
  std::int64_t validation_batches = 0;  ///< of a process, after limits; 0: no validation
  std::int64_t steps_per_epoch = 0;     ///< optimizer steps
  std::optional<std::int64_t> max_epochs;
  std::optional<std::int64_t> max_steps;  ///< total, if known
  std::optional<std::int64_t> max_seconds;

  std::string loss;                    ///< name of the loss
  std::vector<std::string> metrics;    ///< "accuracy", …
  std::optional<std::string> monitor;  ///< "val_loss"
  bool monitor_max = false;

  std::int64_t parameters = 0;
  std::int64_t flops_per_sample = 0;  ///< forward pass
  check::Memory memory;  ///< with stages: on GPUs the largest one's, on the CPU that of all
  std::vector<check::PipelineStage> stages;   ///< of balanced; else empty
  double balance = 1;                         ///< mean FLOPs of a stage / the largest's
  std::optional<std::int64_t> device_memory;  ///< bytes of the smallest GPU; bounds the stages
  std::int64_t checkpoint_bytes = 0;

  std::vector<check::Inference> inferred;

  // Where things are; empty in a plan that is only shown.
  std::string run_folder;
  std::string base_folder;    ///< folder of the experiment file
  std::string shared_folder;  ///< data that ships with runner
  std::optional<std::string>
      resume_from;             ///< a checkpoint folder, verified; also what `test` loads
  std::int64_t csv_bytes = 0;  ///< length of metrics.csv that belongs to resume_from
  std::string command_line;
  std::string version, git_commit;
  bool quiet = false;
};

/// Stable JSON; from_json throws diag::Error (invalid) for another format.
[[nodiscard]] std::string to_json(const Plan& plan);
[[nodiscard]] Plan from_json(const std::string& text);

}  // namespace runner::plan
