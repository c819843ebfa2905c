// graph: a model as data.
//
// A model is a list of layers in the order of execution, each with its inputs, output shape,
// parameters and cost, all known without LibTorch: `--check` finds a shape that doesn't fit,
// `--summary` prints the table, the plan estimates memory, and the engine lowers the list once to
// tensors and a flat loop. Shapes never include the batch dimension.
//
//   Builder g({1, 28, 28});
//   auto x = g.conv2d("conv1", g.input(), {.out = 6, .kernel = {5, 5}});
//   x = g.linear("fc", g.flatten("flatten", g.relu("relu1", x)), {.out = 10});
//   Graph graph = std::move(g).finish(x);
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_set>
#include <variant>
#include <vector>

namespace runner::graph {

/// Sizes without the batch dimension; {} is one number a sample.
using Shape = std::vector<std::int64_t>;
using Pair = std::array<std::int64_t, 2>;  ///< height, width

/// Largest element count of one tensor: far above any memory, low enough that sums of a model's
/// counts and byte sizes stay within 63 bits.
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 47;

/// "[1, 28, 28]".
[[nodiscard]] std::string to_text(const Shape& shape);
/// Product of the sizes; 1 for {}. Throws ShapeError when it overflows 63 bits.
[[nodiscard]] std::int64_t element_count(const Shape& shape);

struct Input {};
/// y = x Wᵀ + b over the last dimension; weight [out, in], bias [out].
struct Linear {
  std::int64_t in = 0;  ///< filled by the builder
  std::int64_t out = 0;
  bool bias = true;
};
/// Cross-correlation of [in, h, w]; weight [out, in / groups, kh, kw], bias [out].
struct Conv2d {
  std::int64_t in = 0;  ///< filled by the builder
  std::int64_t out = 0;
  Pair kernel = {3, 3};
  Pair stride = {1, 1};
  Pair padding = {0, 0};
  Pair dilation = {1, 1};
  std::int64_t groups = 1;
  bool bias = true;
};
/// Over dimension 0 of [features] or [features, h, w]; weight, bias, running_mean, running_var
/// [features], num_batches_tracked [].
struct BatchNorm {
  std::int64_t features = 0;  ///< filled by the builder
  double eps = 1e-5;
  double momentum = 0.1;
};
/// Over the last dimension; weight and bias [features].
struct LayerNorm {
  std::int64_t features = 0;  ///< filled by the builder
  double eps = 1e-5;
};
enum class ActivationKind { relu, leaky_relu, elu, gelu, silu, tanh, sigmoid, softplus };
struct Activation {
  ActivationKind kind = ActivationKind::relu;
};
struct MaxPool2d {
  Pair kernel = {2, 2};
  Pair stride = {2, 2};
  Pair padding = {0, 0};
};
struct AvgPool2d {
  Pair kernel = {2, 2};
  Pair stride = {2, 2};
  Pair padding = {0, 0};
};
struct GlobalAvgPool {};  ///< [c, h, w] -> [c]
struct Flatten {};        ///< any -> [product]
struct Dropout {
  double p = 0.5;  ///< share of the elements zeroed in training, 0 to below 1
};
struct Add {};  ///< sum of two inputs of one shape

using Op = std::variant<Input, Linear, Conv2d, BatchNorm, LayerNorm, Activation, MaxPool2d,
                        AvgPool2d, GlobalAvgPool, Flatten, Dropout, Add>;

/// "linear", "conv2d", "relu", …: the word that `sequential` takes as a layer's type.
[[nodiscard]] std::string_view op_name(const Op& op);

/// A tensor that a layer owns; its full name is "<layer>.<name>", as PyTorch would call it.
struct Parameter {
  std::string name;  ///< "weight", "bias", "running_mean", …
  Shape shape;
  bool trainable = true;  ///< false for a buffer (running statistics)
};

struct Layer {
  std::string name;  ///< unique, dotted: "layer1.0.conv1"
  Op op;
  std::vector<std::size_t> inputs;  ///< indices of earlier layers
  Shape output;
  std::vector<Parameter> parameters;
  std::int64_t flops = 0;  ///< of one sample's forward pass, see Graph::flops
  std::string path;        ///< the option it comes from, "layers[3]" or "hidden"; may be empty
};

/// A layer that can't take its input. `path` names the option at fault ("layers[2].kernel",
/// "hidden[1]"), relative to the [model] table; empty when there is no single one.
class ShapeError : public std::runtime_error {
 public:
  ShapeError(const std::string& message, std::string path, std::string help = {})
      : std::runtime_error(message), path_(std::move(path)), help_(std::move(help)) {}
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& help() const { return help_; }

 private:
  std::string path_;
  std::string help_;
};

/// An immutable, checked list of layers; layer 0 is the Input, the last one the output.
class Graph {
 public:
  [[nodiscard]] const std::vector<Layer>& layers() const { return layers_; }
  [[nodiscard]] const Shape& input() const { return layers_.front().output; }
  [[nodiscard]] const Shape& output() const { return layers_.back().output; }
  [[nodiscard]] std::int64_t parameter_count() const;  ///< trainable elements
  [[nodiscard]] std::int64_t buffer_count() const;     ///< elements that are kept but not trained
  /// Forward pass of one sample. linear and conv2d: 2 a multiply-add and 1 a bias; batch_norm 4 and
  /// layer_norm 8 an element; pools 1 for each element of each window; activations, dropout and
  /// add 1 an element.
  [[nodiscard]] std::int64_t flops() const;
  /// Elements of one sample that are in memory when the forward pass of training ends: the input,
  /// the output, and what each layer keeps for its backward pass, each tensor once. linear, conv2d,
  /// norms and avg_pool2d keep their input; relu, tanh and sigmoid their output, other activations
  /// their input; max_pool2d its input and its 64-bit indices, which count twice; dropout its mask.
  /// add, flatten (a view) and global_avg_pool keep nothing.
  [[nodiscard]] std::int64_t activation_count() const;
  /// The same, by the layer that makes each tensor.
  [[nodiscard]] std::vector<std::int64_t> activation_counts() const;

 private:
  friend class Builder;
  std::vector<Layer> layers_;
};

/// Builds a Graph, inferring each shape as the layer is added; throws ShapeError at the first layer
/// that doesn't fit (later ones would only be consequences).
class Builder {
 public:
  /// A handle to a layer's output.
  struct Node {
    std::size_t index;
  };
  /// Throws ShapeError for an input without elements or of more than kMostElements.
  explicit Builder(Shape input);

  [[nodiscard]] Node input() const { return {0}; }
  [[nodiscard]] const Shape& shape(Node node) const { return layers_[node.index].output; }
  /// The option that the layers added from now on come from; for the diagnostics' place.
  void at(std::string path) {
    path_ = std::move(path);
    has_options_ = false;
  }
  /// The table that holds the next layers' own options ("layers[2]"; "" for the model's): a misfit
  /// of the kernel is then at "layers[2].kernel".
  void at_table(std::string path) {
    path_ = std::move(path);
    has_options_ = true;
  }

  // Each throws ShapeError for a misfit, std::logic_error for a name that is taken.
  Node linear(std::string name, Node x, Linear op);
  Node conv2d(std::string name, Node x, Conv2d op);
  Node batch_norm(std::string name, Node x, BatchNorm op = {});
  Node layer_norm(std::string name, Node x, LayerNorm op = {});
  Node activation(std::string name, Node x, ActivationKind kind);
  Node relu(std::string name, Node x) {
    return activation(std::move(name), x, ActivationKind::relu);
  }
  Node max_pool2d(const std::string& name, Node x, MaxPool2d op = {});
  Node avg_pool2d(const std::string& name, Node x, AvgPool2d op = {});
  Node global_avg_pool(std::string name, Node x);
  Node flatten(std::string name, Node x);
  Node dropout(std::string name, Node x, double p);
  Node add(std::string name, Node a, Node b);

  /// The graph whose output is `output`, which must be the layer added last.
  [[nodiscard]] Graph finish(Node output) &&;

 private:
  Node append(Layer layer);
  template <class Op>
  Node pool2d(const std::string& name, Node x, const Op& op);
  /// A layer over x that keeps its shape and owns nothing.
  [[nodiscard]] Layer over(std::string name, Op op, Node x) const;
  /// `factors` and `more`: the operations at each element of the output are their product + more.
  void count_flops(Layer& layer, const std::vector<std::int64_t>& factors,
                   std::int64_t more = 0) const;
  void need_size(const Layer& layer) const;
  void need_features(const Layer& layer) const;
  void need_image(const Layer& layer) const;
  [[noreturn]] void misfit(const Layer& layer, const std::string& message,
                           std::string_view option = {}, std::string help = {}) const;

  std::vector<Layer> layers_;
  std::unordered_set<std::string> names_;
  std::string path_;
  bool has_options_ = false;
};

/// relu, gelu, … by name; for a model's `activation` option. Throws std::logic_error for another
/// name: the option's choices are these.
[[nodiscard]] ActivationKind activation_from(std::string_view name);

}  // namespace runner::graph
