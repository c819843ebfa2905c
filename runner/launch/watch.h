// launch: what the ends and the signs of life of all ranks of a run come to.
//
// Nothing here starts, kills or waits: the supervisor tells what it saw and when, and asks whether
// the run must end and how it ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/launch/crew.h"
#include "runner/launch/failure.h"

namespace runner::launch {

/// Since the attempt began, without the time in which the launcher itself stood still.
using WatchTime = std::chrono::milliseconds;

/// How long a broken exchange waits for its likely cause, the end of another rank, to be seen.
constexpr WatchTime kCauseWait{300};

struct WatchSettings {
  std::vector<std::string> hosts;  ///< by rank
  WatchTime timeout{};             ///< of a rank that the others wait for
  WatchTime start_timeout{};       ///< of a rank that doesn't come to training
  std::int64_t attempt = 0;
  bool cuda = false;
};

class Watch {
 public:
  explicit Watch(WatchSettings settings);

  void sign(std::int64_t rank, const Sign& sign, WatchTime now);
  void ended(const RankEnd& end, WatchTime now);
  /// A launcher has passed the signal on to its workers; `again` if it wasn't the first.
  void passed(int signal, bool again);
  /// Ends the run for a reason outside of the ranks; there is no restart.
  void fail(Failure failure);
  /// These ranks can't be heard of any more: nobody waits for them.
  void gone(std::int64_t first_rank, std::int64_t ranks);
  /// A launcher hasn't been heard of for a while: the reason, should ranks stop going on now.
  void suspect(std::optional<Failure> lost) { suspect_ = std::move(lost); }
  void add_help(const std::string& more);
  /// Judges what only time tells.
  void look(WatchTime now);

  [[nodiscard]] bool must_kill() const { return must_kill_; }
  [[nodiscard]] bool waits_for_cause() const { return broken_.has_value() && !must_kill_; }
  [[nodiscard]] bool all_ended() const;
  /// Only an exit status of 1, or a death by a signal, is worth another attempt.
  [[nodiscard]] bool may_restart() const { return failure_.has_value() && restartable_; }
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }
  /// 0, 128 + n after an agreed stop, or that of the failure.
  [[nodiscard]] int exit_status() const;

 private:
  struct Rank {
    Sign sign;
    WatchTime changed{0};
    WatchTime seen{0};  ///< when its last sign came: a rank that isn't heard of isn't judged

    [[nodiscard]] WatchTime stillness() const { return seen - changed; }
    bool ended = false;
  };

  [[nodiscard]] std::int64_t world() const { return static_cast<std::int64_t>(ranks_.size()); }
  [[nodiscard]] Rank& at(std::int64_t rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  [[nodiscard]] const Rank& at(std::int64_t rank) const {
    return ranks_.at(static_cast<std::size_t>(rank));
  }
  [[nodiscard]] const std::string& host(std::int64_t rank) const;
  [[nodiscard]] std::string name(const std::vector<std::int64_t>& ranks) const;
  [[nodiscard]] Failure failure_of(std::int64_t rank, std::string message, std::string help) const;
  [[nodiscard]] Failure killed(std::int64_t rank, int signal) const;
  [[nodiscard]] Failure told(std::int64_t rank, int code, const Failure& record) const;
  [[nodiscard]] Failure silent(std::int64_t rank, int code) const;
  [[nodiscard]] Failure stood_still() const;
  [[nodiscard]] Failure not_arrived() const;
  [[nodiscard]] std::string whereabouts() const;
  [[nodiscard]] std::vector<std::int64_t> culprits() const;
  [[nodiscard]] bool stalled(WatchTime limit) const;
  void stopped(std::int64_t rank, int status);
  void decide(Failure failure, bool restartable);
  void judge_broken();

  WatchSettings settings_;
  std::vector<Rank> ranks_;
  bool must_kill_ = false;
  bool restartable_ = false;
  int passed_ = 0;
  bool at_once_ = false;
  int stop_status_ = 0;  ///< of the first rank that ended by request
  std::int64_t stop_rank_ = -1;
  std::optional<Failure> failure_;
  std::optional<Failure> broken_;  ///< the first exchange that failed
  WatchTime broken_at_{0};
  std::optional<Failure> suspect_;
};

}  // namespace runner::launch
