#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runner/graph/summary.h"
#include "tests/models/model_support.h"

namespace runner::models {

namespace {

graph::Graph resnet(std::int64_t depth, const graph::Shape& input, std::int64_t outputs,
                    const char* stem = "auto") {
  return build_model("resnet", input, outputs, {{"depth", depth}, {"stem", stem}});
}

/// Multiply-adds of convolutions and linear layers in thousands of millions, as papers count.
double giga_multiply_adds(const graph::Graph& graph) {
  double sum = 0;
  for (const graph::Layer& layer : graph.layers()) {
    if (layer.parameters.empty() || std::holds_alternative<graph::BatchNorm>(layer.op)) continue;
    const graph::Shape& output = layer.output;
    const double positions = output.size() == 3 ? static_cast<double>(output[1] * output[2]) : 1;
    sum += positions * static_cast<double>(graph::element_count(layer.parameters[0].shape));
  }
  return sum / 1e9;
}

/// Parameters of a CIFAR-style network of n blocks a stage, from the paper's description.
std::int64_t cifar_parameters(std::int64_t n) {
  const auto conv = [](std::int64_t in, std::int64_t out, std::int64_t k) {
    return in * out * k * k + 2 * out;  // and batch norm
  };
  std::int64_t sum = conv(3, 16, 3);
  std::int64_t in = 16;
  for (const std::int64_t out : {16, 32, 64}) {
    sum += conv(in, out, 3) + (2 * n - 1) * conv(out, out, 3);
    if (in != out) sum += conv(in, out, 1);
    in = out;
  }
  return sum + 64 * 10 + 10;
}

}  // namespace

TEST_CASE("resnet: parameters, multiply-adds and tensors equal torchvision's published numbers") {
  struct Row {
    std::int64_t depth;
    std::int64_t parameters;
    double giga_multiply_adds;
    std::size_t tensors;
  };
  for (const Row& row : {Row{18, 11689512, 1.814, 122}, Row{34, 21797672, 3.664, 218},
                         Row{50, 25557032, 4.089, 320}}) {
    CAPTURE(row.depth);
    const auto graph = resnet(row.depth, {3, 224, 224}, 1000);
    CHECK(graph.parameter_count() == row.parameters);
    CHECK(std::round(giga_multiply_adds(graph) * 1000) / 1000 ==
          doctest::Approx(row.giga_multiply_adds).epsilon(1e-9));
    CHECK(tensor_names(graph).size() == row.tensors);
  }
}

TEST_CASE("resnet: FLOPs are twice the multiply-adds and a few per cent of other work") {
  const auto graph = resnet(50, {3, 224, 224}, 1000);
  const double ratio = static_cast<double>(graph.flops()) / 1e9 / giga_multiply_adds(graph);
  CHECK(ratio > 2.0);
  CHECK(ratio < 2.05);
}

TEST_CASE("resnet: CIFAR's depths have the parameters of their description") {
  for (const std::int64_t depth : {20, 32, 44, 56}) {
    CAPTURE(depth);
    CHECK(resnet(depth, {3, 32, 32}, 10).parameter_count() == cifar_parameters((depth - 2) / 6));
  }
  // Published with identity shortcuts: 0.27 M and 0.85 M; projections add 2,752.
  CHECK(resnet(20, {3, 32, 32}, 10).parameter_count() == 269722 + 2752);
  CHECK(resnet(56, {3, 32, 32}, 10).parameter_count() == 853018 + 2752);
}

TEST_CASE("resnet: tensors have torchvision's names") {
  const auto names = tensor_names(resnet(18, {3, 224, 224}, 1000));
  const std::vector<std::string> first(names.begin(), names.begin() + 8);
  CHECK(first == std::vector<std::string>{"conv1.weight", "bn1.weight", "bn1.bias",
                                          "bn1.running_mean", "bn1.running_var",
                                          "bn1.num_batches_tracked", "layer1.0.conv1.weight",
                                          "layer1.0.bn1.weight"});
  for (const char* name : {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var",
                           "layer4.1.bn2.bias", "fc.weight", "fc.bias"}) {
    CHECK(std::count(names.begin(), names.end(), name) == 1);
  }
  CHECK(std::count(names.begin(), names.end(), "layer1.0.downsample.0.weight") == 0);
  const auto deep = tensor_names(resnet(50, {3, 224, 224}, 1000));
  CHECK(std::count(deep.begin(), deep.end(), "layer1.0.downsample.0.weight") == 1);
  CHECK(std::count(deep.begin(), deep.end(), "layer3.5.conv3.weight") == 1);
}

TEST_CASE("resnet: the stem follows the image's size unless it is given") {
  const auto first_kernel = [](const graph::Graph& graph) {
    return std::get<graph::Conv2d>(graph.layers()[1].op).kernel[0];
  };
  CHECK(first_kernel(resnet(18, {3, 64, 64}, 10)) == 3);
  CHECK(first_kernel(resnet(18, {3, 65, 64}, 10)) == 7);
  CHECK(first_kernel(resnet(18, {3, 224, 224}, 10, "cifar")) == 3);
  CHECK(first_kernel(resnet(18, {3, 32, 32}, 10, "imagenet")) == 7);
  CHECK(first_kernel(resnet(20, {3, 224, 224}, 10)) == 3);
  // The usual ResNet-18 of CIFAR-10 repositories.
  CHECK(resnet(18, {3, 32, 32}, 10).parameter_count() == 11173962);
}

TEST_CASE("resnet: a depth that isn't one and a stem that a depth lacks are told") {
  const std::string depth =
      "depth | there is no resnet of depth 19 | the depths are 20, 32, 44, 56 (CIFAR's) and 18, "
      "34, 50 (ImageNet's)";
  const std::string stem =
      "stem | a resnet of depth 20 has no imagenet stem | choose depth 18, 34 or 50, or leave the "
      "stem out";
  const std::vector<std::pair<Value::Table, std::string>> rows = {
      {{{"depth", 19}}, depth}, {{{"depth", 20}, {"stem", "imagenet"}}, stem}};
  const Model& model = *all().find("resnet");
  for (const auto& [set, text] : rows) {
    CHECK(build_error("resnet", {3, 32, 32}, 10, set) == text);
    const auto problems = model.check(options_of(model, set));
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].path + " | " + problems[0].message + " | " + problems[0].help == text);
  }
  CHECK(build_error("resnet", {64}, 10) ==
        "name | layer 'conv1' (conv2d) needs an image [channels, height, width], and its input is "
        "[64] | put it before any flatten, and choose a dataset of images");
}

TEST_CASE("resnet: building and analysing the largest takes milliseconds") {
  const auto start = std::chrono::steady_clock::now();
  const auto graph = resnet(50, {3, 224, 224}, 1000);
  const std::string text = graph::summary(graph, 64);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  MESSAGE("ResNet-50, built and summarised in " << time.count() << " ms");
  CHECK(text.find("layer4.0.downsample.0 (conv2d)") != std::string::npos);
  CHECK(text.find("25,557,032") != std::string::npos);
}

}  // namespace runner::models
