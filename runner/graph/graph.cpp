#include "runner/graph/graph.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

namespace runner::graph {

namespace {

constexpr std::array<std::string_view, 8> kActivations = {
    "relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus"};

/// Largest kernel, stride, padding and dilation: LibTorch's kernels index windows with 32 bits.
constexpr std::int64_t kLargestWindow = (std::int64_t{1} << 31) - 1;

/// Nothing on overflow.
std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return {};
  return result;
}

/// Nothing when the product doesn't fit 63 bits.
std::optional<std::int64_t> count_of(const Shape& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::optional<std::int64_t> count = 1;
  for (const std::int64_t size : shape) {
    count = product(*count, size);
    if (!count) return {};
  }
  return count;
}

std::string pair_text(const Pair& pair) {
  return std::to_string(pair[0]) + "x" + std::to_string(pair[1]);
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

/// What autograd keeps of one layer, as Graph::activation_count counts it.
struct Kept {
  bool input = false;
  bool output = false;
  std::int64_t more = 0;  ///< elements of tensors of its own
};

Kept kept_by(const Layer& layer, const Shape& input) {
  struct {
    const Layer& layer;
    const Shape& input;
    Kept operator()(const Input&) const { return {.output = true}; }
    Kept operator()(const Linear&) const { return {.input = true}; }
    Kept operator()(const Conv2d&) const { return {.input = true}; }
    Kept operator()(const BatchNorm&) const { return {.input = true}; }
    Kept operator()(const LayerNorm& op) const {
      return {.input = true, .more = 2 * (element_count(input) / op.features)};  // mean, 1 / std
    }
    Kept operator()(const Activation& op) const {
      const bool from_output = op.kind == ActivationKind::relu || op.kind == ActivationKind::tanh ||
                               op.kind == ActivationKind::sigmoid;
      return {.input = !from_output, .output = from_output};
    }
    Kept operator()(const MaxPool2d&) const {
      return {.input = true, .more = 2 * element_count(layer.output)};
    }
    Kept operator()(const AvgPool2d&) const { return {.input = true}; }
    Kept operator()(const GlobalAvgPool&) const { return {}; }
    Kept operator()(const Flatten&) const { return {}; }
    Kept operator()(const Dropout& op) const {
      return {.more = op.p > 0 ? element_count(layer.output) : 0};
    }
    Kept operator()(const Add&) const { return {}; }
  } visitor{layer, input};
  return std::visit(visitor, layer.op);
}

/// Whether the output is the input's memory under another shape.
bool is_view(const Op& op) {
  const auto* dropout = std::get_if<Dropout>(&op);
  return std::holds_alternative<Flatten>(op) || (dropout != nullptr && dropout->p == 0);
}

}  // namespace

std::string to_text(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + "]";
}

std::int64_t element_count(const Shape& shape) {
  const std::optional<std::int64_t> count = count_of(shape);
  if (!count) throw ShapeError("the shape " + to_text(shape) + " has more than 2^63 elements", {});
  return *count;
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
  for (const std::int64_t count : activation_counts()) total += count;
  return total;
}

std::vector<std::int64_t> Graph::activation_counts() const {
  std::vector<std::size_t> storage(layers_.size());  // the layer whose memory an output is
  std::vector<bool> is_kept(layers_.size(), false);
  std::vector<std::int64_t> counts(layers_.size(), 0);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    storage[i] = is_view(layer.op) ? storage[layer.inputs.front()] : i;
    const std::size_t input = layer.inputs.empty() ? i : layer.inputs.front();
    const Kept kept = kept_by(layer, layers_[input].output);
    if (kept.input) is_kept[storage[input]] = true;
    if (kept.output) is_kept[storage[i]] = true;
    counts[i] += kept.more;
  }
  is_kept[storage.back()] = true;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (is_kept[i]) counts[i] += element_count(layers_[i].output);
  }
  return counts;
}

Builder::Builder(Shape input) {
  for (const std::int64_t size : input) {
    if (size < 1) throw ShapeError("an input of shape " + to_text(input) + " has no elements", {});
  }
  Layer layer;
  layer.name = "input";
  layer.output = std::move(input);
  append(std::move(layer));
}

void Builder::misfit(const Layer& layer, const std::string& message, std::string_view option,
                     std::string help) const {
  std::string path = path_;
  if (has_options_ && !option.empty()) path += (path.empty() ? "" : ".") + std::string(option);
  throw ShapeError("layer '" + layer.name + "' (" + std::string(op_name(layer.op)) + ") " + message,
                   path, std::move(help));
}

Layer Builder::over(std::string name, Op op, Node x) const {
  return {.name = std::move(name),
          .op = op,
          .inputs = {x.index},
          .output = shape(x),
          .parameters = {},
          .flops = 0,
          .path = {}};
}

void Builder::need_size(const Layer& layer) const {
  const auto check = [&](const std::string& what, const Shape& shape) {
    const std::optional<std::int64_t> count = count_of(shape);
    if (count && *count <= kMostElements) return;
    misfit(layer, "is too large: its " + what + " " + to_text(shape) + " has over 2^47 elements");
  };
  check("output", layer.output);
  for (const Parameter& parameter : layer.parameters) check(parameter.name, parameter.shape);
}

Builder::Node Builder::append(Layer layer) {
  need_size(layer);
  if (!names_.insert(layer.name).second) {
    throw std::logic_error("two layers are called '" + layer.name + "'");
  }
  layer.path = path_;
  layers_.push_back(std::move(layer));
  return {layers_.size() - 1};
}

void Builder::count_flops(Layer& layer, const std::vector<std::int64_t>& factors,
                          std::int64_t more) const {
  need_size(layer);
  std::optional<std::int64_t> each = 1;
  for (const std::int64_t factor : factors) each = each ? product(*each, factor) : each;
  const bool fits = each && !__builtin_add_overflow(*each, more, &*each);
  const auto flops = fits ? product(element_count(layer.output), *each) : std::nullopt;
  if (!flops) misfit(layer, "is too large: it takes over 2^63 operations");
  layer.flops = *flops;
}

void Builder::need_features(const Layer& layer) const {
  if (!layer.output.empty()) return;
  misfit(layer, "needs features, and its input is one number a sample", {},
         "put a flatten layer before it, which makes that [1]");
}

void Builder::need_image(const Layer& layer) const {
  if (layer.output.size() == 3) return;
  misfit(layer,
         "needs an image [channels, height, width], and its input is " + to_text(layer.output), {},
         "put it before any flatten, and choose a dataset of images");
}

Builder::Node Builder::linear(std::string name, Node x, Linear op) {
  Layer layer = over(std::move(name), op, x);
  need_features(layer);
  if (op.out < 1) misfit(layer, "needs at least 1 output, not " + std::to_string(op.out), "out");
  op.in = layer.output.back();
  layer.op = op;
  layer.output.back() = op.out;
  layer.parameters.push_back({"weight", {op.out, op.in}});
  if (op.bias) layer.parameters.push_back({"bias", {op.out}});
  count_flops(layer, {2, op.in}, op.bias ? 1 : 0);
  return append(std::move(layer));
}

namespace {

/// A window that slides over an image.
struct Window {
  Pair kernel;
  Pair stride;
  Pair padding;
  Pair dilation = {1, 1};
};

/// Why a layer can't slide its window, in the words of a ShapeError.
struct WindowFault {
  std::string message;
  std::string_view option;
  std::string help;
};

std::optional<WindowFault> out_of_range(const Window& window) {
  const auto holds = [](const Pair& pair, std::int64_t least) {
    return std::min(pair[0], pair[1]) >= least && std::max(pair[0], pair[1]) <= kLargestWindow;
  };
  const auto fault = [](std::string_view option, const Pair& pair, int least) {
    return WindowFault{
        "has a " + std::string(option) + " of " + pair_text(pair), option,
        "a " + std::string(option) + " is at least " + std::to_string(least) + " and below 2^31"};
  };
  if (!holds(window.kernel, 1)) return fault("kernel", window.kernel, 1);
  if (!holds(window.stride, 1)) return fault("stride", window.stride, 1);
  if (!holds(window.padding, 0)) return fault("padding", window.padding, 0);
  if (!holds(window.dilation, 1)) return fault("dilation", window.dilation, 1);
  return {};
}

std::string too_large_text(const Window& window, const Shape& image, const Pair& reach,
                           const Pair& padded) {
  std::string text = "has a kernel of " + pair_text(window.kernel);
  if (reach != window.kernel) text += " dilated to " + pair_text(reach);
  text += ", and its input is " + to_text(image);
  if (window.padding != Pair{0, 0}) text += " padded to " + pair_text(padded);
  return text;
}

/// Height and width of the output: PyTorch's formula, rounded down.
std::variant<Pair, WindowFault> slide(const Window& window, const Shape& image) {
  if (auto fault = out_of_range(window)) return *fault;
  Pair padded{}, reach{}, largest{}, out{};
  for (std::size_t i = 0; i < 2; ++i) {
    padded[i] = image[i + 1] + 2 * window.padding[i];
    reach[i] = window.dilation[i] * (window.kernel[i] - 1) + 1;
    largest[i] = (padded[i] - 1) / window.dilation[i] + 1;
    out[i] = (padded[i] - reach[i]) / window.stride[i] + 1;
  }
  if (reach[0] <= padded[0] && reach[1] <= padded[1]) return out;
  return WindowFault{too_large_text(window, image, reach, padded), "kernel",
                     "a kernel of at most " + pair_text(largest) +
                         " fits; so would more padding, a larger image, or fewer pools and "
                         "strides before it"};
}

}  // namespace

Builder::Node Builder::conv2d(std::string name, Node x, Conv2d op) {
  Layer layer = over(std::move(name), op, x);
  need_image(layer);
  if (op.out < 1) {
    misfit(layer, "needs at least 1 output channel, not " + std::to_string(op.out), "out");
  }
  op.in = shape(x)[0];
  if (op.groups < 1 || op.in % op.groups != 0 || op.out % op.groups != 0) {
    misfit(layer,
           "has " + std::to_string(op.groups) + " groups, which don't divide its " +
               std::to_string(op.in) + " input channels and " + std::to_string(op.out) +
               " output channels",
           "groups", "groups must divide " + std::to_string(std::gcd(op.in, op.out)));
  }
  const auto size = slide({op.kernel, op.stride, op.padding, op.dilation}, shape(x));
  if (const auto* fault = std::get_if<WindowFault>(&size)) {
    misfit(layer, fault->message, fault->option, fault->help);
  }
  const Pair& out = std::get<Pair>(size);
  layer.op = op;
  layer.output = {op.out, out[0], out[1]};
  layer.parameters.push_back({"weight", {op.out, op.in / op.groups, op.kernel[0], op.kernel[1]}});
  if (op.bias) layer.parameters.push_back({"bias", {op.out}});
  count_flops(layer, {2, op.in / op.groups, op.kernel[0], op.kernel[1]}, op.bias ? 1 : 0);
  return append(std::move(layer));
}

Builder::Node Builder::batch_norm(std::string name, Node x, BatchNorm op) {
  Layer layer = over(std::move(name), op, x);
  const Shape& in = layer.output;
  if (in.size() != 1 && in.size() != 3) {
    misfit(layer, "needs [features] or [channels, height, width], and its input is " + to_text(in),
           {}, "use layer_norm, or put a flatten layer before it");
  }
  op.features = in[0];
  layer.op = op;
  layer.parameters = {{"weight", {op.features}},
                      {"bias", {op.features}},
                      {"running_mean", {op.features}, false},
                      {"running_var", {op.features}, false},
                      {"num_batches_tracked", {}, false}};
  layer.flops = 4 * element_count(in);
  return append(std::move(layer));
}

Builder::Node Builder::layer_norm(std::string name, Node x, LayerNorm op) {
  Layer layer = over(std::move(name), op, x);
  need_features(layer);
  op.features = layer.output.back();
  layer.op = op;
  layer.parameters = {{"weight", {op.features}}, {"bias", {op.features}}};
  layer.flops = 8 * element_count(layer.output);
  return append(std::move(layer));
}

Builder::Node Builder::activation(std::string name, Node x, ActivationKind kind) {
  Layer layer = over(std::move(name), Activation{kind}, x);
  layer.flops = element_count(layer.output);
  return append(std::move(layer));
}

template <class Op>
Builder::Node Builder::pool2d(const std::string& name, Node x, const Op& op) {
  Layer layer = over(name, op, x);
  need_image(layer);
  const auto size = slide({op.kernel, op.stride, op.padding}, shape(x));
  if (const auto* fault = std::get_if<WindowFault>(&size)) {
    misfit(layer, fault->message, fault->option, fault->help);
  }
  if (2 * op.padding[0] > op.kernel[0] || 2 * op.padding[1] > op.kernel[1]) {
    misfit(layer,
           "has a padding of " + pair_text(op.padding) + " and a kernel of " + pair_text(op.kernel),
           "padding", "a pool's padding is at most half its kernel");
  }
  const Pair& out = std::get<Pair>(size);
  layer.output = {shape(x)[0], out[0], out[1]};
  count_flops(layer, {op.kernel[0], op.kernel[1]});
  return append(std::move(layer));
}

Builder::Node Builder::max_pool2d(const std::string& name, Node x, MaxPool2d op) {
  return pool2d(name, x, op);
}

Builder::Node Builder::avg_pool2d(const std::string& name, Node x, AvgPool2d op) {
  return pool2d(name, x, op);
}

Builder::Node Builder::global_avg_pool(std::string name, Node x) {
  Layer layer = over(std::move(name), GlobalAvgPool{}, x);
  need_image(layer);
  layer.flops = element_count(layer.output);
  layer.output = {layer.output[0]};
  return append(std::move(layer));
}

Builder::Node Builder::flatten(std::string name, Node x) {
  Layer layer = over(std::move(name), Flatten{}, x);
  layer.output = {element_count(layer.output)};
  return append(std::move(layer));
}

Builder::Node Builder::dropout(std::string name, Node x, double p) {
  Layer layer = over(std::move(name), Dropout{p}, x);
  if (!(p >= 0 && p < 1)) {
    misfit(layer, "zeroes a share of " + std::to_string(p), "p", "the share is 0 to below 1");
  }
  layer.flops = element_count(layer.output);
  return append(std::move(layer));
}

Builder::Node Builder::add(std::string name, Node a, Node b) {
  Layer layer = over(std::move(name), Add{}, a);
  if (shape(a) != shape(b)) {
    misfit(layer,
           "needs two inputs of one shape, and they are " + to_text(shape(a)) + " and " +
               to_text(shape(b)),
           {}, "give both branches the same channels and strides");
  }
  layer.inputs.push_back(b.index);
  layer.flops = element_count(layer.output);
  return append(std::move(layer));
}

Graph Builder::finish(Node output) && {
  if (output.index + 1 != layers_.size()) {
    throw std::logic_error("the output must be the layer added last");
  }
  std::int64_t flops = 0;
  for (const Layer& layer : layers_) {
    if (__builtin_add_overflow(flops, layer.flops, &flops)) {
      throw ShapeError("the model takes more than 2^63 operations", {});
    }
  }
  Graph graph;
  graph.layers_ = std::move(layers_);
  return graph;
}

}  // namespace runner::graph
