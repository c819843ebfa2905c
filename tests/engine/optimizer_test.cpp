#include "runner/engine/optimizer.h"

#include <torch/optim.h>
#include <torch/utils.h>

#undef CHECK  // LibTorch has one of its own
#include <doctest/doctest.h>

#include <set>

#include "runner/components/component.h"
#include "runner/diag/error.h"

namespace runner::engine {

namespace {

using Reference =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor> parameters)>;

template <class T, class Options>
Reference reference(Options options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<T>(std::move(parameters), options);
  };
}

struct Row {
  std::string_view label;
  std::string_view name;
  std::any options;
  Reference reference;
};

namespace o = torch::optim;
namespace c = components;

std::vector<Row> rows() {
  return {
      {"sgd", "sgd", c::Sgd{}, reference<o::SGD>(o::SGDOptions(0.01))},
      {"sgd momentum", "sgd", c::Sgd{.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01},
       reference<o::SGD>(o::SGDOptions(0.01).momentum(0.9).dampening(0.1).weight_decay(0.01))},
      {"sgd nesterov", "sgd", c::Sgd{.momentum = 0.9, .nesterov = true},
       reference<o::SGD>(o::SGDOptions(0.01).momentum(0.9).nesterov(true))},
      {"adam", "adam", c::Adam{}, reference<o::Adam>(o::AdamOptions(1e-3))},
      {"adam amsgrad", "adam",
       c::Adam{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .amsgrad = true},
       reference<o::Adam>(
           o::AdamOptions(1e-3).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1).amsgrad(true))},
      {"adamw", "adamw", c::AdamW{.weight_decay = 0.1},
       reference<o::AdamW>(o::AdamWOptions(1e-3).weight_decay(0.1))},
      {"rmsprop", "rmsprop", c::RmsProp{}, reference<o::RMSprop>(o::RMSpropOptions(0.01))},
      {"rmsprop all", "rmsprop",
       c::RmsProp{.alpha = 0.9, .weight_decay = 0.1, .momentum = 0.5, .centered = true},
       reference<o::RMSprop>(
           o::RMSpropOptions(0.01).alpha(0.9).weight_decay(0.1).momentum(0.5).centered(true))},
      {"adagrad", "adagrad",
       c::Adagrad{.lr_decay = 0.01, .weight_decay = 0.1, .initial_accumulator_value = 0.1},
       reference<o::Adagrad>(
           o::AdagradOptions(0.01).lr_decay(0.01).weight_decay(0.1).initial_accumulator_value(
               0.1))},
  };
}

std::vector<torch::Tensor> fresh_parameters() {
  torch::manual_seed(3);
  std::vector<torch::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{4, 3}, {4}, {2, 4, 5}}) {
    parameters.push_back(torch::randn(shape, torch::kDouble).set_requires_grad(true));
  }
  return parameters;
}
std::vector<NamedTensor> named(const std::vector<torch::Tensor>& parameters) {
  std::vector<NamedTensor> result;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    result.push_back({"p" + std::to_string(i), parameters[i]});
  }
  return result;
}

void set_gradients(const std::vector<torch::Tensor>& parameters, int step) {
  for (const auto& p : parameters) {
    p.mutable_grad() = torch::sin(p.detach() * (step + 1)) + 0.1 * p.detach();
  }
}

constexpr double kRates[] = {0.02, 0.01, 0.005, 0.03};

}  // namespace

TEST_CASE("optimizers: every catalog entry has a kernel and the reverse") {
  std::set<std::string_view> catalog, kernels;
  for (const std::string_view name : components::optimizers().names()) catalog.insert(name);
  for (const std::string_view name : optimizer_names()) kernels.insert(name);
  CHECK(catalog == kernels);
}

TEST_CASE("optimizers: 20 steps with a changing learning rate equal torch::optim's") {
  for (const Row& row : rows()) {
    CAPTURE(row.label);
    const auto mine = fresh_parameters();
    const auto theirs = fresh_parameters();
    const auto optimizer = make_optimizer(row.name, row.options, named(mine));
    const auto other = row.reference(theirs);
    for (int step = 0; step < 20; ++step) {
      set_gradients(mine, step);
      set_gradients(theirs, step);
      const double lr = kRates[step % 4];
      optimizer->step(lr);
      for (auto& group : other->param_groups()) group.options().set_lr(lr);
      other->step();
    }
    CHECK(optimizer->steps() == 20);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      CHECK(torch::allclose(mine[i], theirs[i], 1e-6, 1e-9));
    }
  }
}

TEST_CASE("optimizers: state moved to a new optimizer goes on bit by bit") {
  for (const Row& row : rows()) {
    CAPTURE(row.label);
    const auto straight = fresh_parameters();
    const auto first = fresh_parameters();
    const auto whole = make_optimizer(row.name, row.options, named(straight));
    auto part = make_optimizer(row.name, row.options, named(first));
    for (int step = 0; step < 12; ++step) {
      if (step == 5) {
        std::vector<NamedTensor> state;
        for (const auto& [name, tensor] : part->state()) state.push_back({name, tensor.clone()});
        const std::int64_t steps = part->steps();
        part = make_optimizer(row.name, row.options, named(first));
        part->load_state(steps, state);
      }
      set_gradients(straight, step);
      set_gradients(first, step);
      whole->step(0.01);
      part->step(0.01);
    }
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(torch::equal(straight[i], first[i]));
  }
}

TEST_CASE("optimizers: state is named by parameter, and what is missing is named") {
  const auto parameters = fresh_parameters();
  const auto optimizer = make_optimizer("adam", components::Adam{}, named(parameters));
  auto state = optimizer->state();
  REQUIRE(state.size() == 6);
  CHECK(state[0].name == "exp_avg.p0");
  CHECK(state[5].name == "exp_avg_sq.p2");
  state.pop_back();
  CHECK_THROWS_WITH_AS(optimizer->load_state(1, state),
                       "the checkpoint's optimizer state doesn't fit: tensor 'exp_avg_sq.p2' is "
                       "missing",
                       diag::Error);
}

}  // namespace runner::engine
