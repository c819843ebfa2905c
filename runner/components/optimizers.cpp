#include "runner/components/component.h"

namespace runner::components {

namespace {

using registry::above;
using registry::at_least;
using registry::from_to_below;
using registry::Resume;

constexpr std::string_view kLearningRate = "learning rate, before any schedule";
constexpr std::string_view kDecay = "L2 penalty: this times the weight is added to its gradient";
constexpr std::string_view kEps = "added to the denominator, against division by zero";

// What decides which state tensors there are is fixed, since a checkpoint carries them; the rest
// may change on resume, and is listed when it does.

constexpr auto kSgd = registry::rows<Sgd>({
    {.name = "lr",
     .member = &Sgd::lr,
     .doc = kLearningRate,
     .range = above(0),
     .resume = Resume::warn},
    {.name = "momentum",
     .member = &Sgd::momentum,
     .doc = "share of the previous update that goes on; 0: none",
     .range = from_to_below(0, 1)},
    {.name = "dampening",
     .member = &Sgd::dampening,
     .doc = "share of the gradient that doesn't enter the momentum",
     .range = registry::between(0, 1),
     .resume = Resume::warn},
    {.name = "weight_decay",
     .member = &Sgd::weight_decay,
     .doc = kDecay,
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "nesterov",
     .member = &Sgd::nesterov,
     .doc = "look ahead along the momentum; needs momentum and no dampening",
     .resume = Resume::warn},
});
static_assert(registry::covers<Sgd>(kSgd));

template <class O>
constexpr auto adam_rows(std::string_view decay) {
  return registry::rows<O>({
      {.name = "lr",
       .member = &O::lr,
       .doc = kLearningRate,
       .range = above(0),
       .resume = Resume::warn},
      {.name = "beta1",
       .member = &O::beta1,
       .doc = "decay of the running mean of gradients",
       .range = from_to_below(0, 1),
       .resume = Resume::warn},
      {.name = "beta2",
       .member = &O::beta2,
       .doc = "decay of the running mean of squared gradients",
       .range = from_to_below(0, 1),
       .resume = Resume::warn},
      {.name = "eps", .member = &O::eps, .doc = kEps, .range = at_least(0), .resume = Resume::warn},
      {.name = "weight_decay",
       .member = &O::weight_decay,
       .doc = decay,
       .range = at_least(0),
       .resume = Resume::warn},
      {.name = "amsgrad",
       .member = &O::amsgrad,
       .doc = "divide by the largest mean of squared gradients so far"},
  });
}
constexpr auto kAdam = adam_rows<Adam>(kDecay);
static_assert(registry::covers<Adam>(kAdam));
constexpr auto kAdamW =
    adam_rows<AdamW>("decoupled decay: each step shrinks the weight by lr times this");
static_assert(registry::covers<AdamW>(kAdamW));

constexpr auto kRmsProp = registry::rows<RmsProp>({
    {.name = "lr",
     .member = &RmsProp::lr,
     .doc = kLearningRate,
     .range = above(0),
     .resume = Resume::warn},
    {.name = "alpha",
     .member = &RmsProp::alpha,
     .doc = "decay of the running mean of squared gradients",
     .range = from_to_below(0, 1),
     .resume = Resume::warn},
    {.name = "eps",
     .member = &RmsProp::eps,
     .doc = kEps,
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "weight_decay",
     .member = &RmsProp::weight_decay,
     .doc = kDecay,
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "momentum",
     .member = &RmsProp::momentum,
     .doc = "share of the previous update that goes on; 0: none",
     .range = from_to_below(0, 1)},
    {.name = "centered",
     .member = &RmsProp::centered,
     .doc = "divide by the deviation of the gradients instead of their root mean square"},
});
static_assert(registry::covers<RmsProp>(kRmsProp));

constexpr auto kAdagrad = registry::rows<Adagrad>({
    {.name = "lr",
     .member = &Adagrad::lr,
     .doc = kLearningRate,
     .range = above(0),
     .resume = Resume::warn},
    {.name = "lr_decay",
     .member = &Adagrad::lr_decay,
     .doc = "step t uses lr / (1 + (t - 1) lr_decay)",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "weight_decay",
     .member = &Adagrad::weight_decay,
     .doc = kDecay,
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "initial_accumulator_value",
     .member = &Adagrad::initial_accumulator_value,
     .doc = "what the sums of squared gradients start from",
     .range = at_least(0)},
    {.name = "eps",
     .member = &Adagrad::eps,
     .doc = kEps,
     .range = at_least(0),
     .resume = Resume::warn},
});
static_assert(registry::covers<Adagrad>(kAdagrad));

template <class O, std::size_t N>
Optimizer optimizer(std::string_view name, std::string_view doc,
                    const std::array<registry::Row<O>, N>& rows, int (*state_tensors)(const O&)) {
  auto result = entry<O, Optimizer>(name, doc, rows);
  result.state_tensors = [state_tensors](const std::any& options) {
    return state_tensors(std::any_cast<const O&>(options));
  };
  result.lr = [](const std::any& options) { return std::any_cast<const O&>(options).lr; };
  return result;
}

}  // namespace

const Optimizers& optimizers() {
  static const Optimizers catalog = [] {
    Optimizers c;
    c.add(optimizer<Sgd>("sgd", "stochastic gradient descent, with or without momentum", kSgd,
                         [](const Sgd& o) { return o.momentum != 0 ? 1 : 0; }));
    c.add(optimizer<Adam>("adam", "gradients scaled by running means of their first two moments",
                          kAdam, [](const Adam& o) { return o.amsgrad ? 3 : 2; }));
    c.add(optimizer<AdamW>("adamw", "adam with weight decay apart from the gradient", kAdamW,
                           [](const AdamW& o) { return o.amsgrad ? 3 : 2; }));
    c.add(optimizer<RmsProp>(
        "rmsprop", "gradients divided by their running root mean square", kRmsProp,
        [](const RmsProp& o) { return 1 + (o.momentum != 0 ? 1 : 0) + (o.centered ? 1 : 0); }));
    c.add(optimizer<Adagrad>("adagrad", "gradients divided by the root of their squares' sum",
                             kAdagrad, [](const Adagrad&) { return 1; }));
    return c;
  }();
  return catalog;
}

}  // namespace runner::components
