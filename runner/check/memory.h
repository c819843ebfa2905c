// Estimates of what a run takes, from its graph alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "runner/check/cost.h"
#include "runner/config/experiment.h"
#include "runner/graph/graph.h"
#include "runner/graph/partition.h"

namespace runner::check {

/// What the estimate of a device's memory depends on.
struct MemoryTask {
  std::string_view precision = "32";
  int optimizer_tensors = 0;    ///< of a weight's size, for each weight
  std::int64_t batch_size = 1;  ///< samples that the device works on at once
};

[[nodiscard]] MemoryTask memory_task(const config::Experiment& experiment,
                                     std::string_view precision, std::int64_t batch_size);

/// Bytes on each device: weights with buffers (and, with autocast, their copies in 16 bits),
/// gradients, optimizer state, and the activations that a batch's backward pass needs.
[[nodiscard]] Memory estimate_memory(const graph::Graph& graph, const MemoryTask& task);

/// Bytes of a checkpoint's tensors: weights, buffers and optimizer state.
[[nodiscard]] std::int64_t checkpoint_size(const graph::Graph& graph, const MemoryTask& task);

/// The largest batch whose estimate is at most `bytes`; 0 if none is.
[[nodiscard]] std::int64_t largest_batch(const graph::Graph& graph, MemoryTask task,
                                         std::int64_t bytes);

/// What each layer after the input costs as part of a pipeline; time is counted in FLOPs, and the
/// batch is split into `micro_batches`.
[[nodiscard]] std::vector<graph::LayerCost> layer_costs(const graph::Graph& graph,
                                                        const MemoryTask& task,
                                                        std::int64_t micro_batches);

struct Pipeline {
  std::vector<PipelineStage> stages;
  double balance = 1;  ///< mean FLOPs of a stage / the largest's
};
/// The model cut by its FLOPs, see graph::partition; nothing if no cut keeps to the memory limit.
[[nodiscard]] std::optional<Pipeline> cut(const graph::Graph& graph, const MemoryTask& task,
                                          const graph::PartitionTask& partition);

}  // namespace runner::check
