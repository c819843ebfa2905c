// host: signs of life of the ranks of a run, in memory that a launcher shares with its workers.
//
// A worker stores, its launcher looks: neither ever waits for the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runner/host/unique_fd.h"

namespace runner::host {

enum class Phase : std::int32_t { starting, meeting, training, validating, saving, done };
[[nodiscard]] std::string_view to_text(Phase phase);

/// One rank's place. Lock-free, so that the death of a process at any point leaves it readable.
struct alignas(64) Heartbeat {
  std::atomic<std::int64_t> beats{0};  ///< goes up with every batch, before ranks wait for another
  std::atomic<std::int64_t> step{0};   ///< optimizer step being worked on, counted from 1
  std::atomic<Phase> phase{Phase::starting};
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

/// Memory with one Heartbeat a rank.
class HeartbeatPage {
 public:
  /// New memory with `ranks` places. Throws diag::Error (machine).
  static HeartbeatPage create(std::size_t ranks);
  /// That of the launcher, by the descriptor that the worker inherited. Throws diag::Error (failed)
  /// for a descriptor that holds no page of at least `ranks` places.
  static HeartbeatPage attach(int fd, std::size_t ranks);
  HeartbeatPage(HeartbeatPage&& other) noexcept;
  HeartbeatPage& operator=(HeartbeatPage&& other) noexcept;
  HeartbeatPage(const HeartbeatPage&) = delete;
  HeartbeatPage& operator=(const HeartbeatPage&) = delete;
  ~HeartbeatPage();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::size_t ranks() const { return ranks_; }
  [[nodiscard]] Heartbeat& operator[](std::size_t i) const { return places_[i]; }

 private:
  HeartbeatPage(UniqueFd fd, std::size_t ranks);

  UniqueFd fd_;
  std::size_t ranks_ = 0;
  Heartbeat* places_ = nullptr;
};

}  // namespace runner::host
