#pragma once

#include <cstdint>

namespace runner::check {

/// Bytes a device, estimated.
struct Memory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;
  [[nodiscard]] std::int64_t total() const { return weights + gradients + optimizer + activations; }
};

}  // namespace runner::check
