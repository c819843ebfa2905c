// engine: decisions that all ranks must take at the same place.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "runner/engine/comm/group.h"
#include "runner/host/clock.h"

namespace runner::engine {

/// Whether a signal or the clock ends the run. A signal reaches one process or several at slightly
/// different times, and clocks differ; ranks that stopped at different steps would wait for each
/// other for ever. So ranks look together, and, as looking is an exchange, only every tenth of a
/// second or so: rank 0's clock says after how many more ticks. A process alone looks at each tick.
class Agreement {
 public:
  /// `signal`: number of a signal that asks this process to stop, 0 before. `is_over`: whether the
  /// time of the run is over; rank 0's counts.
  Agreement(const Group& group, const std::atomic<int>& signal, host::Clock& clock,
            std::function<bool()> is_over);

  /// Collective, in the sense that each rank must call it the same number of times.
  void tick();

  /// What was agreed on at the last look.
  [[nodiscard]] int signal() const { return agreed_signal_; }
  [[nodiscard]] bool is_over() const { return agreed_over_; }

 private:
  void look();

  const Group& group_;
  const std::atomic<int>& signal_;
  host::Clock& clock_;
  std::function<bool()> over_;
  int agreed_signal_ = 0;
  bool agreed_over_ = false;
  std::int64_t ticks_left_ = 0;  ///< until the next look
  std::int64_t interval_ = 1;
  std::optional<host::Seconds> last_look_;
};

}  // namespace runner::engine
