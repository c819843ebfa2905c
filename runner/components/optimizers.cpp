#include "runner/components/component.h"

namespace runner::components {

namespace {

using registry::above;
using registry::at_least;
using registry::from_to_below;
using registry::Resume;

constexpr auto kSgd = registry::rows<Sgd>({
    {.name = "lr",
     .member = &Sgd::lr,
     .doc = "learning rate",
     .range = above(0),
     .resume = Resume::warn},
    {.name = "momentum",
     .member = &Sgd::momentum,
     .doc = "share of the last update that is kept",
     .range = from_to_below(0, 1)},
    {.name = "dampening",
     .member = &Sgd::dampening,
     .doc = "share of the gradient that momentum leaves out",
     .range = registry::between(0, 1)},
    {.name = "weight_decay",
     .member = &Sgd::weight_decay,
     .doc = "L2 penalty added to the gradient",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "nesterov",
     .member = &Sgd::nesterov,
     .doc = "Nesterov's momentum; needs momentum, without dampening"},
});
static_assert(registry::covers<Sgd>(kSgd));

template <class O>
constexpr auto adam_rows(std::string_view decay) {
  return registry::rows<O>({
      {.name = "lr",
       .member = &O::lr,
       .doc = "learning rate",
       .range = above(0),
       .resume = Resume::warn},
      {.name = "beta1",
       .member = &O::beta1,
       .doc = "decay of the mean of the gradients",
       .range = from_to_below(0, 1)},
      {.name = "beta2",
       .member = &O::beta2,
       .doc = "decay of the mean of their squares",
       .range = from_to_below(0, 1)},
      {.name = "eps", .member = &O::eps, .doc = "added to the denominator", .range = at_least(0)},
      {.name = "weight_decay",
       .member = &O::weight_decay,
       .doc = decay,
       .range = at_least(0),
       .resume = Resume::warn},
      {.name = "amsgrad", .member = &O::amsgrad, .doc = "use the largest mean of squares so far"},
  });
}
constexpr auto kAdam = adam_rows<Adam>("L2 penalty added to the gradient");
constexpr auto kAdamW =
    adam_rows<AdamW>("share of the weight itself that each step takes away, times lr");
static_assert(registry::covers<Adam>(kAdam));
static_assert(registry::covers<AdamW>(kAdamW));

constexpr auto kRmsProp = registry::rows<RmsProp>({
    {.name = "lr",
     .member = &RmsProp::lr,
     .doc = "learning rate",
     .range = above(0),
     .resume = Resume::warn},
    {.name = "alpha",
     .member = &RmsProp::alpha,
     .doc = "decay of the mean of squared gradients",
     .range = from_to_below(0, 1)},
    {.name = "eps",
     .member = &RmsProp::eps,
     .doc = "added to the denominator",
     .range = at_least(0)},
    {.name = "weight_decay",
     .member = &RmsProp::weight_decay,
     .doc = "L2 penalty added to the gradient",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "momentum",
     .member = &RmsProp::momentum,
     .doc = "share of the last update that is kept",
     .range = from_to_below(0, 1)},
    {.name = "centered",
     .member = &RmsProp::centered,
     .doc = "divide by the standard deviation of the gradient"},
});
static_assert(registry::covers<RmsProp>(kRmsProp));

constexpr auto kAdagrad = registry::rows<Adagrad>({
    {.name = "lr",
     .member = &Adagrad::lr,
     .doc = "learning rate",
     .range = above(0),
     .resume = Resume::warn},
    {.name = "lr_decay",
     .member = &Adagrad::lr_decay,
     .doc = "lr is divided by 1 + lr_decay x steps taken",
     .range = at_least(0)},
    {.name = "weight_decay",
     .member = &Adagrad::weight_decay,
     .doc = "L2 penalty added to the gradient",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "initial_accumulator_value",
     .member = &Adagrad::initial_accumulator_value,
     .doc = "start of the sum of squares",
     .range = at_least(0)},
    {.name = "eps",
     .member = &Adagrad::eps,
     .doc = "added to the denominator",
     .range = at_least(0)},
});
static_assert(registry::covers<Adagrad>(kAdagrad));

template <class O, std::size_t N>
Optimizer optimizer(std::string_view name, std::string_view doc,
                    const std::array<registry::Row<O>, N>& rows, int (*state_tensors)(const O&)) {
  Optimizer result = entry<O, Optimizer>(name, doc, rows);
  result.state_tensors = [state_tensors](const std::any& options) {
    return state_tensors(std::any_cast<const O&>(options));
  };
  result.lr = [](const std::any& options) { return std::any_cast<const O&>(options).lr; };
  return result;
}

Optimizers build() {
  Optimizers all;
  all.add(optimizer<Sgd>("sgd", "stochastic gradient descent, with momentum if asked", kSgd,
                         [](const Sgd& o) { return o.momentum > 0 ? 1 : 0; }));
  all.add(optimizer<Adam>("adam", "Adam", kAdam, [](const Adam& o) { return o.amsgrad ? 3 : 2; }));
  all.add(optimizer<AdamW>("adamw", "Adam with decoupled weight decay", kAdamW,
                           [](const AdamW& o) { return o.amsgrad ? 3 : 2; }));
  all.add(optimizer<RmsProp>("rmsprop", "RMSprop", kRmsProp, [](const RmsProp& o) {
    return 1 + (o.momentum > 0 ? 1 : 0) + (o.centered ? 1 : 0);
  }));
  all.add(optimizer<Adagrad>("adagrad", "Adagrad", kAdagrad, [](const Adagrad&) { return 1; }));
  return all;
}

}  // namespace

const Optimizers& optimizers() {
  static const Optimizers all = build();
  return all;
}

}  // namespace runner::components
