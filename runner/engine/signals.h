// engine: how the worker ends when it is asked to, or when its launcher is gone.
#pragma once

#include <atomic>

namespace runner::engine {

/// From now on the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 only sets the returned number, so that
/// the training loop can end at a step's boundary; a second one of the same sender, the launcher or
/// anybody else, ends the process at once with status 128 + its number. A file that may not grow
/// further (`ulimit -f`) is an error of the write and no longer a signal.
const std::atomic<int>& catch_signals();

/// Makes the kernel end this process when `parent`, the launcher, ends for whatever reason. Ends it
/// at once if that has happened already.
void die_with_parent(int parent);

}  // namespace runner::engine
