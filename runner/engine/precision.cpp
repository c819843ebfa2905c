#include "runner/engine/precision.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <string>

#include "runner/diag/error.h"
#include "runner/engine/by_device.h"

namespace runner::engine {

namespace {

/// Turns autocast on for a scope, and drops the cast weights at its end, as they change each step.
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, at::ScalarType dtype)
      : device_(device),
        enabled_before_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_enabled(device, true);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_before_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
};

class Autocast : public Precision {
 public:
  Autocast(c10::DeviceType device, at::ScalarType narrow)
      : Precision(at::kFloat), device_(device), narrow_(narrow) {}

  at::Tensor run(const std::function<at::Tensor()>& forward) const override {
    const AutocastGuard guard(device_, narrow_);
    return forward().to(at::kFloat);
  }
  void run_part(const std::function<void()>& part) const override {
    const AutocastGuard guard(device_, narrow_);
    part();
  }

 private:
  c10::DeviceType device_;
  at::ScalarType narrow_;
};

/// Autocast to fp16, whose smallest gradients would be zeros: the loss is multiplied by a scale
/// that halves at each overflow and doubles after enough steps without one (PyTorch's GradScaler).
class ScaledHalf : public Autocast {
 public:
  explicit ScaledHalf(const at::Device& device) : Autocast(device.type(), at::kHalf) {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    scale_ = at::full({}, kInitialScale, options);
    good_steps_ = at::zeros({}, options.dtype(at::kInt));
    overflowed_ = at::zeros({}, options);
  }

  at::Tensor scale(const at::Tensor& loss) const override {
    return loss * scale_.to(loss.device());
  }

  bool unscale(const std::vector<at::Tensor>& gradients) override {
    const at::NoGradGuard no_grad;
    overflowed_.zero_();
    const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
    for (const auto& [device, part] : by_device(gradients)) {
      at::Tensor overflowed = at::zeros({}, overflowed_.options().device(device));
      at::_amp_foreach_non_finite_check_and_unscale_(part, overflowed, inverse.to(device));
      overflowed_.add_(overflowed.to(overflowed_.device()));
    }
    at::_amp_update_scale_(scale_, good_steps_, overflowed_, kGrowth, kBackoff, kGrowthInterval);
    const bool finite = overflowed_.item<float>() == 0;
    if (!finite && scale_.item<float>() < kSmallestScale) {
      throw diag::Error(
          diag::Exit::failed,
          "gradients are not finite even with the fp16 loss scale lowered from 65,536 "
          "to below 1",
          "look for infinite inputs, lower optimizer.lr, or set trainer.precision to "
          "\"bf16\" or 32");
    }
    return finite;
  }

  bool scales() const override { return true; }
  State state() const override { return {scale_.item<double>(), good_steps_.item<std::int64_t>()}; }
  void restore(const State& state) override {
    scale_.fill_(state.scale);
    good_steps_.fill_(state.good_steps);
  }

 private:
  static constexpr double kInitialScale = 65536;
  static constexpr double kGrowth = 2;
  static constexpr double kBackoff = 0.5;
  static constexpr std::int64_t kGrowthInterval = 2000;
  static constexpr float kSmallestScale = 1;

  at::Tensor scale_, good_steps_, overflowed_;
};

}  // namespace

std::unique_ptr<Precision> make_precision(std::string_view name, const at::Device& device) {
  if (name == "64") return std::make_unique<Precision>(at::kDouble);
  if (name == "32") return std::make_unique<Precision>(at::kFloat);
  if (name == "bf16") return std::make_unique<Autocast>(device.type(), at::kBFloat16);
  if (name == "16") return std::make_unique<ScaledHalf>(device);
  throw std::logic_error("precision '" + std::string(name) + "' has no implementation");
}

}  // namespace runner::engine
