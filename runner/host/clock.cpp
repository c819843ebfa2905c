#include "runner/host/clock.h"

#include <thread>

namespace runner::host {

namespace {

class SystemClock final : public Clock {
 public:
  Seconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  std::chrono::system_clock::time_point wall_time() const override {
    return std::chrono::system_clock::now();
  }
  void sleep(Seconds duration) override { std::this_thread::sleep_for(duration); }
};

}  // namespace

Clock& system_clock() {
  static SystemClock clock;
  return clock;
}

}  // namespace runner::host
