// host: what the programs ask of the machine they run on, behind five small interfaces.
//
// Clock, Environment, Machine and Files are classes with a system implementation here and a fake in
// tests/fakes, so that a plan for 8 GPUs, a full disk or an hour of back-off is tested anywhere in
// microseconds; process.h holds the few facts about our own process. Objects are passed by
// reference; the system_…() functions give the real ones.
//
//   host::Clock& clock = host::system_clock();
//   const host::Seconds start = clock.now();
#pragma once

#include <chrono>

namespace runner::host {

using Seconds = std::chrono::duration<double>;

class Clock {
 public:
  virtual ~Clock() = default;

  /// Time since an arbitrary moment, on a clock that never goes back: good for differences only.
  [[nodiscard]] virtual Seconds now() const = 0;
  /// The time of day; may jump when somebody sets the machine's clock.
  [[nodiscard]] virtual std::chrono::system_clock::time_point wall_time() const = 0;
  /// Returns after at least `duration`; at once when it isn't positive.
  virtual void sleep(Seconds duration) = 0;
};

/// The machine's clock; safe to use from any thread.
[[nodiscard]] Clock& system_clock();

}  // namespace runner::host
