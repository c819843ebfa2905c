// engine: graph::Graph -> Network, tensors and a flat list of steps.
//
// Lowering happens once; a forward pass is then a loop over the steps, each one call into ATen.
// Parameters carry the names that torch.nn would give them ("conv1.weight"), so that a checkpoint
// opens in Python without a mapping.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/graph/graph.h"

namespace runner::engine {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A lowered model. Movable, not copyable: optimizers hold its tensors.
class Network {
 public:
  Network(Network&&) = default;
  Network& operator=(Network&&) = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Output of a batch [n, input...] in the network's dtype (or one that autocast takes).
  /// `training` turns dropout on, and batch statistics, which it also updates.
  [[nodiscard]] at::Tensor forward(const at::Tensor& inputs, bool training);

  /// Leaves that require gradients, in the order of the layers.
  [[nodiscard]] const std::vector<NamedTensor>& parameters() const { return parameters_; }
  /// Running statistics.
  [[nodiscard]] const std::vector<NamedTensor>& buffers() const { return buffers_; }
  /// Parameters and buffers, as a checkpoint's weights file holds them.
  [[nodiscard]] std::vector<NamedTensor> state() const;
  /// Copies `state` into the network. Throws diag::Error (incompatible) naming the first tensor
  /// that is missing, left over, or of another shape or dtype.
  void load_state(const std::vector<NamedTensor>& state);

 private:
  friend Network lower(const graph::Graph& graph, const at::TensorOptions& options);

  /// One call into ATen.
  struct Step {
    graph::Op op;
    std::size_t output = 0;             ///< the value it makes
    std::vector<std::size_t> inputs;    ///< the values it reads
    std::vector<std::size_t> released;  ///< the values that nobody reads after it
    std::vector<at::Tensor> tensors;    ///< its parameters and buffers, in the layer's order
    bool in_place = false;              ///< overwrites its input
  };

  Network() = default;
  [[nodiscard]] at::Tensor run(const Step& step, bool training);

  std::vector<Step> steps_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  std::vector<at::Tensor> values_;  ///< scratch of a forward pass, by layer
};

/// Makes the network's tensors (dtype and device of `options`) and steps. Weights are initialised
/// as torch.nn does: layer by layer from the default CPU generator, so that after
/// at::manual_seed(s) they equal those of the same modules built in Python after
/// torch.manual_seed(s), on any device.
[[nodiscard]] Network lower(const graph::Graph& graph, const at::TensorOptions& options);

}  // namespace runner::engine
