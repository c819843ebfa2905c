#include "models/support/layers.h"

#include <optional>

namespace runner::models {

namespace {

using graph::Builder;
using graph::Pair;
using registry::Value;

struct LinearOptions {
  std::optional<std::int64_t> out;  ///< needed; read_layers sees to it
  bool bias = true;
};
constexpr auto kLinear = registry::rows<LinearOptions>({
    {.name = "out",
     .member = &LinearOptions::out,
     .doc = "outputs",
     .range = registry::at_least(1)},
    {.name = "bias", .member = &LinearOptions::bias, .doc = "add a learned number to each output"},
});
static_assert(registry::covers<LinearOptions>(kLinear));

struct ConvOptions {
  std::optional<std::int64_t> out;  ///< needed; read_layers sees to it
  Value kernel = 3;
  Value stride = 1;
  Value padding = 0;
  Value dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};
constexpr auto kConv = registry::rows<ConvOptions>({
    {.name = "out",
     .member = &ConvOptions::out,
     .doc = "output channels",
     .range = registry::at_least(1)},
    {.name = "kernel",
     .member = &ConvOptions::kernel,
     .doc = "size of the kernel",
     .range = registry::at_least(1),
     .type = kPairType},
    {.name = "stride",
     .member = &ConvOptions::stride,
     .doc = "pixels from one window to the next",
     .range = registry::at_least(1),
     .type = kPairType},
    {.name = "padding",
     .member = &ConvOptions::padding,
     .doc = "zeros on each side",
     .range = registry::at_least(0),
     .type = kPairType},
    {.name = "dilation",
     .member = &ConvOptions::dilation,
     .doc = "pixels from one kernel element to the next",
     .range = registry::at_least(1),
     .type = kPairType},
    {.name = "groups",
     .member = &ConvOptions::groups,
     .doc = "parts of the channels that don't see each other",
     .range = registry::at_least(1)},
    {.name = "bias",
     .member = &ConvOptions::bias,
     .doc = "add a learned number to each output channel"},
});
static_assert(registry::covers<ConvOptions>(kConv));

struct PoolOptions {
  Value kernel = 2;
  Value stride;
  Value padding = 0;
};
constexpr auto kPool = registry::rows<PoolOptions>({
    {.name = "kernel",
     .member = &PoolOptions::kernel,
     .doc = "size of the window",
     .range = registry::at_least(1),
     .type = kPairType},
    {.name = "stride",
     .member = &PoolOptions::stride,
     .doc = "pixels from one window to the next; the kernel when absent",
     .range = registry::at_least(1),
     .type = kPairType},
    {.name = "padding",
     .member = &PoolOptions::padding,
     .doc = "pixels on each side, at most half the kernel",
     .range = registry::at_least(0),
     .type = kPairType},
});
static_assert(registry::covers<PoolOptions>(kPool));

struct NormOptions {
  double eps = 1e-5;
};
constexpr auto kNorm = registry::rows<NormOptions>({
    {.name = "eps",
     .member = &NormOptions::eps,
     .doc = "added to the variance",
     .range = registry::above(0)},
});
static_assert(registry::covers<NormOptions>(kNorm));

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;
};
constexpr auto kBatchNorm = registry::rows<BatchNormOptions>({
    {.name = "eps",
     .member = &BatchNormOptions::eps,
     .doc = "added to the variance",
     .range = registry::above(0)},
    {.name = "momentum",
     .member = &BatchNormOptions::momentum,
     .doc = "share of each batch in the running statistics",
     .range = registry::between(0, 1)},
});
static_assert(registry::covers<BatchNormOptions>(kBatchNorm));

struct DropoutOptions {
  double p = 0.5;
};
constexpr auto kDropout = registry::rows<DropoutOptions>({
    {.name = "p",
     .member = &DropoutOptions::p,
     .doc = "share of the elements zeroed in training",
     .range = registry::from_to_below(0, 1)},
});
static_assert(registry::covers<DropoutOptions>(kDropout));

struct NoOptions {};
constexpr std::array<registry::Row<NoOptions>, 0> kNoRows = {};

template <class Op>
Op pool_op(const PoolOptions& o) {
  const Pair kernel = *read_pair(o.kernel);
  return {.kernel = kernel,
          .stride = read_pair(o.stride).value_or(kernel),
          .padding = *read_pair(o.padding)};
}

template <class O, std::size_t N>
LayerType layer_type(std::string_view name, std::string_view doc,
                     const std::array<registry::Row<O>, N>& rows,
                     Builder::Node (*add)(Builder&, std::string, Builder::Node, const O&)) {
  LayerType type;
  type.name = name;
  type.doc = doc;
  type.options = &registry::table_of<O>(rows);
  type.defaults = O{};
  type.add = [add](Builder& g, std::string layer, Builder::Node x, const std::any& options) {
    return add(g, std::move(layer), x, std::any_cast<const O&>(options));
  };
  return type;
}

template <graph::ActivationKind kind>
Builder::Node activate(Builder& g, std::string name, Builder::Node x, const NoOptions&) {
  return g.activation(std::move(name), x, kind);
}

registry::Catalog<LayerType> build() {
  using Kind = graph::ActivationKind;
  using Name = std::string;
  using Node = Builder::Node;
  registry::Catalog<LayerType> all;
  all.add(layer_type<LinearOptions>("linear", "every output a weighted sum of every input", kLinear,
                                    [](Builder& g, Name n, Node x, const LinearOptions& o) {
                                      return g.linear(std::move(n), x,
                                                      {.out = *o.out, .bias = o.bias});
                                    }));
  all.add(layer_type<ConvOptions>("conv2d", "convolution over an image", kConv,
                                  [](Builder& g, Name n, Node x, const ConvOptions& o) {
                                    return g.conv2d(std::move(n), x,
                                                    {.out = *o.out,
                                                     .kernel = *read_pair(o.kernel),
                                                     .stride = *read_pair(o.stride),
                                                     .padding = *read_pair(o.padding),
                                                     .dilation = *read_pair(o.dilation),
                                                     .groups = o.groups,
                                                     .bias = o.bias});
                                  }));
  all.add(layer_type<BatchNormOptions>(
      "batch_norm", "normalise each channel over the batch", kBatchNorm,
      [](Builder& g, Name n, Node x, const BatchNormOptions& o) {
        return g.batch_norm(std::move(n), x, {.eps = o.eps, .momentum = o.momentum});
      }));
  all.add(layer_type<NormOptions>("layer_norm", "normalise each sample over its last dimension",
                                  kNorm, [](Builder& g, Name n, Node x, const NormOptions& o) {
                                    return g.layer_norm(std::move(n), x, {.eps = o.eps});
                                  }));
  all.add(
      layer_type<PoolOptions>("max_pool2d", "largest value of each window", kPool,
                              // NOLINTNEXTLINE(performance-unnecessary-value-param): as the others
                              [](Builder& g, Name n, Node x, const PoolOptions& o) {
                                return g.max_pool2d(n, x, pool_op<graph::MaxPool2d>(o));
                              }));
  all.add(
      layer_type<PoolOptions>("avg_pool2d", "mean of each window", kPool,
                              // NOLINTNEXTLINE(performance-unnecessary-value-param): as the others
                              [](Builder& g, Name n, Node x, const PoolOptions& o) {
                                return g.avg_pool2d(n, x, pool_op<graph::AvgPool2d>(o));
                              }));
  all.add(layer_type<NoOptions>("global_avg_pool", "mean of each channel", kNoRows,
                                [](Builder& g, Name n, Node x, const NoOptions&) {
                                  return g.global_avg_pool(std::move(n), x);
                                }));
  all.add(layer_type<NoOptions>(
      "flatten", "all dimensions as one", kNoRows,
      [](Builder& g, Name n, Node x, const NoOptions&) { return g.flatten(std::move(n), x); }));
  all.add(layer_type<DropoutOptions>("dropout", "zeroes elements at random in training", kDropout,
                                     [](Builder& g, Name n, Node x, const DropoutOptions& o) {
                                       return g.dropout(std::move(n), x, o.p);
                                     }));
  all.add(layer_type<NoOptions>("relu", "max(x, 0)", kNoRows, activate<Kind::relu>));
  all.add(layer_type<NoOptions>("leaky_relu", "x, or x / 100 below 0", kNoRows,
                                activate<Kind::leaky_relu>));
  all.add(layer_type<NoOptions>("elu", "x, or exp(x) - 1 below 0", kNoRows, activate<Kind::elu>));
  all.add(layer_type<NoOptions>("gelu", "x times the normal distribution function of x", kNoRows,
                                activate<Kind::gelu>));
  all.add(layer_type<NoOptions>("silu", "x times the logistic function of x", kNoRows,
                                activate<Kind::silu>));
  all.add(layer_type<NoOptions>("tanh", "hyperbolic tangent", kNoRows, activate<Kind::tanh>));
  all.add(layer_type<NoOptions>("sigmoid", "logistic function", kNoRows, activate<Kind::sigmoid>));
  all.add(layer_type<NoOptions>("softplus", "log(1 + exp(x))", kNoRows, activate<Kind::softplus>));
  return all;
}

}  // namespace

std::optional<Pair> read_pair(const Value& value) {
  if (const auto* side = value.get_if<std::int64_t>()) return Pair{*side, *side};
  const auto* sides = value.get_if<Value::Array>();
  if (sides == nullptr || sides->size() != 2) return {};
  const auto* height = (*sides)[0].get_if<std::int64_t>();
  const auto* width = (*sides)[1].get_if<std::int64_t>();
  if (height == nullptr || width == nullptr) return {};
  return Pair{*height, *width};
}

const registry::Catalog<LayerType>& layer_types() {
  static const registry::Catalog<LayerType> types = build();
  return types;
}

}  // namespace runner::models
