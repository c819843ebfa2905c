// engine: batch normalisation over the batches of all processes (sync_batchnorm).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "runner/graph/graph.h"

namespace runner::engine {

/// Batch normalisation in training whose mean and variance are those of all processes' samples,
/// forward and backward, on any device. `tensors`: weight, bias, running mean, running variance,
/// number of batches. `sum`: adds up a tensor over the processes, in place; called once in the
/// forward and once in the backward pass.
/// `counts`: whether x is part of the statistics.
[[nodiscard]] at::Tensor shared_batch_norm(const graph::BatchNorm& op, const at::Tensor& x,
                                           const std::vector<at::Tensor>& tensors,
                                           const std::function<void(at::Tensor)>& sum, bool counts);

}  // namespace runner::engine
