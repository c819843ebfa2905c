#include "runner/host/gpu_picker.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>

#include "runner/diag/error.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_environment.h"
#include "tests/fakes/fake_machine.h"
#include "tests/fakes/temp_folder.h"

namespace runner::host {
namespace {

struct Bench {
  explicit Bench(int gpus) : machine(gpus) {}

  GpuPicker picker() {
    return GpuPicker(machine, environment, clock, {.lock_folder = folder / "locks"});
  }

  std::string error(const std::function<void()>& pick) {
    try {
      pick();
    } catch (const diag::Error& error) {
      CHECK(error.exit() == diag::Exit::machine);
      CHECK(error.help() != "");
      return error.what();
    }
    return "no error";
  }

  TempFolder folder;
  FakeMachine machine;
  FakeEnvironment environment;
  FakeClock clock;
};

std::vector<int> indices(const std::vector<GpuLease>& leases) {
  std::vector<int> out;
  for (const GpuLease& lease : leases) out.push_back(lease.index());
  return out;
}

TEST_CASE(
    "gpu picker: takes the first free GPUs, and each lease keeps its GPU from the next pick") {
  Bench bench(4);
  GpuPicker picker = bench.picker();
  const auto first = picker.pick_multiple_gpus(2);
  CHECK(indices(first) == std::vector{0, 1});
  const GpuLease second = picker.pick_single_gpu();
  CHECK(second.index() == 2);
  CHECK(second.gpu().uuid == "GPU-00000002");
  {
    const GpuLease third = picker.pick_single_gpu();
    CHECK(third.index() == 3);
  }
  CHECK(picker.pick_single_gpu().index() == 3);  // free again once its lease is gone
  CHECK(bench.clock.sleeps().empty());
}

TEST_CASE("gpu picker: skips excluded, computing and full GPUs") {
  Bench bench(5);
  bench.machine.gpu_list[1].processes = {4711};
  bench.machine.gpu_list[2].free_bytes = std::int64_t{2} << 30;
  GpuPicker picker = bench.picker();
  CHECK(indices(picker.pick_multiple_gpus(2, {0})) == std::vector{3, 4});
  CHECK(picker.pick_single_gpu({0, 3}).index() == 4);
}

TEST_CASE("gpu picker: picks only from what CUDA_VISIBLE_DEVICES shows, in its order") {
  Bench bench(4);
  bench.environment.set("CUDA_VISIBLE_DEVICES", "3,1");
  CHECK(indices(bench.picker().pick_multiple_gpus(2)) == std::vector{3, 1});
}

TEST_CASE("gpu picker: too few free GPUs: names the busy ones, why, asked and available") {
  Bench bench(4);
  bench.machine.gpu_list[0].processes = {4711, 4712};
  bench.machine.gpu_list[2].free_bytes = std::int64_t{2} << 30;
  GpuPicker picker = bench.picker();
  const std::string holder = std::to_string(::getpid());
  {
    const GpuLease other = picker.pick_single_gpu({1});
    REQUIRE(other.index() == 3);
    CHECK(
        bench.error([&] { (void)picker.pick_multiple_gpus(3); }) ==
        "3 free GPUs were asked for, but 1 of 4 available is free: GPU 0 is used by processes "
        "4711, 4712, GPU 2 has only 2.0 of 80.0 GiB free, GPU 3 is held by another run (process " +
            holder + ")");
  }
  CHECK(bench.clock.sleeps().size() == 5);  // it might have been for a moment only
  CHECK(indices(picker.pick_multiple_gpus(2)) == std::vector{1, 3});  // a failed pick holds nothing
}

TEST_CASE("gpu picker: more GPUs than there are: no waiting") {
  Bench bench(2);
  CHECK(bench.error([&] { (void)bench.picker().pick_multiple_gpus(3); }) ==
        "3 free GPUs were asked for, but 2 of 2 available are free");
  CHECK(bench.error([&] {
    (void)bench.picker().pick_single_gpu({0, 1});
  }) == "1 free GPU was asked for, but no GPU is available here");
  Bench none(0);
  CHECK(none.error([&] { (void)none.picker().pick_multiple_gpus(2); }) ==
        "2 free GPUs were asked for, but no GPU is available here");
  CHECK(bench.clock.sleeps().empty());
}

TEST_CASE("gpu picker: zero GPUs are none, a negative number is a mistake") {
  Bench bench(2);
  CHECK(bench.picker().pick_multiple_gpus(0).empty());
  CHECK_THROWS_WITH_AS((void)bench.picker().pick_multiple_gpus(-1), "can't pick -1 GPUs",
                       diag::Error);
}

TEST_CASE("gpu picker: a GPU that gets free while waiting is taken") {
  Bench bench(1);
  struct FreedBySleep final : Clock {
    Seconds now() const override { return Seconds{0}; }
    std::chrono::system_clock::time_point wall_time() const override { return {}; }
    void sleep(Seconds) override {
      if (++sleeps == 2) machine->gpu_list[0].processes.clear();
    }
    FakeMachine* machine = nullptr;
    int sleeps = 0;
  } clock;
  clock.machine = &bench.machine;
  bench.machine.gpu_list[0].processes = {1};
  GpuPicker picker(bench.machine, bench.environment, clock,
                   {.lock_folder = bench.folder / "locks"});
  CHECK(picker.pick_single_gpu().index() == 0);
  CHECK(clock.sleeps == 2);
}

TEST_CASE("gpu picker: GPUs that a person names are shared, but not picked") {
  Bench bench(3);
  GpuPicker picker = bench.picker();
  const auto named = picker.hold_gpus({0, 2, 7});
  CHECK(indices(named) == std::vector{0, 2});
  const auto again = picker.hold_gpus({0});
  CHECK(indices(again) == std::vector{0});
  const GpuLease picked = picker.pick_single_gpu();
  CHECK(picked.index() == 1);
  CHECK(picker.hold_gpus({1}).empty());
}

TEST_CASE("gpu picker: a lock folder that others can touch isn't used") {
  Bench bench(1);
  const auto locks = bench.folder / "locks";
  const std::string start = "can't use '" + locks.native() + "' for GPU locks: ";
  const auto pick = [&] { (void)bench.picker().pick_single_gpu(); };

  std::filesystem::create_directory(locks);
  REQUIRE(::chmod(locks.c_str(), 0755) == 0);
  CHECK(bench.error(pick) == start + "other users have access to it");
  if (::geteuid() == 0) {
    REQUIRE(::chmod(locks.c_str(), 0700) == 0);
    REQUIRE(::chown(locks.c_str(), 12345, 12345) == 0);
    CHECK(bench.error(pick) == start + "it belongs to another user");
  }
  std::filesystem::remove(locks);
  std::filesystem::create_directory_symlink(bench.folder.path(), locks);
  CHECK(bench.error(pick) == start + "Not a directory");
  std::filesystem::remove(locks);
  pick();
  struct stat status {};
  REQUIRE(::stat(locks.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
}

/// Runs `count` processes that each pick `gpus_each` and hold them till all have had their try;
/// gives the GPUs that each got, empty for an error.
std::vector<std::vector<int>> race(int count, int gpus_each, const std::filesystem::path& locks) {
  std::array<int, 2> go{};
  std::array<int, 2> results{};
  std::array<int, 2> hold{};
  REQUIRE(::pipe(go.data()) == 0);
  REQUIRE(::pipe(results.data()) == 0);
  REQUIRE(::pipe(hold.data()) == 0);
  const auto wait_for_close = [](int fd) {
    char byte = 0;
    return ::read(fd, &byte, 1);
  };
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    ::close(go[1]);
    ::close(hold[1]);
    const FakeMachine machine(8);
    const FakeEnvironment environment;
    GpuPicker picker(
        machine, environment, system_clock(),
        {.lock_folder = locks, .retries = 12, .backoff = {Seconds{0.001}, Seconds{0.008}}});
    // One record a child, short enough to be written in one piece: its GPUs, -1 in empty places.
    std::array<int, 8> record{};
    record.fill(-1);
    std::vector<GpuLease> leases;
    wait_for_close(go[0]);
    try {
      leases = picker.pick_multiple_gpus(gpus_each);
      for (std::size_t k = 0; k < leases.size(); ++k) record[k] = leases[k].index();
    } catch (const diag::Error&) {
    }
    if (::write(results[1], record.data(), sizeof record) != sizeof record) ::_exit(1);
    wait_for_close(hold[0]);
    ::_exit(0);
  }
  ::close(go[0]);
  ::close(go[1]);  // all start at once
  std::vector<std::vector<int>> got;
  for (int i = 0; i < count; ++i) {
    std::array<int, 8> record{};
    REQUIRE(::read(results[0], record.data(), sizeof record) == sizeof record);
    got.emplace_back();
    for (const int index : record) {
      if (index >= 0) got.back().push_back(index);
    }
  }
  ::close(hold[0]);
  ::close(hold[1]);
  for (const pid_t pid : children) {
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
  ::close(results[0]);
  ::close(results[1]);
  return got;
}

TEST_CASE("gpu picker: processes that race never get one GPU twice, and all GPUs go out") {
  struct Case {
    int processes, gpus_each, winners;
  };
  for (const Case& c :
       {Case{8, 1, 8}, Case{12, 1, 8}, Case{4, 2, 4}, Case{2, 4, 2}, Case{6, 2, 4}}) {
    for (int round = 0; round < 5; ++round) {
      const TempFolder folder;
      const auto got = race(c.processes, c.gpus_each, folder / "locks");
      std::multiset<int> all;
      int winners = 0;
      for (const std::vector<int>& gpus : got) {
        all.insert(gpus.begin(), gpus.end());
        if (gpus.empty()) continue;
        ++winners;
        CHECK(gpus.size() == static_cast<std::size_t>(c.gpus_each));
      }
      CHECK(winners == c.winners);
      CHECK(all == std::multiset<int>{0, 1, 2, 3, 4, 5, 6, 7});
    }
  }
}

TEST_CASE("gpu picker: a holder that is killed gives its GPU back") {
  Bench bench(1);
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    const GpuLease lease = bench.picker().pick_single_gpu();
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(bench.error([&] { (void)bench.picker().pick_single_gpu(); }) ==
        "1 free GPU was asked for, but 0 of 1 available are free: GPU 0 is held by another run "
        "(process " +
            std::to_string(pid) + ")");
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  CHECK(bench.picker().pick_single_gpu().index() == 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("gpu picker: a program that a holder starts doesn't inherit the lock") {
  Bench bench(1);
  pid_t pid = 0;
  std::array<int, 2> alive{};
  REQUIRE(::pipe(alive.data()) == 0);
  {
    const GpuLease lease = bench.picker().pick_single_gpu();
    pid = ::fork();
    if (pid == 0) {
      ::dup2(alive[0], STDIN_FILENO);
      ::close(alive[1]);
      ::execl("/bin/cat", "cat", nullptr);
      ::_exit(1);
    }
    // The lock goes with exec, which this waits for.
    const std::string exe = "/proc/" + std::to_string(pid) + "/exe";
    std::error_code error;
    while (std::filesystem::read_symlink(exe, error).filename() == "test_host") ::usleep(200);
  }
  CHECK(bench.picker().pick_single_gpu().index() == 0);
  ::close(alive[0]);
  ::close(alive[1]);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace runner::host
