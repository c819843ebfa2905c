// engine: the optimizers' arithmetic, under the names of components::optimizers().
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runner/engine/lower.h"

namespace runner::engine {

/// Updates parameters from their gradients by PyTorch's formulas. State tensors are named
/// "<state>.<parameter>" ("exp_avg.fc1.weight"), so that they survive in a checkpoint by name.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update with the learning rate `lr` from the parameters' gradients, all of which must be
  /// defined. Gradients are left as they are or used as scratch.
  void step(double lr);

  /// Steps taken.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// State tensors (not copies).
  [[nodiscard]] virtual std::vector<NamedTensor> state() const = 0;
  /// Takes what `state()` gave after `steps` steps. Throws diag::Error (incompatible) naming a
  /// tensor that is missing or of another shape or dtype.
  virtual void load_state(std::int64_t steps, const std::vector<NamedTensor>& state);

 protected:
  explicit Optimizer(const std::vector<NamedTensor>& parameters);

  /// `steps_` counts the step being taken.
  virtual void update(const std::vector<at::Tensor>& gradients, double lr) = 0;
  /// One tensor like each parameter, filled with `value`.
  [[nodiscard]] std::vector<at::Tensor> like_parameters(double value = 0) const;
  /// Appends `tensors` to `out` under the name of the state and of each parameter.
  void name_state(std::string_view state, const std::vector<at::Tensor>& tensors,
                  std::vector<NamedTensor>& out) const;

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::int64_t steps_ = 0;

 private:
  std::vector<at::Tensor> gradients_;  ///< scratch of a step
};

/// The optimizer of a catalog name ("adam"); `options` is that entry's struct. Parameters may lie
/// on several devices, on which they stay. Throws std::logic_error for a name without a kernel.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(std::string_view name,
                                                        const std::any& options,
                                                        const std::vector<NamedTensor>& parameters);

/// Names that make_optimizer knows.
[[nodiscard]] std::vector<std::string_view> optimizer_names();

}  // namespace runner::engine
