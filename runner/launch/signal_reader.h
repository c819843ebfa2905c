#pragma once

#include <signal.h>

#include <optional>

#include "runner/host/unique_fd.h"

namespace runner::launch {

/// While it lives, the signals of a launcher (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD)
/// are read from a descriptor instead of being delivered.
class SignalReader {
 public:
  SignalReader();
  ~SignalReader();
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The mask from before, for workers.
  [[nodiscard]] const sigset_t& old_mask() const { return old_; }
  /// The next signal that has come; never waits.
  [[nodiscard]] std::optional<int> next() const;

 private:
  sigset_t old_{};
  void (*old_child_action_)(int) = SIG_DFL;
  host::UniqueFd fd_;
};

}  // namespace runner::launch
