#include "runner/engine/loss_log.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "runner/diag/error.h"

namespace runner::engine {

namespace {
constexpr std::int64_t kHeld = 256;  ///< losses between two reads of a device
}

LossLog::LossLog(const at::Device& device) {
  if (!device.is_cpu()) held_ = at::zeros({kHeld}, at::TensorOptions(device).dtype(at::kDouble));
}

void LossLog::add(const at::Tensor& loss, std::int64_t samples, const Place& place) {
  const Pending entry{samples, place};
  if (!held_.defined()) {
    take(loss.item<double>(), entry);
    return;
  }
  held_.select(0, static_cast<std::int64_t>(pending_.size())).copy_(loss);
  pending_.push_back(entry);
  if (static_cast<std::int64_t>(pending_.size()) == kHeld) flush();
}

void LossLog::flush() {
  if (pending_.empty()) return;
  const at::Tensor losses = held_.cpu();
  const auto* values = losses.const_data_ptr<double>();
  const std::vector<Pending> entries = std::exchange(pending_, {});
  for (std::size_t i = 0; i < entries.size(); ++i) take(values[i], entries[i]);
}

void LossLog::take(double loss, const Pending& entry) {
  if (!std::isfinite(loss)) {
    throw diag::Error(diag::Exit::failed,
                      "the loss is " + std::string(std::isnan(loss) ? "not a number" : "infinite") +
                          " at step " + std::to_string(entry.place.step) + " (epoch " +
                          std::to_string(entry.place.epoch) + ", batch " +
                          std::to_string(entry.place.batch) + ")",
                      "lower optimizer.lr, set trainer.gradient_clip, or look for values in the "
                      "data that are not "
                      "finite");
  }
  sum_ += loss * static_cast<double>(entry.samples);
  weight_ += entry.samples;
}

void LossLog::reset(double sum, std::int64_t weight) {
  pending_.clear();
  sum_ = sum;
  weight_ = weight;
}

}  // namespace runner::engine
