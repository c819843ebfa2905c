// Cutting a model into consecutive stages for a pipeline (backend balanced).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace runner::graph {

/// What a layer costs the device that it lies on.
struct LayerCost {
  double time = 0;                    ///< forward and backward pass, in any unit; not negative
  std::int64_t state_bytes = 0;       ///< parameters, buffers, gradients, optimizer state
  std::int64_t activation_bytes = 0;  ///< kept for the backward pass of one micro-batch
};

struct PartitionTask {
  std::int64_t stages = 1;
  std::int64_t micro_batches = 1;                 ///< that a batch is split into
  std::optional<std::int64_t> memory_limit = {};  ///< bytes a device
};

struct Partition {
  std::vector<std::size_t> ends;  ///< of each stage, the index one past its last layer
  double balance = 1;             ///< mean stage time / largest stage time; 1 is the best

  /// Index of the first layer of a stage.
  [[nodiscard]] std::size_t begin(std::size_t stage) const {
    return stage == 0 ? 0 : ends[stage - 1];
  }
};

/// Micro-batches whose activations a stage holds at once when each backward pass runs as early as
/// it can (the 1F1B schedule): the first stage waits longest for gradients.
[[nodiscard]] std::int64_t in_flight(std::int64_t stage, const PartitionTask& task);

/// Bytes that layers [begin, end) take as stage number `stage`.
[[nodiscard]] std::int64_t stage_bytes(std::span<const LayerCost> layers, std::size_t begin,
                                       std::size_t end, std::int64_t stage,
                                       const PartitionTask& task);

/// mean / largest time of the stages that end at `ends`; 1 when nothing takes time.
[[nodiscard]] double balance(std::span<const LayerCost> layers, std::span<const std::size_t> ends);

/// The cut into stages of at least one layer each whose largest stage time is the smallest there
/// is; among such cuts, one whose largest stage takes the least memory. Nothing if every cut has a
/// stage above the memory limit. O(stages · layers²). Throws std::invalid_argument for fewer layers
/// than stages, or no stage.
[[nodiscard]] std::optional<Partition> partition(std::span<const LayerCost> layers,
                                                 const PartitionTask& task);

}  // namespace runner::graph
