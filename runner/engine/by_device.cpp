#include "runner/engine/by_device.h"

#include <algorithm>

namespace runner::engine {

std::vector<std::pair<at::Device, std::vector<at::Tensor>>> by_device(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<at::Device, std::vector<at::Tensor>>> groups;
  for (const at::Tensor& tensor : tensors) {
    auto group = std::find_if(groups.begin(), groups.end(), [&tensor](const auto& each) {
      return each.first == tensor.device();
    });
    if (group == groups.end()) {
      groups.emplace_back(tensor.device(), std::vector<at::Tensor>{});
      group = std::prev(groups.end());
    }
    group->second.push_back(tensor);
  }
  return groups;
}

}  // namespace runner::engine
