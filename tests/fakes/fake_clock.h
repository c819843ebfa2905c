#pragma once

#include <vector>

#include "runner/host/clock.h"

namespace runner::host {

/// Stands still until it is told to advance or somebody sleeps on it.
class FakeClock final : public Clock {
 public:
  [[nodiscard]] Seconds now() const override { return now_; }
  [[nodiscard]] std::chrono::system_clock::time_point wall_time() const override {
    return start_ + std::chrono::duration_cast<std::chrono::system_clock::duration>(now_);
  }
  void sleep(Seconds duration) override {
    sleeps_.push_back(duration);
    now_ += duration;
  }

  void advance(Seconds duration) { now_ += duration; }
  [[nodiscard]] const std::vector<Seconds>& sleeps() const { return sleeps_; }

 private:
  Seconds now_{1000};
  std::vector<Seconds> sleeps_;
  std::chrono::system_clock::time_point start_{std::chrono::seconds(1'700'000'000)};
};

}  // namespace runner::host
