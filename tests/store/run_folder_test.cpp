#include "runner/store/run_folder.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/temp_folder.h"
#include "tests/store/faulty_file_ops.h"
#include "tests/store/store_testing.h"

using namespace runner;
using namespace runner::store;
namespace fs = std::filesystem;

namespace {

/// 2026-03-04 05:06:07 UTC.
const auto kTime = std::chrono::system_clock::from_time_t(1'772'600'767);

class TimeZone {
 public:
  explicit TimeZone(const char* zone) {
    const char* old = ::getenv("TZ");
    if (old != nullptr) old_ = old;
    ::setenv("TZ", zone, 1);
    ::tzset();
  }
  TimeZone(const TimeZone&) = delete;
  TimeZone& operator=(const TimeZone&) = delete;
  ~TimeZone() {
    if (old_.empty()) {
      ::unsetenv("TZ");
    } else {
      ::setenv("TZ", old_.c_str(), 1);
    }
    ::tzset();
  }

 private:
  std::string old_;
};

std::string host_name() {
  std::array<char, 256> name{};
  REQUIRE(::gethostname(name.data(), name.size()) == 0);
  return name.data();
}

/// A child that holds the lock of a folder until it is killed.
class HoldingChild {
 public:
  explicit HoldingChild(const fs::path& folder) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ready[0]);
      try {
        const RunLock lock(folder);
        if (::write(ready[1], "y", 1) == 1) ::pause();
      } catch (const diag::Error&) {
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    char answer = 'n';
    const bool held = ::read(ready[0], &answer, 1) == 1 && answer == 'y';
    ::close(ready[0]);
    REQUIRE(held);
  }
  HoldingChild(const HoldingChild&) = delete;
  HoldingChild& operator=(const HoldingChild&) = delete;
  ~HoldingChild() { kill(); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace

TEST_CASE("run folder: is named after run and local time, and numbered on a clash") {
  TempFolder temp;
  const TimeZone zone("UTC-2");  // POSIX's sign: two hours ahead of UTC
  const fs::path first = RunFolder::create(temp / "runs", "digits mlp", kTime).path();
  CHECK(first == temp / "runs/digits mlp/2026-03-04_07-06-07");
  CHECK(fs::is_directory(first));
  CHECK(RunFolder::create(temp / "runs", "digits mlp", kTime).path().native() ==
        first.native() + "-2");
  CHECK(RunFolder::create(temp / "runs", "digits mlp", kTime).path().native() ==
        first.native() + "-3");
}

TEST_CASE("run folder: runs that start together get one each") {
  TempFolder temp;
  constexpr int kRuns = 16;
  std::vector<fs::path> paths(kRuns);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRuns; ++i) {
    threads.emplace_back([&, i] {
      paths[static_cast<std::size_t>(i)] = RunFolder::create(temp.path(), "a", kTime).path();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::set<fs::path>(paths.begin(), paths.end()).size() == kRuns);
}

TEST_CASE("run folder: names that would lead elsewhere or hide are refused") {
  TempFolder temp;
  const struct {
    std::string name, shown, why;
  } cases[] = {
      {"", "", "is empty"},
      {".", ".", "begins with a dot"},
      {"..", "..", "begins with a dot"},
      {".hidden", ".hidden", "begins with a dot"},
      {"a/b", "a/b", "holds a slash"},
      {"../a", "../a", "holds a slash"},
      {"/etc", "/etc", "holds a slash"},
      {"a\nb", "a\\nb", "holds a control character"},
      {"a\x7f", "a\\x7f", "holds a control character"},
      {std::string("a\0b", 3), "a\\x00b", "holds a control character"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.shown);
    const auto error = error_of([&] { RunFolder::create(temp / "runs", c.name, kTime); });
    REQUIRE(error);
    CHECK(error->what() == "the run name '" + c.shown + "' can't name a folder: it " + c.why);
    CHECK(error->exit() == diag::Exit::invalid);
  }
  CHECK_FALSE(fs::exists(temp / "runs"));
}

TEST_CASE("run folder: one that can't be made is the machine's error") {
  TempFolder temp;
  temp.write("runs", "a file");
  const auto error = error_of([&] { RunFolder::create(temp / "runs", "a", kTime); });
  REQUIRE(error);
  CHECK(error->what() == "cannot make the folder '" + (temp / "runs").native() + "': File exists");
  CHECK(error->exit() == diag::Exit::machine);
  CHECK(error->help() == "choose another run folder");
}

TEST_CASE("probe: a folder that can be written to and has room passes and is left as it was") {
  TempFolder temp;
  CHECK_NOTHROW(probe(temp.path(), 1));
  CHECK_NOTHROW(probe(temp / "not/yet/there", 1));
  CHECK(names_in(temp.path()).empty());
}

TEST_CASE("probe: too little space is told with both numbers") {
  TempFolder temp;
  FaultyFileOps ops(temp / "graveyard");
  CHECK_NOTHROW(probe(temp / "runs", 1234, ops));
  const auto error = error_of([&] { probe(temp / "runs", 1235, ops); });
  REQUIRE(error);
  CHECK(error->what() == "'" + (temp / "runs").native() +
                             "' has too little space: 1235 bytes are needed, 1234 are free");
  CHECK(error->exit() == diag::Exit::machine);
  CHECK(error_of([&] { probe(temp.path(), std::numeric_limits<std::int64_t>::max()); }));
}

TEST_CASE("probe: a folder that can't be written to is told") {
  TempFolder temp;
  FaultyFileOps ops(temp / "graveyard");
  ops.fail_kind("create", EROFS);
  const auto error = error_of([&] { probe(temp / "runs", 1, ops); });
  REQUIRE(error);
  CHECK(error->what() == "cannot write in '" + temp.path().native() + "': Read-only file system");
  CHECK(error->exit() == diag::Exit::machine);
  temp.write("file", "");
  CHECK(message_of([&] { probe(temp / "file", 1); }) ==
        "cannot write in '" + (temp / "file").native() + "': Not a directory");
}

TEST_CASE("run lock: a second process is refused and told who holds it") {
  TempFolder temp;
  HoldingChild holder(temp.path());
  const auto error = error_of([&] { RunLock lock(temp.path()); });
  REQUIRE(error);
  const std::string prefix = "the run folder '" + temp.path().native() + "' is in use by process " +
                             std::to_string(holder.pid()) + " on host '" + host_name() + "' since ";
  const std::string what = error->what();
  REQUIRE(what.starts_with(prefix));
  CHECK(std::regex_match(what.substr(prefix.size()),
                         std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4})")));
  CHECK(error->exit() == diag::Exit::failed);
  CHECK(error->help() == "wait for that run to end, or stop it");
}

TEST_CASE("run lock: that of a dead process is taken over, with our own record") {
  TempFolder temp;
  {
    HoldingChild holder(temp.path());
    holder.kill();
  }
  const RunLock lock(temp.path());
  CHECK(temp.read(".lock").starts_with("pid: " + std::to_string(::getpid()) +
                                       "\nhost: " + host_name() + "\n"));
}

TEST_CASE("run lock: is held against this process too, and let go at its end") {
  TempFolder temp;
  {
    const RunLock lock(temp.path());
    CHECK(message_of([&] {
            RunLock second(temp.path());
          }).find("is in use by process " + std::to_string(::getpid()) + " ") != std::string::npos);
  }
  CHECK_NOTHROW(RunLock(temp.path()));
}

TEST_CASE(
    "run lock: a holder without a record, and a record of garbage, are no obstacle to the "
    "message") {
  TempFolder temp;
  const RunLock lock(temp.path());
  temp.write(".lock", "");
  CHECK(message_of([&] { RunLock second(temp.path()); }) ==
        "the run folder '" + temp.path().native() +
            "' is in use by a process that is just starting");
  temp.write(".lock", "pid: 1\x1b[31m\nhost: \n");
  CHECK(message_of([&] { RunLock second(temp.path()); }) ==
        "the run folder '" + temp.path().native() +
            "' is in use by process 1\\x1b[31m on host '' since ");
}

TEST_CASE(
    "run lock: a folder that isn't there, or a link in the lock's place, is the machine's error") {
  TempFolder temp;
  const auto error = error_of([&] { RunLock lock(temp / "none"); });
  REQUIRE(error);
  CHECK(error->what() ==
        "cannot lock '" + (temp / "none/.lock").native() + "': No such file or directory");
  CHECK(error->exit() == diag::Exit::machine);
  fs::create_symlink("/etc/passwd", temp / ".lock");
  CHECK(message_of([&] { RunLock lock(temp.path()); }) ==
        "cannot lock '" + (temp / ".lock").native() + "': Too many levels of symbolic links");
}
