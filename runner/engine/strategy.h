// engine: how a step's work is spread over devices and processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "runner/engine/loss.h"
#include "runner/engine/lower.h"
#include "runner/engine/precision.h"

namespace runner::engine {

/// One batch of the group whose gradients are added up for one optimizer step.
struct MicroBatch {
  at::Tensor inputs;
  at::Tensor targets;
  double share = 1;  ///< its samples over those of the whole group
  bool last = true;  ///< of the group: gradients are complete after it
};

/// Owns what happens between a batch and complete gradients.
class Strategy {
 public:
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// Called once, before the first step, when weights are initialised or loaded.
  virtual void setup(Network& network) = 0;
  /// Forward and backward pass, and the exchange that this micro-batch needs; adds `share` times
  /// the mean loss's gradient to the parameters' gradients. Returns the batch's mean loss, detached
  /// and unscaled.
  virtual at::Tensor step(const MicroBatch& batch) = 0;
  /// Forward pass without gradients, as in evaluation.
  [[nodiscard]] virtual at::Tensor predict(const at::Tensor& inputs) = 0;
  /// Returns when all processes have come here.
  virtual void barrier() = 0;

 protected:
  Strategy() = default;
};

/// One process, one device.
[[nodiscard]] std::unique_ptr<Strategy> make_single(Loss loss, Precision& precision);

}  // namespace runner::engine
