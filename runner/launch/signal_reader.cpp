#include "runner/launch/signal_reader.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "runner/diag/error.h"

namespace runner::launch {

SignalReader::SignalReader() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGTSTP})
    sigaddset(&set, signal);
  fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    throw diag::Error(diag::Exit::machine,
                      std::string("can't read signals: ") + std::strerror(errno));
  }
  sigprocmask(SIG_BLOCK, &set, &old_);
  // Inherited as ignored, it would let the kernel take the workers' statuses away unseen.
  old_child_action_ = std::signal(SIGCHLD, SIG_DFL);
}

SignalReader::~SignalReader() {
  std::signal(SIGCHLD, old_child_action_);
  sigprocmask(SIG_SETMASK, &old_, nullptr);
}

std::optional<int> SignalReader::next() const {
  signalfd_siginfo info{};
  ssize_t got = 0;
  do {
    got = read(fd_.get(), &info, sizeof info);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof info) return {};
  return static_cast<int>(info.ssi_signo);
}

}  // namespace runner::launch
