// engine: kernels that work on a list of tensors want all of them on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace runner::engine {

/// The tensors of each device, in the order in which devices and tensors come first.
[[nodiscard]] std::vector<std::pair<at::Device, std::vector<at::Tensor>>> by_device(
    const std::vector<at::Tensor>& tensors);

}  // namespace runner::engine
