#include "runner/engine/signals.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace runner::engine {

namespace {

std::atomic<int> caught{0};
std::atomic<pid_t> launcher{-1};
std::atomic<int> from_launcher{0}, from_others{0};
static_assert(std::atomic<int>::is_always_lock_free, "a handler must not wait for a lock");

/// A batch system signals every process of a job, and the launcher passes on what it gets: the same
/// request comes twice. So a second one is a second one of the same sender.
extern "C" void on_signal(int signal, siginfo_t* info, void* /*context*/) {
  int none = 0;
  caught.compare_exchange_strong(none, signal);
  std::atomic<int>& requests = info->si_pid == launcher.load() ? from_launcher : from_others;
  if (requests.fetch_add(1) > 0) _exit(128 + signal);
}

}  // namespace

const std::atomic<int>& catch_signals() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
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
  launcher = parent;
}

}  // namespace runner::engine
