// check: Experiment x machine -> Verdict.
//
// Three passes, each going on after errors where what it needs is still known:
//   1. devices: the `gpus` spec and the facts that the rules speak of (gpus.h, facts.h);
//   2. the rule table (rules.h): refuse, warn, infer; the compatibility matrix;
//   3. fit: dataset, model, loss, metrics and steps against each other; the costs (fit.cpp,
//   memory.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "datasets/dataset.h"
#include "runner/check/cost.h"
#include "runner/check/inference.h"
#include "runner/config/experiment.h"
#include "runner/diag/diagnostic.h"
#include "runner/graph/graph.h"

namespace runner::check {

/// What is known of the machine that the experiment is judged for. All absent: the file is judged
/// on its own.
struct MachineView {
  std::optional<std::int64_t> gpus_available = {};     ///< visible GPUs
  std::optional<std::string> visible_mask = {};        ///< CUDA_VISIBLE_DEVICES
  std::optional<std::int64_t> gpu_memory_bytes = {};   ///< of the smallest GPU
  std::optional<std::int64_t> free_disk_bytes = {};    ///< where the run folder will lie
  std::optional<std::int64_t> host_memory_bytes = {};  ///< main memory
  bool in_slurm_step = false;
};

/// Everything decided; fields keep their defaults where an error stopped the pass that fills them.
struct Verdict {
  std::string backend = "none";       ///< resolved
  std::string precision = "32";       ///< canonical: "64", "32", "16", "bf16"
  std::string device_type = "cpu";    ///< "cpu", "cuda", or "xla" for a TPU
  std::vector<std::int64_t> gpu_ids;  ///< as the file numbers them, root first; empty on the CPU
  bool all_gpus = false;  ///< -1 on an unknown machine: gpu_ids is empty though GPUs are used
  std::int64_t num_nodes = 1;
  std::int64_t processes_per_node = 1;
  std::int64_t devices_per_process = 1;  ///< replicas of dp and ddp2, stages of balanced
  std::int64_t replicas = 1;  ///< batches worked on at once over all nodes (dp counts its devices)

  datasets::Spec data;
  std::optional<graph::Graph> graph;  ///< nothing when shapes are unknown or don't fit
  std::string loss;
  std::vector<std::string> metrics;
  std::optional<std::string> monitor;  ///< "val_loss", …; nothing without validation
  bool monitor_max = false;

  std::int64_t batches_per_epoch = 0;  ///< of a process, after limits; 0: unknown
  std::int64_t validation_batches = 0;
  std::int64_t steps_per_epoch = 0;
  std::optional<std::int64_t> max_epochs;  ///< with fast_dev_run and defaults applied
  std::optional<std::int64_t> max_steps;
  std::optional<std::int64_t> max_seconds;
  std::int64_t total_steps = 0;  ///< 0 when only time bounds the run

  Memory memory;  ///< with stages: on GPUs the largest one's, on the CPU that of all together
  std::vector<PipelineStage> stages;          ///< of balanced; else empty
  double balance = 1;                         ///< mean FLOPs of a stage / the largest's
  std::optional<std::int64_t> device_memory;  ///< bytes of the smallest GPU, if known
  std::int64_t checkpoint_bytes = 0;

  std::vector<Inference> inferred;
};

/// Judges the experiment; inferred values are also written into it (origin inferred), so that the
/// plan's values are complete.
[[nodiscard]] Verdict judge(config::Experiment& experiment, const MachineView& machine,
                            const datasets::Context& context, diag::Sink& sink);

}  // namespace runner::check
