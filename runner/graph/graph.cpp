#include "runner/graph/graph.h"

#include <algorithm>
#include <array>
#include <limits>

namespace runner::graph {

namespace {

constexpr std::array<std::string_view, 8> kActivations = {
    "relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus"};

std::int64_t product(std::int64_t a, std::int64_t b, const std::string& what) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw ShapeError(what + " has more elements than fit 63 bits", {});
  return result;
}

std::string pair_text(const Pair& pair) {
  return std::to_string(pair[0]) + "x" + std::to_string(pair[1]);
}

/// Floor of the sliding-window formula of PyTorch's Conv2d and pooling.
std::int64_t window_count(std::int64_t size, std::int64_t kernel, std::int64_t stride,
                          std::int64_t padding, std::int64_t dilation) {
  return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

struct NameOf {
  std::string_view operator()(const Input&) const { return "input"; }
  std::string_view operator()(const Linear&) const { return "linear"; }
  std::string_view operator()(const Conv2d&) const { return "conv2d"; }
  std::string_view operator()(const BatchNorm&) const { return "batch_norm"; }
  std::string_view operator()(const LayerNorm&) const { return "layer_norm"; }
  std::string_view operator()(const Activation& op) const {
    return kActivations[static_cast<std::size_t>(op.kind)];
  }
  std::string_view operator()(const MaxPool2d&) const { return "max_pool2d"; }
  std::string_view operator()(const AvgPool2d&) const { return "avg_pool2d"; }
  std::string_view operator()(const GlobalAvgPool&) const { return "global_avg_pool"; }
  std::string_view operator()(const Flatten&) const { return "flatten"; }
  std::string_view operator()(const Dropout&) const { return "dropout"; }
  std::string_view operator()(const Add&) const { return "add"; }
};

}  // namespace

std::string to_text(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count = product(count, size, "the shape " + to_text(shape));
  return count;
}

std::string_view op_name(const Op& op) { return std::visit(NameOf{}, op); }

ActivationKind activation_from(std::string_view name) {
  const auto at = std::find(kActivations.begin(), kActivations.end(), name);
  if (at == kActivations.end()) throw std::logic_error("no activation '" + std::string(name) + "'");
  return static_cast<ActivationKind>(at - kActivations.begin());
}

std::int64_t Graph::parameter_count() const {
  std::int64_t count = 0;
  for (const Layer& layer : layers_) {
    for (const Parameter& p : layer.parameters) count += p.trainable ? element_count(p.shape) : 0;
  }
  return count;
}

std::int64_t Graph::buffer_count() const {
  std::int64_t count = 0;
  for (const Layer& layer : layers_) {
    for (const Parameter& p : layer.parameters) count += p.trainable ? 0 : element_count(p.shape);
  }
  return count;
}

std::int64_t Graph::flops() const {
  std::int64_t total = 0;
  for (const Layer& layer : layers_) total += layer.flops;
  return total;
}

std::int64_t Graph::activation_count() const {
  std::int64_t total = 0;
  for (const Layer& layer : layers_) {
    const bool is_view = std::holds_alternative<Flatten>(layer.op);
    if (!is_view) total += element_count(layer.output);
  }
  return total;
}

Builder::Builder(Shape input) {
  for (const std::int64_t size : input) {
    if (size < 1) throw ShapeError("an input of shape " + to_text(input) + " has no elements", {});
  }
  (void)element_count(input);
  Layer layer;
  layer.name = "input";
  layer.op = Input{};
  layer.output = std::move(input);
  layers_.push_back(std::move(layer));
}

void Builder::misfit(std::string_view name, const std::string& message, std::string_view option,
                     std::string help) const {
  std::string path = path_;
  if (!option.empty()) path += (path.empty() ? "" : ".") + std::string(option);
  throw ShapeError("layer '" + std::string(name) + "': " + message, path, std::move(help));
}

Builder::Node Builder::append(Layer layer) {
  for (const Layer& other : layers_) {
    if (other.name == layer.name)
      throw std::logic_error("two layers are called '" + layer.name + "'");
  }
  layer.path = path_;
  (void)element_count(layer.output);
  layers_.push_back(std::move(layer));
  return {layers_.size() - 1};
}

Builder::Node Builder::linear(std::string name, Node x, Linear op) {
  const Shape& in = shape(x);
  if (in.empty()) misfit(name, "linear needs features, and its input is one number a sample");
  if (op.out < 1)
    misfit(name, "linear needs at least one output, not " + std::to_string(op.out), "out");
  op.in = in.back();
  Layer layer{.name = std::move(name),
              .op = op,
              .inputs = {x.index},
              .output = in,
              .parameters = {},
              .flops = 0,
              .path = {}};
  layer.output.back() = op.out;
  layer.parameters.push_back({"weight", {op.out, op.in}});
  if (op.bias) layer.parameters.push_back({"bias", {op.out}});
  const std::int64_t rows = element_count(in) / op.in;
  layer.flops =
      product(rows * op.out, 2 * op.in + (op.bias ? 1 : 0), "the layer '" + layer.name + "'");
  return append(std::move(layer));
}

namespace {

/// Checks a window against its input and gives the two output sizes; `complain` reports a misfit.
template <class Complain>
Pair slide(const Shape& in, const Pair& kernel, const Pair& stride, const Pair& padding,
           const Pair& dilation, const Complain& complain) {
  Pair out{};
  for (std::size_t i = 0; i < 2; ++i) {
    if (kernel[i] < 1) complain("a kernel of " + pair_text(kernel) + " has no size", "kernel");
    if (stride[i] < 1) complain("a stride of " + pair_text(stride) + " doesn't move", "stride");
    if (padding[i] < 0) complain("a padding of " + pair_text(padding) + " is negative", "padding");
    if (dilation[i] < 1)
      complain("a dilation of " + pair_text(dilation) + " is below 1", "dilation");
    const std::int64_t size = in[i + 1];
    if (dilation[i] * (kernel[i] - 1) + 1 > size + 2 * padding[i]) {
      complain("a kernel of " + pair_text(kernel) + " doesn't fit into an input of shape " +
                   to_text(in) +
                   (padding[0] + padding[1] > 0 ? " padded by " + pair_text(padding) : ""),
               "kernel");
    }
    out[i] = window_count(size, kernel[i], stride[i], padding[i], dilation[i]);
  }
  return out;
}

}  // namespace

Builder::Node Builder::conv2d(std::string name, Node x, Conv2d op) {
  const Shape& in = shape(x);
  const auto complain = [&](const std::string& message, std::string_view option) {
    misfit(name, message, option);
  };
  if (in.size() != 3) {
    misfit(
        name,
        "conv2d needs an image [channels, height, width], and its input is of shape " + to_text(in),
        {}, "put it before any flatten, and give the dataset's images, not rows");
  }
  if (op.out < 1)
    complain("conv2d needs at least one output channel, not " + std::to_string(op.out), "out");
  op.in = in[0];
  if (op.groups < 1 || op.in % op.groups != 0 || op.out % op.groups != 0) {
    complain(std::to_string(op.groups) + " groups don't divide " + std::to_string(op.in) +
                 " input and " + std::to_string(op.out) + " output channels",
             "groups");
  }
  const Pair out = slide(in, op.kernel, op.stride, op.padding, op.dilation, complain);
  Layer layer{.name = name,
              .op = op,
              .inputs = {x.index},
              .output = {op.out, out[0], out[1]},
              .parameters = {},
              .flops = 0,
              .path = {}};
  layer.parameters.push_back({"weight", {op.out, op.in / op.groups, op.kernel[0], op.kernel[1]}});
  if (op.bias) layer.parameters.push_back({"bias", {op.out}});
  const std::int64_t each =
      2 * (op.in / op.groups) * op.kernel[0] * op.kernel[1] + (op.bias ? 1 : 0);
  layer.flops = product(element_count(layer.output), each, "the layer '" + name + "'");
  return append(std::move(layer));
}

Builder::Node Builder::batch_norm(std::string name, Node x, BatchNorm op) {
  const Shape& in = shape(x);
  if (in.size() != 1 && in.size() != 3) {
    misfit(name,
           "batch_norm needs [features] or [channels, height, width], and its input is of shape " +
               to_text(in));
  }
  op.features = in[0];
  Layer layer{.name = std::move(name),
              .op = op,
              .inputs = {x.index},
              .output = in,
              .parameters = {},
              .flops = 0,
              .path = {}};
  layer.parameters = {{"weight", {op.features}},
                      {"bias", {op.features}},
                      {"running_mean", {op.features}, false},
                      {"running_var", {op.features}, false},
                      {"num_batches_tracked", {}, false}};
  layer.flops = 4 * element_count(in);
  return append(std::move(layer));
}

Builder::Node Builder::layer_norm(std::string name, Node x, LayerNorm op) {
  const Shape& in = shape(x);
  if (in.empty()) misfit(name, "layer_norm needs features, and its input is one number a sample");
  op.features = in.back();
  Layer layer{.name = std::move(name),
              .op = op,
              .inputs = {x.index},
              .output = in,
              .parameters = {},
              .flops = 0,
              .path = {}};
  layer.parameters = {{"weight", {op.features}}, {"bias", {op.features}}};
  layer.flops = 8 * element_count(in);
  return append(std::move(layer));
}

Builder::Node Builder::activation(std::string name, Node x, ActivationKind kind) {
  return append({.name = std::move(name),
                 .op = Activation{kind},
                 .inputs = {x.index},
                 .output = shape(x),
                 .parameters = {},
                 .flops = element_count(shape(x)),
                 .path = {}});
}

Builder::Node Builder::max_pool2d(std::string name, Node x, MaxPool2d op) {
  const Shape& in = shape(x);
  if (in.size() != 3)
    misfit(name, "max_pool2d needs an image [channels, height, width], and its input is of shape " +
                     to_text(in));
  const auto complain = [&](const std::string& message, std::string_view option) {
    misfit(name, message, option);
  };
  const Pair out = slide(in, op.kernel, op.stride, op.padding, {1, 1}, complain);
  for (std::size_t i = 0; i < 2; ++i) {
    if (op.padding[i] * 2 > op.kernel[i])
      complain("padding of more than half the kernel", "padding");
  }
  Layer layer{.name = name,
              .op = op,
              .inputs = {x.index},
              .output = {in[0], out[0], out[1]},
              .parameters = {},
              .flops = 0,
              .path = {}};
  layer.flops = element_count(layer.output) * op.kernel[0] * op.kernel[1];
  return append(std::move(layer));
}

Builder::Node Builder::avg_pool2d(std::string name, Node x, AvgPool2d op) {
  const Shape& in = shape(x);
  if (in.size() != 3)
    misfit(name, "avg_pool2d needs an image [channels, height, width], and its input is of shape " +
                     to_text(in));
  const auto complain = [&](const std::string& message, std::string_view option) {
    misfit(name, message, option);
  };
  const Pair out = slide(in, op.kernel, op.stride, op.padding, {1, 1}, complain);
  for (std::size_t i = 0; i < 2; ++i) {
    if (op.padding[i] * 2 > op.kernel[i])
      complain("padding of more than half the kernel", "padding");
  }
  Layer layer{.name = name,
              .op = op,
              .inputs = {x.index},
              .output = {in[0], out[0], out[1]},
              .parameters = {},
              .flops = 0,
              .path = {}};
  layer.flops = element_count(layer.output) * op.kernel[0] * op.kernel[1];
  return append(std::move(layer));
}

Builder::Node Builder::global_avg_pool(std::string name, Node x) {
  const Shape& in = shape(x);
  if (in.size() != 3)
    misfit(name,
           "global_avg_pool needs an image [channels, height, width], and its input is of shape " +
               to_text(in));
  return append({.name = std::move(name),
                 .op = GlobalAvgPool{},
                 .inputs = {x.index},
                 .output = {in[0]},
                 .parameters = {},
                 .flops = element_count(in),
                 .path = {}});
}

Builder::Node Builder::flatten(std::string name, Node x) {
  return append({.name = std::move(name),
                 .op = Flatten{},
                 .inputs = {x.index},
                 .output = {element_count(shape(x))},
                 .parameters = {},
                 .flops = 0,
                 .path = {}});
}

Builder::Node Builder::dropout(std::string name, Node x, double p) {
  if (!(p >= 0 && p < 1)) misfit(name, "dropout needs a share of 0 to below 1", "p");
  return append({.name = std::move(name),
                 .op = Dropout{p},
                 .inputs = {x.index},
                 .output = shape(x),
                 .parameters = {},
                 .flops = element_count(shape(x)),
                 .path = {}});
}

Builder::Node Builder::add(std::string name, Node a, Node b) {
  if (shape(a) != shape(b)) {
    misfit(name, "add needs two inputs of one shape, not " + to_text(shape(a)) + " and " +
                     to_text(shape(b)));
  }
  return append({.name = std::move(name),
                 .op = Add{},
                 .inputs = {a.index, b.index},
                 .output = shape(a),
                 .parameters = {},
                 .flops = element_count(shape(a)),
                 .path = {}});
}

Graph Builder::finish(Node output) && {
  if (output.index + 1 != layers_.size())
    throw std::logic_error("the output must be the layer added last");
  Graph graph;
  graph.layers_ = std::move(layers_);
  return graph;
}

}  // namespace runner::graph
