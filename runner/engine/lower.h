// engine: graph::Graph -> Network, tensors and a flat list of steps.
//
// Lowering happens once; a forward pass is then a loop over the steps, each one call into ATen.
// Parameters carry the names that torch.nn would give them ("conv1.weight"), so that a checkpoint
// opens in Python without a mapping.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
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

  /// A network on `device` for other rows of the same batches. On this network's own device its
  /// parameters are this one's memory, with gradients of their own; elsewhere they are copies.
  /// Buffers are copies.
  [[nodiscard]] Network replica(const at::Device& device) const;

  // A network in parts, for pipelines. Steps are the layers after the input, counted from 0; values
  // are what layers make, counted as the layers are, so that step i makes value i + 1 and value 0
  // is the input.
  using Values = std::vector<at::Tensor>;
  /// Steps [first, last): reads and extends `values`, one for each layer, and drops those that no
  /// later step reads. Threads may run parts that don't overlap at the same time.
  void forward_part(std::size_t first, std::size_t last, Values& values, bool training) const;
  /// Values that are made before a step and read by it or later, in order.
  [[nodiscard]] std::vector<std::size_t> values_across(std::size_t step) const;
  /// Moves the tensors of steps [first, last) to a device. Every handle to them follows, but no
  /// gradient and no optimizer state.
  void place(std::size_t first, std::size_t last, const at::Device& device);
  /// A step's copy on a device, as a network of this single step (number 0) whose values are
  /// counted as here. Its passes change nothing in this network and take no random numbers from
  /// anywhere.
  [[nodiscard]] Network copy_step(std::size_t step, const at::Device& device) const;

  /// What the network was made from.
  [[nodiscard]] const graph::Graph& graph() const { return graph_; }

  /// Takes the random numbers of each dropout layer from the generator that `of` gives for its
  /// number, counted from 0. Without this they come from the device's default one.
  void set_dropout_generators(const std::function<at::Generator(std::size_t)>& of);
  /// Adds up a tensor over the processes of a run, in place.
  using Sum = std::function<void(at::Tensor)>;
  /// Makes batch statistics those of the batches of all processes together.
  void share_batch_statistics(Sum sum) { sum_ = std::move(sum); }
  /// Whether the samples of the next forward passes are part of shared batch statistics; a process
  /// without samples of its own passes a stand-in that isn't.
  void set_counts(bool counts) { counts_ = counts; }

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
    std::optional<at::Generator> generator = {};  ///< of a dropout layer, if not the default one
  };

  Network() = default;
  [[nodiscard]] at::Tensor run(const Step& step, const Values& values, bool in_place,
                               bool training) const;

  graph::Graph graph_;
  std::vector<Step> steps_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  Sum sum_;  ///< empty: each process has its own batch statistics
  bool counts_ = true;
  Values values_;  ///< scratch of a forward pass
};

/// Makes the network's tensors (dtype and device of `options`) and steps. Weights are initialised
/// as torch.nn does: layer by layer from the default CPU generator, so that after
/// at::manual_seed(s) they equal those of the same modules built in Python after
/// torch.manual_seed(s), on any device.
[[nodiscard]] Network lower(const graph::Graph& graph, const at::TensorOptions& options);

}  // namespace runner::engine
