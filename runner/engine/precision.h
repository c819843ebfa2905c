// engine: number formats of training, beside the strategies: any strategy takes any precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace runner::engine {

/// How a forward pass and the gradients after it are computed. The base class is full precision.
class Precision {
 public:
  /// What a checkpoint keeps.
  struct State {
    double scale = 1;
    std::int64_t good_steps = 0;  ///< in a row, since the scale last changed
  };

  explicit Precision(at::ScalarType dtype) : dtype_(dtype) {}
  virtual ~Precision() = default;
  Precision(const Precision&) = delete;
  Precision& operator=(const Precision&) = delete;

  /// Of weights, losses and optimizer state.
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  /// Runs a forward pass; the result is in dtype().
  [[nodiscard]] virtual at::Tensor run(const std::function<at::Tensor()>& forward) const {
    return forward();
  }
  /// Runs a part of a forward pass; what it makes keeps the number format that it comes in.
  virtual void run_part(const std::function<void()>& part) const { part(); }
  /// What to differentiate in place of `loss`.
  [[nodiscard]] virtual at::Tensor scale(const at::Tensor& loss) const { return loss; }
  /// Undoes scale() on the gradients; false if any isn't finite because of the scale, and the step
  /// must be skipped. Called once a step, between the last backward pass and the optimizer.
  [[nodiscard]] virtual bool unscale(const std::vector<at::Tensor>& gradients) {
    (void)gradients;
    return true;
  }
  /// True if unscale() may ask to skip a step.
  [[nodiscard]] virtual bool scales() const { return false; }
  [[nodiscard]] virtual State state() const { return {}; }
  virtual void restore(const State& state) { (void)state; }

 private:
  at::ScalarType dtype_;
};

/// Of a plan's name: "64", "32", "bf16" (autocast), "16" (autocast and dynamic loss scaling with
/// PyTorch's constants). Throws std::logic_error for another.
[[nodiscard]] std::unique_ptr<Precision> make_precision(std::string_view name,
                                                        const at::Device& device);

}  // namespace runner::engine
