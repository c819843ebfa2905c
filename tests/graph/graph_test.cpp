#include "runner/graph/graph.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

namespace runner::graph {

namespace {

using Build = std::function<void(Builder&)>;

/// What a misfit says: "path | message | help".
std::string misfit(const Shape& input, const Build& build) {
  try {
    Builder g(input);
    g.at_table("layers[0]");
    build(g);
  } catch (const ShapeError& error) {
    return error.path() + " | " + error.what() + " | " + error.help();
  }
  return "fits";
}

/// Windows counted one by one.
std::int64_t positions(std::int64_t size, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding, std::int64_t dilation) {
  std::int64_t count = 0;
  for (std::int64_t first = -padding; first + dilation * (kernel - 1) < size + padding;
       first += stride) {
    ++count;
  }
  return count;
}

Graph lenet() {
  Builder g({1, 28, 28});
  auto x = g.conv2d("conv1", g.input(), {.out = 6, .kernel = {5, 5}, .padding = {2, 2}});
  x = g.max_pool2d("pool1", g.relu("relu1", x));
  x = g.conv2d("conv2", x, {.out = 16, .kernel = {5, 5}});
  x = g.flatten("flatten", g.max_pool2d("pool2", g.relu("relu2", x)));
  x = g.relu("relu3", g.linear("fc1", x, {.out = 120}));
  x = g.relu("relu4", g.linear("fc2", x, {.out = 84}));
  x = g.linear("fc3", x, {.out = 10});
  return std::move(g).finish(x);
}

}  // namespace

TEST_CASE("element_count: the product of the sizes, 1 for a number, refused above 63 bits") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 224, 224}) == 150528);
  CHECK(element_count({0, 1LL << 62, 1LL << 62}) == 0);
  CHECK(element_count({1LL << 31, 1LL << 31}) == 1LL << 62);
  CHECK_THROWS_WITH_AS((void)element_count({1LL << 32, 1LL << 31}),
                       "the shape [4294967296, 2147483648] has more than 2^63 elements",
                       ShapeError);
  CHECK(to_text({}) == "[]");
  CHECK(to_text({1, 28, 28}) == "[1, 28, 28]");
}

TEST_CASE("windows: the output size is the number of positions a window has") {
  int cases = 0;
  for (std::int64_t size = 1; size <= 9; ++size) {
    for (std::int64_t kernel = 1; kernel <= 4; ++kernel) {
      for (std::int64_t stride = 1; stride <= 3; ++stride) {
        for (std::int64_t padding = 0; padding <= 2; ++padding) {
          for (std::int64_t dilation = 1; dilation <= 3; ++dilation) {
            CAPTURE(size);
            CAPTURE(kernel);
            CAPTURE(stride);
            CAPTURE(padding);
            CAPTURE(dilation);
            const std::int64_t want = positions(size, kernel, stride, padding, dilation);
            Builder g({2, size, 20});
            const auto convolve = [&] {
              return g.conv2d("c", g.input(),
                              {.out = 3,
                               .kernel = {kernel, 1},
                               .stride = {stride, 1},
                               .padding = {padding, 0},
                               .dilation = {dilation, 1}});
            };
            if (want == 0) {
              CHECK_THROWS_AS(convolve(), ShapeError);
            } else {
              CHECK(g.shape(convolve()) == Shape{3, want, 20});
            }
            ++cases;
          }
        }
      }
    }
  }
  CHECK(cases == 972);
}

TEST_CASE("pools: height and width have their own kernel, stride and padding") {
  Builder g({4, 11, 9});
  const MaxPool2d op{.kernel = {3, 2}, .stride = {2, 3}, .padding = {1, 0}};
  CHECK(g.shape(g.max_pool2d("a", g.input(), op)) ==
        Shape{4, positions(11, 3, 2, 1, 1), positions(9, 2, 3, 0, 1)});
  CHECK(g.shape(g.avg_pool2d("b", g.input(), {op.kernel, op.stride, op.padding})) ==
        Shape{4, positions(11, 3, 2, 1, 1), positions(9, 2, 3, 0, 1)});
  CHECK(g.shape(g.global_avg_pool("c", g.input())) == Shape{4});
}

TEST_CASE("layers: parameters have PyTorch's names, shapes and order") {
  Builder g({4, 6, 6});
  auto x = g.conv2d("conv", g.input(), {.out = 6, .kernel = {3, 2}, .groups = 2});
  x = g.layer_norm("ln", g.batch_norm("bn", x));
  x = g.linear("fc", x, {.out = 7, .bias = false});
  const Graph graph = std::move(g).finish(x);

  std::vector<std::string> found;
  for (const Layer& layer : graph.layers()) {
    for (const Parameter& p : layer.parameters) {
      found.push_back(layer.name + "." + p.name + to_text(p.shape) +
                      (p.trainable ? "" : " buffer"));
    }
  }
  const std::vector<std::string> want = {"conv.weight[6, 2, 3, 2]",
                                         "conv.bias[6]",
                                         "bn.weight[6]",
                                         "bn.bias[6]",
                                         "bn.running_mean[6] buffer",
                                         "bn.running_var[6] buffer",
                                         "bn.num_batches_tracked[] buffer",
                                         "ln.weight[5]",
                                         "ln.bias[5]",
                                         "fc.weight[7, 5]"};
  CHECK(found == want);
  CHECK(graph.parameter_count() == 6 * 2 * 3 * 2 + 6 + 12 + 10 + 35);
  CHECK(graph.buffer_count() == 13);
  CHECK(graph.input() == Shape{4, 6, 6});
  CHECK(graph.output() == Shape{6, 4, 7});
}

TEST_CASE("flops: each layer's closed form") {
  Builder g({4, 6, 6});
  auto x = g.conv2d("conv", g.input(), {.out = 6, .kernel = {3, 2}, .groups = 2});  // [6, 4, 5]
  x = g.batch_norm("bn", x);
  x = g.layer_norm("ln", x);
  x = g.activation("act", x, ActivationKind::gelu);
  x = g.add("add", x, g.dropout("drop", x, 0.1));
  x = g.max_pool2d("max", x, {.kernel = {2, 3}, .stride = {1, 1}});  // [6, 3, 3]
  x = g.avg_pool2d("avg", x, {.kernel = {2, 2}, .stride = {1, 1}});  // [6, 2, 2]
  x = g.linear("rows", x, {.out = 9, .bias = false});                // [6, 2, 9]
  x = g.global_avg_pool("gap", x);                                   // [6]
  x = g.flatten("flat", x);
  x = g.linear("fc", x, {.out = 5});
  const Graph graph = std::move(g).finish(x);
  const std::vector<std::pair<std::string, std::int64_t>> want = {
      {"input", 0},           {"conv", 120 * (2 * 2 * 3 * 2 + 1)},
      {"bn", 4 * 120},        {"ln", 8 * 120},
      {"act", 120},           {"drop", 120},
      {"add", 120},           {"max", 54 * 6},
      {"avg", 24 * 4},        {"rows", 12 * 2 * 2 * 9},
      {"gap", 108},           {"flat", 0},
      {"fc", 5 * (2 * 6 + 1)}};
  std::vector<std::pair<std::string, std::int64_t>> found;
  std::int64_t sum = 0;
  for (const Layer& layer : graph.layers()) {
    found.emplace_back(layer.name, layer.flops);
    sum += layer.flops;
  }
  CHECK(found == want);
  CHECK(graph.flops() == sum);
}

TEST_CASE("lenet: parameters and FLOPs by hand") {
  const Graph graph = lenet();
  CHECK(graph.parameter_count() == 61706);
  CHECK(graph.buffer_count() == 0);
  CHECK(graph.flops() == 4704 * 51 + 4704 + 4 * 1176 + 1600 * 301 + 1600 + 4 * 400 + 120 * 801 +
                             120 + 84 * 241 + 84 + 10 * 169);
}

TEST_CASE("activation_count: what the backward pass keeps, each tensor once") {
  SUBCASE("lenet: inputs, rectified outputs, pool indices twice; a flatten is no copy") {
    CHECK(lenet().activation_count() ==
          784 + 4704 + 2 * 1176 + 1176 + 1600 + 2 * 400 + 400 + 120 + 84 + 10);
  }
  SUBCASE("a residual block: the shortcut's tensor counts once, the sum before relu not") {
    Builder g({2, 4, 4});
    auto a =
        g.relu("a", g.batch_norm("bn1", g.conv2d("c1", g.input(), {.out = 2, .padding = {1, 1}})));
    auto b = g.batch_norm("bn2", g.conv2d("c2", a, {.out = 2, .padding = {1, 1}}));
    auto x = g.global_avg_pool("gap", g.relu("r", g.add("sum", a, b)));
    x = g.linear("fc", x, {.out = 3});
    const Graph graph = std::move(g).finish(x);
    // input, c1, a, c2, r: 32 each; gap 2; fc 3
    CHECK(graph.activation_count() == 5 * 32 + 2 + 3);
    CHECK(graph.activation_counts() ==
          std::vector<std::int64_t>{32, 32, 0, 32, 32, 0, 0, 32, 2, 3});
  }
  SUBCASE("activations keep their input or their output, as their derivative needs") {
    using Kind = ActivationKind;
    for (const auto& [kind, kept] :
         std::vector<std::pair<Kind, std::int64_t>>{{Kind::relu, 7},
                                                    {Kind::tanh, 7},
                                                    {Kind::sigmoid, 7},
                                                    {Kind::leaky_relu, 14},
                                                    {Kind::elu, 14},
                                                    {Kind::gelu, 14},
                                                    {Kind::silu, 14},
                                                    {Kind::softplus, 14}}) {
      CAPTURE(static_cast<int>(kind));
      Builder g({5});
      auto x = g.linear("fc", g.input(), {.out = 7});
      x = g.activation("act", g.add("twice", x, x), kind);
      // input, and the output of the network, which is what relu keeps
      CHECK(std::move(g).finish(x).activation_count() == 5 + kept);
    }
  }
  SUBCASE("dropout keeps its mask, layer_norm two numbers a row, a dropout of 0 nothing") {
    Builder g({3, 4});
    auto x = g.layer_norm("ln", g.input());
    x = g.dropout("drop", x, 0.5);
    x = g.dropout("none", x, 0);
    CHECK(std::move(g).finish(x).activation_count() == 12 + 2 * 3 + 12 + 12);
  }
}

TEST_CASE("misfits: the layer, its type, its input and what it needs, at its option") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  struct Row {
    Shape input;
    Build build;
    std::string text;
  };
  const std::vector<Row> rows = {
      {{64},
       [](Builder& g) { g.conv2d("c", g.input(), {.out = 8}); },
       "layers[0] | layer 'c' (conv2d) needs an image [channels, height, width], and its input is "
       "[64] | put it before any flatten, and choose a dataset of images"},
      {{6, 4, 4},
       [](Builder& g) {
         g.conv2d("c", g.input(), {.out = 8, .kernel = {5, 5}});
       },
       "layers[0].kernel | layer 'c' (conv2d) has a kernel of 5x5, and its input is [6, 4, 4] | a "
       "kernel of at most 4x4 fits; so would more padding, a larger image, or fewer pools and "
       "strides before it"},
      {{6, 4, 9},
       [](Builder& g) {
         g.conv2d("c", g.input(),
                  {.out = 8, .kernel = {4, 4}, .padding = {1, 0}, .dilation = {2, 2}});
       },
       "layers[0].kernel | layer 'c' (conv2d) has a kernel of 4x4 dilated to 7x7, and its input is "
       "[6, 4, 9] padded to 6x9 | a kernel of at most 3x5 fits; so would more padding, a larger "
       "image, or fewer pools and strides before it"},
      {{6, 4, 4},
       [](Builder& g) { g.conv2d("c", g.input(), {.out = 0}); },
       "layers[0].out | layer 'c' (conv2d) needs at least 1 output channel, not 0 | "},
      {{6, 4, 4},
       [](Builder& g) { g.conv2d("c", g.input(), {.out = 8, .groups = 3}); },
       "layers[0].groups | layer 'c' (conv2d) has 3 groups, which don't divide its 6 input "
       "channels and 8 output channels | groups must divide 2"},
      {{6, 4, 4},
       [](Builder& g) { g.conv2d("c", g.input(), {.out = 8, .groups = 0}); },
       "layers[0].groups | layer 'c' (conv2d) has 0 groups, which don't divide its 6 input "
       "channels and 8 output channels | groups must divide 2"},
      {{6, 4, 4},
       [](Builder& g) {
         g.conv2d("c", g.input(), {.out = 8, .kernel = {3, 0}});
       },
       "layers[0].kernel | layer 'c' (conv2d) has a kernel of 3x0 | a kernel is at least 1 and "
       "below 2^31"},
      {{6, 4, 4},
       [](Builder& g) {
         g.conv2d("c", g.input(), {.out = 8, .stride = {0, 1}});
       },
       "layers[0].stride | layer 'c' (conv2d) has a stride of 0x1 | a stride is at least 1 and "
       "below 2^31"},
      {{6, 4, 4},
       [](Builder& g) {
         g.conv2d("c", g.input(), {.out = 8, .padding = {-1, 1}});
       },
       "layers[0].padding | layer 'c' (conv2d) has a padding of -1x1 | a padding is at least 0 and "
       "below 2^31"},
      {{6, 4, 4},
       [=](Builder& g) {
         g.conv2d("c", g.input(), {.out = 8, .dilation = {kMax, 1}});
       },
       "layers[0].dilation | layer 'c' (conv2d) has a dilation of 9223372036854775807x1 | a "
       "dilation is at least 1 and below 2^31"},
      {{6, 4, 4},
       [=](Builder& g) { g.conv2d("c", g.input(), {.out = kMax - 7}); },
       "layers[0] | layer 'c' (conv2d) is too large: its output [9223372036854775800, 2, 2] has "
       "over 2^47 elements | "},
      {{4},
       [](Builder& g) { g.linear("fc", g.input(), {.out = -3}); },
       "layers[0].out | layer 'fc' (linear) needs at least 1 output, not -3 | "},
      {{},
       [](Builder& g) { g.linear("fc", g.input(), {.out = 3}); },
       "layers[0] | layer 'fc' (linear) needs features, and its input is one number a sample | put "
       "a flatten layer before it, which makes that [1]"},
      {{1LL << 24},
       [](Builder& g) { g.linear("fc", g.input(), {.out = 1LL << 24}); },
       "layers[0] | layer 'fc' (linear) is too large: its weight [16777216, 16777216] has over "
       "2^47 elements | "},
      {{1LL << 40, 64},
       [](Builder& g) {
         g.linear("fc", g.input(), {.out = 128});
         g.linear("fc2", {1}, {.out = 128});
       },
       "fits"},
      {{1LL << 23, 1LL << 24},
       [](Builder& g) { g.linear("fc", g.input(), {.out = 1LL << 23}); },
       "layers[0] | layer 'fc' (linear) is too large: it takes over 2^63 operations | "},
      {{6, 4, 4},
       [](Builder& g) {
         g.max_pool2d("p", g.input(), {.kernel = {2, 5}});
       },
       "layers[0].kernel | layer 'p' (max_pool2d) has a kernel of 2x5, and its input is [6, 4, 4] "
       "| a kernel of at most 4x4 fits; so would more padding, a larger image, or fewer pools and "
       "strides before it"},
      {{6, 4, 4},
       [](Builder& g) {
         g.avg_pool2d("p", g.input(), {.padding = {2, 2}});
       },
       "layers[0].padding | layer 'p' (avg_pool2d) has a padding of 2x2 and a kernel of 2x2 | a "
       "pool's padding is at most half its kernel"},
      {{7},
       [](Builder& g) { g.max_pool2d("p", g.input()); },
       "layers[0] | layer 'p' (max_pool2d) needs an image [channels, height, width], and its input "
       "is [7] | put it before any flatten, and choose a dataset of images"},
      {{7, 2},
       [](Builder& g) { g.global_avg_pool("p", g.input()); },
       "layers[0] | layer 'p' (global_avg_pool) needs an image [channels, height, width], and its "
       "input is [7, 2] | put it before any flatten, and choose a dataset of images"},
      {{7, 2},
       [](Builder& g) { g.batch_norm("bn", g.input()); },
       "layers[0] | layer 'bn' (batch_norm) needs [features] or [channels, height, width], and its "
       "input is [7, 2] | use layer_norm, or put a flatten layer before it"},
      {{},
       [](Builder& g) { g.layer_norm("ln", g.input()); },
       "layers[0] | layer 'ln' (layer_norm) needs features, and its input is one number a sample | "
       "put a flatten layer before it, which makes that [1]"},
      {{7},
       [](Builder& g) { g.dropout("d", g.input(), 1); },
       "layers[0].p | layer 'd' (dropout) zeroes a share of 1.000000 | the share is 0 to below 1"},
      {{7},
       [](Builder& g) { g.dropout("d", g.input(), std::numeric_limits<double>::quiet_NaN()); },
       "layers[0].p | layer 'd' (dropout) zeroes a share of nan | the share is 0 to below 1"},
      {{7},
       [](Builder& g) { g.add("sum", g.input(), g.linear("fc", g.input(), {.out = 6})); },
       "layers[0] | layer 'sum' (add) needs two inputs of one shape, and they are [7] and [6] | "
       "give both branches the same channels and strides"},
  };
  for (const Row& row : rows) CHECK(misfit(row.input, row.build) == row.text);
}

TEST_CASE("misfits: a place without options of its own stays as it is") {
  Builder g({1, 2, 2});
  g.at("channels[1]");
  try {
    g.max_pool2d("pool", g.input(), {.kernel = {3, 3}});
    FAIL("a 3x3 pool fits a 2x2 image");
  } catch (const ShapeError& error) {
    CHECK(error.path() == "channels[1]");
  }
}

TEST_CASE("builder: inputs without elements or beyond any memory are refused") {
  CHECK_THROWS_WITH_AS(Builder({3, 0}), "an input of shape [3, 0] has no elements", ShapeError);
  CHECK_THROWS_WITH_AS(Builder({-1}), "an input of shape [-1] has no elements", ShapeError);
  CHECK_THROWS_WITH_AS(Builder({1LL << 40, 1LL << 40}),
                       "layer 'input' (input) is too large: its output [1099511627776, "
                       "1099511627776] has over 2^47 elements",
                       ShapeError);
  CHECK_NOTHROW(Builder({kMostElements}));
  CHECK_THROWS_AS(Builder({kMostElements + 1}), ShapeError);
}

TEST_CASE("builder: a name that is taken and an output that isn't last are programming errors") {
  Builder g({4});
  const auto a = g.relu("a", g.input());
  CHECK_THROWS_WITH_AS(g.relu("a", a), "two layers are called 'a'", std::logic_error);
  CHECK_THROWS_WITH_AS(g.relu("input", a), "two layers are called 'input'", std::logic_error);
  g.relu("b", a);
  CHECK_THROWS_WITH_AS((void)std::move(g).finish(a), "the output must be the layer added last",
                       std::logic_error);
}

TEST_CASE("activation_from: the inverse of an activation's name") {
  for (const char* name :
       {"relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus"}) {
    CHECK(op_name(Activation{activation_from(name)}) == name);
  }
  CHECK_THROWS_WITH_AS((void)activation_from("swish"), "no activation 'swish'", std::logic_error);
}

TEST_CASE("layers: each remembers the option that it comes from") {
  Builder g({4});
  g.at("hidden[0]");
  auto x = g.linear("fc1", g.input(), {.out = 3});
  g.at_table("layers[7]");
  x = g.relu("relu1", x);
  const Graph graph = std::move(g).finish(x);
  CHECK(graph.layers()[0].path.empty());
  CHECK(graph.layers()[1].path == "hidden[0]");
  CHECK(graph.layers()[2].path == "layers[7]");
  CHECK(graph.layers()[2].inputs == std::vector<std::size_t>{1});
}

}  // namespace runner::graph
