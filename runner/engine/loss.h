// engine: losses and metrics.
//
// Every figure that is reported is a sample-weighted mean over all samples, whatever the batches
// were: accumulators hold sums and counts in double on the device and are read once, when the
// figure is asked for, so that a loop over batches never waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runner/components/component.h"
#include "runner/engine/comm/group.h"

namespace runner::engine {

/// Mean loss of a batch: outputs [n, k] against class numbers [n] or values [n, k].
using Loss = std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;

/// The loss of a catalog name ("cross_entropy"); `options` is that entry's struct. Throws
/// std::logic_error for a name without a kernel.
[[nodiscard]] Loss make_loss(std::string_view name, const std::any& options);
[[nodiscard]] std::vector<std::string_view> loss_names();

/// A weighted mean that is added up on the device.
class MeanAccumulator {
 public:
  explicit MeanAccumulator(const at::Device& device);
  /// Adds the mean `value` (a number, detached) of `weight` samples.
  void add(const at::Tensor& value, std::int64_t weight);
  /// NaN when nothing was added. Waits for the device.
  [[nodiscard]] double mean() const;
  void reset();
  /// Adds what the other ranks have added. Collective.
  void combine(const Group& group);

  [[nodiscard]] double sum() const;
  [[nodiscard]] std::int64_t weight() const { return weight_; }
  void restore(double sum, std::int64_t weight);

 private:
  at::Tensor sum_;  ///< double, on the device; on the CPU its number is read in place
  std::int64_t weight_ = 0;
};

/// What a validation adds up for one metric.
class Metric {
 public:
  virtual ~Metric() = default;
  /// Adds a batch; outputs as the model gives them (logits, for classes).
  virtual void add(const at::Tensor& outputs, const at::Tensor& targets) = 0;
  /// Over all samples since reset; NaN when there were none. Waits for the device.
  [[nodiscard]] virtual double value() const = 0;
  virtual void reset() = 0;
  /// Adds what the other ranks have added. Collective.
  virtual void combine(const Group& group) = 0;
};

/// A metric by its own name ("accuracy", "top5", "mae", "r2"). `binary`: targets are 0 or 1 and the
/// outputs logits of 1, so accuracy is that of the sign.
[[nodiscard]] std::unique_ptr<Metric> make_metric(const std::string& name, bool binary,
                                                  const at::Device& device);

}  // namespace runner::engine
