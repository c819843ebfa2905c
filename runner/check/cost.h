#pragma once

#include <cstdint>
#include <string>

namespace runner::check {

/// Bytes a device, estimated.
struct Memory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;
  [[nodiscard]] std::int64_t total() const { return weights + gradients + optimizer + activations; }
};

/// One of the consecutive parts that backend balanced cuts a model into.
struct PipelineStage {
  std::string first_layer, last_layer;
  std::int64_t flops = 0;       ///< of one sample's forward pass
  std::int64_t parameters = 0;  ///< trainable elements
  Memory memory;
};

}  // namespace runner::check
