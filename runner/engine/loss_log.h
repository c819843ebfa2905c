// engine: the training loss, step by step, without waiting for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace runner::engine {

/// Adds up the losses of an epoch and finds the first that isn't finite. On a GPU losses are kept
/// there and read in bulk; the sums are made on the CPU in the order of the batches either way.
class LossLog {
 public:
  struct Place {
    std::int64_t step = 0, epoch = 0, batch = 0;  ///< counted from 1
  };

  explicit LossLog(const at::Device& device);

  /// Adds the mean loss of `samples` samples, a detached number. Throws as flush() does.
  void add(const at::Tensor& loss, std::int64_t samples, const Place& place);
  /// Reads what is still on the device. Throws diag::Error (failed) naming the place of the first
  /// loss that isn't finite.
  void flush();

  /// Of the samples since reset(), once flushed.
  [[nodiscard]] double sum() const { return sum_; }
  [[nodiscard]] std::int64_t weight() const { return weight_; }
  void reset(double sum = 0, std::int64_t weight = 0);

 private:
  struct Pending {
    std::int64_t samples;
    Place place;
  };
  void take(double loss, const Pending& entry);

  at::Tensor held_;  ///< losses on the device; undefined on the CPU
  std::vector<Pending> pending_;
  double sum_ = 0;
  std::int64_t weight_ = 0;
};

}  // namespace runner::engine
