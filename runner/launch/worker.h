// launch: one worker process, from its start to its end.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runner/host/unique_fd.h"
#include "runner/launch/failure.h"

namespace runner::launch {

struct WorkerStart {
  std::filesystem::path program;
  std::filesystem::path plan_file;
  std::vector<std::string> environment;  ///< "NAME=value", in place of what this process has
  std::vector<int> inherited;            ///< descriptors that the worker keeps under their numbers
  std::optional<std::filesystem::path> log;  ///< for what it prints; absent: where ours goes
};

/// A worker, in a process group of its own: a Ctrl-C of the terminal reaches it only through us.
/// Never outlives this object (killed), nor the thread that started it (by the kernel).
class WorkerProcess {
 public:
  /// Starts it with `mask` as its signal mask. Throws diag::Error (machine) when that fails.
  WorkerProcess(const WorkerStart& start, const sigset_t& mask);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  ~WorkerProcess();

  /// The wait status, once: at the first call after its end. What it started and left is killed.
  [[nodiscard]] std::optional<int> take_end();
  [[nodiscard]] bool running() const { return pid_ > 0; }
  [[nodiscard]] bool stopped() const;  ///< by SIGSTOP, a debugger, …
  void signal(int signal) const;       ///< to the process
  void kill_group() const;             ///< SIGKILL to it and to what it started
  /// What it wrote about its failure, if anything.
  [[nodiscard]] std::optional<Failure> failure() const;

 private:
  host::UniqueFd failure_file_;
  pid_t pid_ = -1;
};

}  // namespace runner::launch
