#include "runner/engine/signals.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace runner::engine {

namespace {

std::atomic<int> caught{0};
static_assert(std::atomic<int>::is_always_lock_free, "a handler must not wait for a lock");

extern "C" void on_signal(int signal) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

}  // namespace

const std::atomic<int>& catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : std::array{SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    sigaction(signal, &action, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);
  return caught;
}

void die_with_parent(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

}  // namespace runner::engine
