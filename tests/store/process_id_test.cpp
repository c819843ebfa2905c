#include "runner/store/process_id.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

using runner::store::ProcessId;

TEST_CASE("process id: survives the way through a file name") {
  const ProcessId self = ProcessId::self();
  CHECK(self.pid == ::getpid());
  CHECK(self.start_ticks > 0);
  CHECK(ProcessId::parse(self.str()) == self);
}

TEST_CASE("process id: other texts are refused") {
  for (const char* text : {"", "-", "12", "12-", "x-1-ab", "12-x-ab", "-5-1-ab", "0-1-ab",
                           "5-1-a/b", "5-1-AB", "99999999999999999999-1-ab"}) {
    CAPTURE(text);
    CHECK_FALSE(ProcessId::parse(text));
  }
}

TEST_CASE("process id: alive is this process, not one of another start, boot or time") {
  const ProcessId self = ProcessId::self();
  CHECK(self.alive());
  ProcessId other = self;
  other.start_ticks += 1;
  CHECK_FALSE(other.alive());
  other = self;
  other.boot_id = "00000000-0000-0000-0000-000000000000";
  CHECK_FALSE(other.alive());
}

TEST_CASE("process id: a child that has ended is dead, as a zombie too") {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = ProcessId::self().str();
    const bool written = ::write(ready[1], text.data(), text.size()) > 0;
    ::close(ready[1]);
    ::_exit(written ? 0 : 1);
  }
  ::close(ready[1]);
  char buffer[128];
  const ssize_t count = ::read(ready[0], buffer, sizeof buffer);
  ::close(ready[0]);
  REQUIRE(count > 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  const auto id = ProcessId::parse(std::string(buffer, static_cast<std::size_t>(count)));
  REQUIRE(id);
  CHECK(id->pid == child);
  CHECK_FALSE(id->alive());
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(id->alive());
}
