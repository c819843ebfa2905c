// The launcher with shell scripts in the worker's place.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "runner/diag/error.h"
#include "runner/launch/supervisor.h"
#include "tests/fakes/temp_folder.h"

using namespace runner;
namespace fs = std::filesystem;

namespace {

struct Bench {
  TempFolder folder;
  plan::Plan plan;

  Bench() { plan.run_folder = folder.path().string(); }

  fs::path worker(const std::string& body) {
    const fs::path file = folder.write("worker", "#!/bin/bash\n" + body + "\n");
    fs::permissions(file, fs::perms::owner_all);
    return file;
  }
  launch::Outcome run(const std::string& body) { return launch::run_alone(plan, worker(body)); }
};

}  // namespace

TEST_CASE("launch: the worker gets the plan's path and the rank's environment") {
  Bench t;
  t.plan.devices = {.type = "cuda", .ids = {3, 1}, .note = ""};
  const launch::Outcome outcome = t.run(
      "echo \"$1 $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $CUDA_VISIBLE_DEVICES "
      "$CUDA_DEVICE_ORDER "
      "$RUNNER_PARENT_PID\" > \"$(dirname \"$1\")/seen\"");
  CHECK(outcome.exit_status == 0);
  CHECK_FALSE(outcome.failure.has_value());
  CHECK(t.folder.read("seen") == (t.folder / "plan.json").string() + " 0 0 1 1 3,1 PCI_BUS_ID " +
                                     std::to_string(getpid()) + "\n");
  CHECK(plan::from_json(t.folder.read("plan.json")).run_folder == t.plan.run_folder);
}

TEST_CASE("launch: on the CPU the GPU variables are left as they are") {
  Bench t;
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  (void)t.run("echo \"$CUDA_VISIBLE_DEVICES\" > \"$(dirname \"$1\")/seen\"");
  unsetenv("CUDA_VISIBLE_DEVICES");
  CHECK(t.folder.read("seen") == "7\n");
}

TEST_CASE(
    "launch: a failure brings the worker's own record and status, or says that there is none") {
  Bench t;
  const launch::Outcome told = t.run(
      "echo '{\"message\": \"row 7 is bad\", \"help\": \"mend it\"}' > \"$RUNNER_FAILURE_FILE\"; "
      "exit 4");
  CHECK(told.exit_status == 4);
  REQUIRE(told.failure.has_value());
  CHECK(told.failure->message == "row 7 is bad");
  CHECK(told.failure->help == "mend it");
  // The record of an earlier attempt must not be taken for this one's.
  const launch::Outcome silent = t.run("exit 3");
  CHECK(silent.exit_status == 1);
  REQUIRE(silent.failure.has_value());
  CHECK(silent.failure->message == "the worker ended with status 3 and left no reason");
}

TEST_CASE("launch: a worker that dies by a signal is a failed run that names the signal") {
  Bench t;
  const launch::Outcome outcome = t.run("kill -SEGV $$");
  CHECK(outcome.exit_status == 1);
  REQUIRE(outcome.failure.has_value());
  CHECK(outcome.failure->message == "the worker was ended by signal 11 (SIGSEGV)");
}

TEST_CASE("launch: a missing worker says what to build") {
  Bench t;
  CHECK_THROWS_AS((void)launch::run_alone(t.plan, t.folder / "nothing"), diag::Error);
}

TEST_CASE(
    "launch: a signal is passed on once, however often it is sent at a moment, and a later one "
    "again") {
  Bench t;
  const fs::path worker = t.worker(
      "n=0; trap 'n=$((n+1)); echo x >> \"$(dirname \"$1\")/seen\"; [ $n = 2 ] && exit 130' INT\n"
      "touch \"$(dirname \"$1\")/ready\"\nwhile true; do sleep 0.01; done");
  const pid_t parent = getpid();
  // Blocked before the thread starts, so that it inherits the mask and never takes the signal
  // itself.
  sigset_t set;
  sigset_t old;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  std::thread sender([&] {
    while (!fs::exists(t.folder / "ready"))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(parent, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(parent, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(parent, SIGINT);
  });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  const launch::Outcome outcome = launch::run_alone(t.plan, worker);
  sender.join();
  CHECK(outcome.exit_status == 130);
  CHECK(t.folder.read("seen") == "x\nx\n");
}
