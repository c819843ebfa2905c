#include "runner/engine/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "runner/components/component.h"
#include "runner/diag/error.h"
#include "runner/engine/by_device.h"

namespace runner::engine {

using Tensors = std::vector<at::Tensor>;

Optimizer::Optimizer(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) {
    names_.push_back(parameter.name);
    parameters_.push_back(parameter.tensor);
  }
  gradients_.resize(parameters_.size());
}

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) gradients_[i] = parameters_[i].grad();
  ++steps_;
  update(gradients_, lr);
  for (at::Tensor& gradient : gradients_) gradient = at::Tensor();
}

void Optimizer::load_state(std::int64_t steps, const std::vector<NamedTensor>& given) {
  std::unordered_map<std::string, at::Tensor> by_name;
  for (const NamedTensor& entry : given) by_name.emplace(entry.name, entry.tensor);
  const at::NoGradGuard no_grad;
  for (const NamedTensor& mine : state()) {
    const auto found = by_name.find(mine.name);
    const bool fits = found != by_name.end() && found->second.sizes() == mine.tensor.sizes() &&
                      found->second.scalar_type() == mine.tensor.scalar_type();
    if (!fits) {
      throw diag::Error(diag::Exit::incompatible,
                        "the checkpoint's optimizer state doesn't fit: tensor '" + mine.name +
                            "' " +
                            (found == by_name.end() ? "is missing" : "has another shape or type"),
                        "resume with the optimizer and model that the run was started with");
    }
    mine.tensor.copy_(found->second);
  }
  steps_ = steps;
}

Tensors Optimizer::like_parameters(double value) const {
  Tensors result;
  for (const at::Tensor& parameter : parameters_) {
    result.push_back(at::full_like(parameter.detach(), value));
  }
  return result;
}

void Optimizer::name_state(std::string_view state, const Tensors& tensors,
                           std::vector<NamedTensor>& out) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.push_back({std::string(state) + "." + names_[i], tensors[i]});
  }
}

namespace {

/// The step counter as the fused kernels want it: one tensor for all parameters, listed for each.
/// Filled from our own count, because a float stops counting at 2^24.
class StepTensors {
 public:
  explicit StepTensors(const Tensors& parameters) {
    if (parameters.empty()) return;
    step_ = at::zeros({}, parameters.front().options().dtype(at::kFloat).requires_grad(false));
    list_.assign(parameters.size(), step_);
  }
  const Tensors& at(std::int64_t step) {
    if (step_.defined()) step_.fill_(static_cast<double>(step));
    return list_;
  }

 private:
  at::Tensor step_;
  Tensors list_;
};

/// Adam and AdamW: the same state, another kernel.
template <class Options, auto kKernel>
class AdamFamily : public Optimizer {
 public:
  AdamFamily(const Options& options, const std::vector<NamedTensor>& parameters)
      : Optimizer(parameters),
        options_(options),
        averages_(like_parameters()),
        squares_(like_parameters()),
        step_tensors_(parameters_) {
    if (options_.amsgrad) max_squares_ = like_parameters();
  }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> result;
    name_state("exp_avg", averages_, result);
    name_state("exp_avg_sq", squares_, result);
    name_state("max_exp_avg_sq", max_squares_, result);
    return result;
  }

 private:
  void update(const Tensors& gradients, double lr) override {
    kKernel(parameters_, gradients, averages_, squares_, max_squares_, step_tensors_.at(steps_), lr,
            options_);
  }

  Options options_;
  Tensors averages_, squares_, max_squares_;
  StepTensors step_tensors_;
};

constexpr auto kAdamKernel = [](const Tensors& p, const Tensors& g, const Tensors& m,
                                const Tensors& v, const Tensors& max_v, const Tensors& steps,
                                double lr, const components::Adam& o) {
  at::_fused_adam_(p, g, m, v, max_v, steps, lr, o.beta1, o.beta2, o.weight_decay, o.eps, o.amsgrad,
                   /*maximize=*/false);
};
constexpr auto kAdamWKernel = [](const Tensors& p, const Tensors& g, const Tensors& m,
                                 const Tensors& v, const Tensors& max_v, const Tensors& steps,
                                 double lr, const components::AdamW& o) {
  at::_fused_adamw_(p, g, m, v, max_v, steps, lr, o.beta1, o.beta2, o.weight_decay, o.eps,
                    o.amsgrad, /*maximize=*/false);
};
using Adam = AdamFamily<components::Adam, kAdamKernel>;
using AdamW = AdamFamily<components::AdamW, kAdamWKernel>;

class Sgd : public Optimizer {
 public:
  Sgd(const components::Sgd& options, const std::vector<NamedTensor>& parameters)
      : Optimizer(parameters), options_(options) {
    if (options_.momentum != 0) buffers_ = like_parameters();
  }
  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> result;
    name_state("momentum_buffer", buffers_, result);
    return result;
  }

 private:
  void update(const Tensors& gradients, double lr) override {
    at::_fused_sgd_(parameters_, gradients, buffers_, options_.weight_decay, options_.momentum, lr,
                    options_.dampening, options_.nesterov, /*maximize=*/false,
                    /*is_first_step=*/steps_ == 1);
  }

  components::Sgd options_;
  Tensors buffers_;
};

class Adagrad : public Optimizer {
 public:
  Adagrad(const components::Adagrad& options, const std::vector<NamedTensor>& parameters)
      : Optimizer(parameters),
        options_(options),
        sums_(like_parameters(options.initial_accumulator_value)),
        step_tensors_(parameters_) {}
  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> result;
    name_state("sum", sums_, result);
    return result;
  }

 private:
  void update(const Tensors& gradients, double lr) override {
    at::_fused_adagrad_(parameters_, gradients, sums_, step_tensors_.at(steps_), lr,
                        options_.lr_decay, options_.weight_decay, options_.eps,
                        /*maximize=*/false);
  }

  components::Adagrad options_;
  Tensors sums_;
  StepTensors step_tensors_;
};

class RmsProp : public Optimizer {
 public:
  RmsProp(const components::RmsProp& options, const std::vector<NamedTensor>& parameters)
      : Optimizer(parameters), options_(options), squares_(like_parameters()) {
    if (options_.momentum != 0) buffers_ = like_parameters();
    if (options_.centered) averages_ = like_parameters();
  }
  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> result;
    name_state("square_avg", squares_, result);
    name_state("momentum_buffer", buffers_, result);
    name_state("grad_avg", averages_, result);
    return result;
  }

 private:
  void update(const Tensors& given, double lr) override {
    const Tensors gradients = options_.weight_decay == 0
                                  ? given
                                  : at::_foreach_add(given, parameters_, options_.weight_decay);
    at::_foreach_mul_(squares_, options_.alpha);
    at::_foreach_addcmul_(squares_, gradients, gradients, 1 - options_.alpha);
    const Tensors divisors = root_mean_squares(gradients);
    if (options_.momentum == 0) {
      at::_foreach_addcdiv_(parameters_, gradients, divisors, -lr);
      return;
    }
    at::_foreach_mul_(buffers_, options_.momentum);
    at::_foreach_addcdiv_(buffers_, gradients, divisors, 1);
    at::_foreach_add_(parameters_, buffers_, -lr);
  }

  Tensors root_mean_squares(const Tensors& gradients) {
    Tensors result;
    if (options_.centered) {
      at::_foreach_lerp_(averages_, gradients, 1 - options_.alpha);
      result = at::_foreach_addcmul(squares_, averages_, averages_, -1);
      at::_foreach_sqrt_(result);
    } else {
      result = at::_foreach_sqrt(squares_);
    }
    at::_foreach_add_(result, options_.eps);
    return result;
  }

  components::RmsProp options_;
  Tensors squares_, buffers_, averages_;
};

using Maker = std::unique_ptr<Optimizer> (*)(const std::any&, const std::vector<NamedTensor>&);

template <class T, class Options>
std::unique_ptr<Optimizer> make(const std::any& options,
                                const std::vector<NamedTensor>& parameters) {
  return std::make_unique<T>(std::any_cast<const Options&>(options), parameters);
}

/// One optimizer for the parameters of each device.
class PerDevice : public Optimizer {
 public:
  PerDevice(const std::vector<NamedTensor>& parameters, Maker make, const std::any& options)
      : Optimizer(parameters) {
    for (const auto& [device, tensors] : by_device(parameters_)) {
      std::vector<NamedTensor> own;
      std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(own),
                   [device = device](const NamedTensor& p) { return p.tensor.device() == device; });
      parts_.push_back(make(options, own));
    }
  }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> all;
    for (const auto& part : parts_) {
      for (NamedTensor& tensor : part->state()) all.push_back(std::move(tensor));
    }
    return all;
  }

  void load_state(std::int64_t steps, const std::vector<NamedTensor>& given) override {
    Optimizer::load_state(steps, given);
    for (const auto& part : parts_) part->load_state(steps, part->state());
  }

 private:
  void update(const Tensors& /*gradients*/, double lr) override {
    for (const auto& part : parts_) part->step(lr);
  }

  std::vector<std::unique_ptr<Optimizer>> parts_;
};

struct Kernel {
  std::string_view name;
  Maker make;
};
constexpr Kernel kKernels[] = {
    {"sgd", make<Sgd, components::Sgd>},
    {"adam", make<Adam, components::Adam>},
    {"adamw", make<AdamW, components::AdamW>},
    {"rmsprop", make<RmsProp, components::RmsProp>},
    {"adagrad", make<Adagrad, components::Adagrad>},
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const std::any& options,
                                          const std::vector<NamedTensor>& parameters) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name != name) continue;
    const bool is_spread =
        std::any_of(parameters.begin(), parameters.end(), [&parameters](const NamedTensor& p) {
          return p.tensor.device() != parameters.front().tensor.device();
        });
    if (is_spread) return std::make_unique<PerDevice>(parameters, kernel.make, options);
    return kernel.make(options, parameters);
  }
  throw std::logic_error("optimizer '" + std::string(name) + "' has no kernel");
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : kKernels) names.push_back(kernel.name);
  return names;
}

}  // namespace runner::engine
