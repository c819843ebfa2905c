#include "runner/host/heartbeat.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "runner/diag/error.h"

namespace runner::host {

namespace {

[[noreturn]] void fail(diag::Exit exit, const std::string& what) {
  throw diag::Error(exit, what + ": " + std::strerror(errno));
}

}  // namespace

std::string_view to_text(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return "starting";
    case Phase::meeting:
      return "meeting the other ranks";
    case Phase::training:
      return "training";
    case Phase::validating:
      return "validating";
    case Phase::saving:
      return "saving";
    case Phase::done:
      return "done";
  }
  return "";
}

HeartbeatPage::HeartbeatPage(UniqueFd fd, std::size_t ranks) : fd_(std::move(fd)), ranks_(ranks) {
  void* const memory =
      mmap(nullptr, ranks * sizeof(Heartbeat), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) fail(diag::Exit::failed, "can't map the heartbeats");
  places_ = static_cast<Heartbeat*>(memory);
}

HeartbeatPage HeartbeatPage::create(std::size_t ranks) {
  UniqueFd fd(memfd_create("heartbeats", MFD_CLOEXEC));
  const auto bytes = static_cast<off_t>(ranks * sizeof(Heartbeat));
  if (fd.get() < 0 || ftruncate(fd.get(), bytes) != 0)
    fail(diag::Exit::machine, "can't make a file in memory");
  HeartbeatPage page(std::move(fd), ranks);
  for (std::size_t i = 0; i < ranks; ++i) new (&page.places_[i]) Heartbeat;
  return page;
}

HeartbeatPage HeartbeatPage::attach(int fd, std::size_t ranks) {
  struct stat info {};
  const bool is_page = fstat(fd, &info) == 0 && info.st_size >= 0 &&
                       static_cast<std::size_t>(info.st_size) >= ranks * sizeof(Heartbeat);
  if (!is_page) {
    throw diag::Error(diag::Exit::failed,
                      "descriptor " + std::to_string(fd) + " holds no heartbeats",
                      "runner starts runner-worker, people don't");
  }
  return {UniqueFd(fd), ranks};
}

HeartbeatPage::HeartbeatPage(HeartbeatPage&& other) noexcept
    : fd_(std::move(other.fd_)),
      ranks_(other.ranks_),
      places_(std::exchange(other.places_, nullptr)) {}

HeartbeatPage& HeartbeatPage::operator=(HeartbeatPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(ranks_, other.ranks_);
  std::swap(places_, other.places_);
  return *this;
}

HeartbeatPage::~HeartbeatPage() {
  if (places_ != nullptr) munmap(places_, ranks_ * sizeof(Heartbeat));
}

}  // namespace runner::host
