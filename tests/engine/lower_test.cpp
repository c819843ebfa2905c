#include "runner/engine/lower.h"

#include <torch/nn.h>
#include <torch/utils.h>

#undef CHECK  // LibTorch has one of its own
#include <doctest/doctest.h>

#include "runner/diag/error.h"
#include "runner/graph/graph.h"

namespace runner::engine {

namespace nn = torch::nn;

namespace {

graph::Graph lenet() {
  graph::Builder g({1, 28, 28});
  auto x = g.relu("relu1",
                  g.conv2d("conv1", g.input(), {.out = 6, .kernel = {5, 5}, .padding = {2, 2}}));
  x = g.max_pool2d("pool1", x);
  x = g.relu("relu2", g.conv2d("conv2", x, {.out = 16, .kernel = {5, 5}}));
  x = g.flatten("flatten", g.max_pool2d("pool2", x));
  x = g.linear("fc3", g.relu("relu3", g.linear("fc1", x, {.out = 120})), {.out = 10});
  return std::move(g).finish(x);
}

nn::Sequential torch_lenet() {
  // A list, since the order in which a call's arguments are made is the compiler's.
  nn::Sequential model;
  model->push_back(nn::Conv2d(nn::Conv2dOptions(1, 6, 5).padding(2)));
  model->push_back(nn::ReLU());
  model->push_back(nn::MaxPool2d(2));
  model->push_back(nn::Conv2d(nn::Conv2dOptions(6, 16, 5)));
  model->push_back(nn::ReLU());
  model->push_back(nn::MaxPool2d(2));
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(400, 120));
  model->push_back(nn::ReLU());
  model->push_back(nn::Linear(120, 10));
  return model;
}

/// Copies a network's tensors into a module's parameters and buffers, which come in the same order.
void copy_into(const Network& network, nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const auto parameters = module.parameters();
  REQUIRE(parameters.size() == network.parameters().size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(network.parameters()[i].tensor);
  }
}

}  // namespace

TEST_CASE("lower: after one seed, weights equal those of torch.nn bit by bit") {
  torch::manual_seed(11);
  const auto reference = torch_lenet();
  torch::manual_seed(11);
  const Network network = lower(lenet(), torch::kFloat);
  const auto parameters = reference->parameters();
  REQUIRE(parameters.size() == network.parameters().size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(network.parameters()[i].name);
    CHECK(torch::equal(parameters[i], network.parameters()[i].tensor));
  }
  CHECK(network.parameters()[0].name == "conv1.weight");
  CHECK(network.parameters()[7].name == "fc3.bias");
}

TEST_CASE("lower: LeNet's outputs and gradients equal torch.nn's") {
  Network network = lower(lenet(), torch::kFloat);
  auto reference = torch_lenet();
  copy_into(network, *reference);
  const auto x = torch::randn({5, 1, 28, 28});
  const auto mine = network.forward(x, true);
  const auto theirs = reference->forward(x);
  CHECK(torch::equal(mine, theirs));
  mine.square().sum().backward();
  theirs.square().sum().backward();
  const auto parameters = reference->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(network.parameters()[i].name);
    CHECK(torch::equal(parameters[i].grad(), network.parameters()[i].tensor.grad()));
  }
}

TEST_CASE(
    "lower: batch norm, residual add and pooling equal torch.nn's, in training and evaluation") {
  graph::Builder g({3, 8, 8});
  const auto a =
      g.relu("relu1", g.batch_norm("bn1", g.conv2d("conv1", g.input(),
                                                   {.out = 4, .padding = {1, 1}, .bias = false})));
  const auto b =
      g.batch_norm("bn2", g.conv2d("conv2", a, {.out = 4, .padding = {1, 1}, .bias = false}));
  auto x = g.relu("relu2", g.add("add", a, b));
  x = g.global_avg_pool("gap", g.avg_pool2d("pool", x));
  x = g.linear("fc", x, {.out = 2});
  Network network = lower(std::move(g).finish(x), torch::kDouble);

  const auto conv = [](int in) {
    return nn::Conv2d(nn::Conv2dOptions(in, 4, 3).padding(1).bias(false));
  };
  auto conv1 = conv(3), conv2 = conv(4);
  nn::BatchNorm2d bn1(4), bn2(4);
  nn::Linear fc(4, 2);
  nn::Sequential all(conv1, bn1, conv2, bn2, fc);
  all->to(torch::kDouble);
  copy_into(network, *all);

  for (const bool training : {true, true, false}) {
    all->train(training);
    const auto input = torch::randn({6, 3, 8, 8}, torch::kDouble);
    const auto first = torch::relu(bn1(conv1(input)));
    const auto sum = torch::relu(first + bn2(conv2(first)));
    const auto want = fc(torch::avg_pool2d(sum, 2, 2).mean({2, 3}));
    CHECK(torch::allclose(network.forward(input, training), want, 1e-12, 1e-12));
  }
  std::map<std::string, torch::Tensor> buffers;
  for (const auto& [name, tensor] : network.buffers()) buffers[name] = tensor;
  CHECK(torch::allclose(buffers.at("bn1.running_mean"), bn1->running_mean));
  CHECK(torch::allclose(buffers.at("bn2.running_var"), bn2->running_var));
  CHECK(buffers.at("bn2.num_batches_tracked").item<int>() == 2);
}

TEST_CASE("lower: each activation equals its function in torch, forward and backward") {
  using Kind = graph::ActivationKind;
  namespace F = nn::functional;
  const std::vector<std::pair<Kind, std::function<torch::Tensor(torch::Tensor)>>> rows = {
      {Kind::relu, [](auto x) { return x.clamp_min(0); }},
      {Kind::leaky_relu, [](auto x) { return torch::where(x > 0, x, x * 0.01); }},
      {Kind::elu, [](auto x) { return torch::where(x > 0, x, torch::expm1(x)); }},
      {Kind::gelu, [](auto x) { return x * 0.5 * (1 + torch::erf(x / std::sqrt(2.0))); }},
      {Kind::silu, [](auto x) { return x / (1 + torch::exp(-x)); }},
      {Kind::tanh, [](auto x) { return 2 / (1 + torch::exp(-2 * x)) - 1; }},
      {Kind::sigmoid, [](auto x) { return 1 / (1 + torch::exp(-x)); }},
      {Kind::softplus, [](auto x) { return torch::log1p(torch::exp(x)); }},
  };
  for (const auto& [kind, function] : rows) {
    CAPTURE(static_cast<int>(kind));
    graph::Builder g({5});
    auto x = g.activation("act", g.linear("fc1", g.input(), {.out = 7}), kind);
    x = g.activation("again", x, kind);
    Network network = lower(std::move(g).finish(x), torch::kDouble);
    const auto input = torch::randn({4, 5}, torch::kDouble);
    const auto w = network.parameters()[0].tensor.detach().clone().requires_grad_();
    const auto b = network.parameters()[1].tensor.detach();
    const auto mine = network.forward(input, true);
    const auto want = function(function(torch::linear(input, w, b)));
    CHECK(torch::allclose(mine, want, 1e-10, 1e-12));
    mine.sum().backward();
    want.sum().backward();
    CHECK(torch::allclose(network.parameters()[0].tensor.grad(), w.grad(), 1e-9, 1e-12));
  }
}

TEST_CASE(
    "lower: dropout zeroes a share in training, keeps the mean, and does nothing in evaluation") {
  graph::Builder g({1000});
  const auto x = g.dropout("drop", g.input(), 0.25);
  Network network = lower(std::move(g).finish(x), torch::kFloat);
  const auto ones = torch::ones({100, 1000});
  const auto y = network.forward(ones, true);
  CHECK(y.eq(0).to(torch::kDouble).mean().item<double>() == doctest::Approx(0.25).epsilon(0.03));
  CHECK(y.max().item<double>() == doctest::Approx(1 / 0.75));
  CHECK(torch::equal(network.forward(ones, false), ones));
  CHECK(torch::equal(ones, torch::ones({100, 1000})));
}

TEST_CASE("lower: loading weights names the tensor that doesn't fit") {
  Network network = lower(lenet(), torch::kFloat);
  auto state = network.state();
  CHECK_NOTHROW(network.load_state(state));
  auto wrong = state;
  wrong[4].tensor = torch::zeros({3, 3});
  CHECK_THROWS_WITH_AS(
      network.load_state(wrong),
      "tensor 'fc1.weight' has shape [3, 3] in the checkpoint and [120, 400] in the "
      "model",
      diag::Error);
  wrong = state;
  wrong[0].tensor = state[0].tensor.to(torch::kDouble);
  CHECK_THROWS_WITH(network.load_state(wrong),
                    "tensor 'conv1.weight' is Double in the checkpoint and Float in the model");
  wrong = state;
  wrong.pop_back();
  CHECK_THROWS_WITH(network.load_state(wrong), "the checkpoint has no tensor 'fc3.bias'");
  wrong = state;
  wrong.push_back({"fc9.bias", torch::zeros({1})});
  CHECK_THROWS_WITH(network.load_state(wrong),
                    "the checkpoint has a tensor 'fc9.bias' that the model lacks");
}

}  // namespace runner::engine
