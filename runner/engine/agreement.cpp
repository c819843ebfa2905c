#include "runner/engine/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace runner::engine {

namespace {

constexpr double kSecondsBetweenLooks = 0.1;
constexpr std::int64_t kLongestInterval = 4096;

}  // namespace

Agreement::Agreement(const Group& group, const std::atomic<int>& signal, host::Clock& clock,
                     std::function<bool()> is_over)
    : group_(group), signal_(signal), clock_(clock), over_(std::move(is_over)) {}

void Agreement::tick() {
  if (group_.size() == 1) {
    agreed_signal_ = signal_.load(std::memory_order_relaxed);
    agreed_over_ = over_();
    return;
  }
  if (--ticks_left_ <= 0) look();
}

void Agreement::look() {
  const host::Seconds now = clock_.now();
  // Doubling at most, so that one fast tick doesn't put the next look far off.
  std::int64_t next = 1;
  if (last_look_) {
    const double elapsed = std::max((now - *last_look_).count(), 1e-6);
    const double fitting = static_cast<double>(interval_) * kSecondsBetweenLooks / elapsed;
    next = std::clamp(static_cast<std::int64_t>(fitting), std::int64_t{1},
                      std::min(2 * interval_, kLongestInterval));
  }
  last_look_ = now;
  const bool leads = group_.leads();
  const at::Tensor said = at::empty({3}, at::kLong);
  auto* const values = said.mutable_data_ptr<std::int64_t>();
  values[0] = signal_.load(std::memory_order_relaxed);
  values[1] = leads && over_() ? 1 : 0;
  values[2] = leads ? next : 0;
  group_.max(said);
  agreed_signal_ = static_cast<int>(values[0]);
  agreed_over_ = values[1] != 0;
  interval_ = values[2];
  ticks_left_ = interval_;
}

}  // namespace runner::engine
