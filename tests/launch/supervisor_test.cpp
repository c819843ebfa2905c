// Runs of several ranks, with tests/launch/fake_worker.cpp in the worker's place.
#include "runner/launch/supervisor.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/launch/launchers.h"

using namespace runner;

namespace {

/// The end of a run of one launcher.
Ended run(Launchers& t, const std::string& fake) {
  t.fake = fake;
  return t.start().end();
}

pid_t pid_of_rank(const Launchers& t, const std::string& file, const std::string& rank) {
  for (const std::string& line : t.lines(file)) {
    if (line.starts_with(rank + " ")) return std::stoi(line.substr(rank.size() + 1));
  }
  return -1;
}

}  // namespace

TEST_CASE("launch: all ranks run, with one store among them, and leave nothing") {
  Launchers t(4);
  const Ended ended = run(
      t, "note seen RANK WORLD_SIZE MASTER_ADDR MASTER_PORT RUNNER_STORE_PREFIX; steps 2 1; done");
  CHECK(ended.status == 0);
  CHECK(ended.message.empty());
  std::vector<std::string> lines = t.lines("seen");
  REQUIRE(lines.size() == 4);
  std::sort(lines.begin(), lines.end());
  std::set<std::string> stores;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(lines[i].starts_with(std::to_string(i) + " 4 127.0.0.1 "));
    stores.insert(lines[i].substr(2));
  }
  CHECK(stores.size() == 1);
  CHECK(t.workers().empty());
  CHECK_FALSE(t.exists("failure.json"));
  CHECK_FALSE(t.exists("plan.json.tmp"));
}

TEST_CASE("launch: rank 0 prints where the launcher does, the others into files of their own") {
  Launchers t(3);
  // A launcher whose output is a file.
  t.fake = "print hello; done";
  Launcher launcher([&] {
    const int fd = open((t.folder / "out").c_str(), O_WRONLY | O_CREAT, 0666);
    dup2(fd, STDOUT_FILENO);
    return t.work(0);
  });
  CHECK(launcher.end().status == 0);
  CHECK(t.folder.read("out") == "hello\n");
  CHECK(t.folder.read("rank-1.log") == "hello\n");
  CHECK(t.folder.read("rank-2.log") == "hello\n");
  CHECK_FALSE(t.exists("rank-0.log"));
}

TEST_CASE("launch: rank 0's store is a socket that listens before anybody is told its port") {
  std::vector<std::unique_ptr<Launchers>> runs;
  std::vector<std::unique_ptr<Launcher>> started;
  for (int i = 0; i < 6; ++i) {
    runs.push_back(std::make_unique<Launchers>(2));
    runs.back()->fake = "0: store; note ports MASTER_PORT; sleep 200; done";
  }
  // All at one moment, so that no two may have one port.
  for (const auto& t : runs)
    started.push_back(std::make_unique<Launcher>([&t] { return t->work(0); }));
  std::set<std::string> ports;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CHECK(started[i]->end().status == 0);
    for (const std::string& port : runs[i]->lines("ports")) ports.insert(port);
  }
  CHECK(ports.size() == 6);
}

TEST_CASE("launch: a rank that is killed ends all within a second, and is named") {
  for (const std::string rank : {"0", "3"}) {
    Launchers t(4);
    t.fake = "steps 3 1; note pids RANK pid; steps 10000 5; done";
    Launcher launcher = t.start();
    REQUIRE(t.has_lines("pids", 4));
    const auto start = Clock::now();
    kill(pid_of_rank(t, "pids", rank), SIGKILL);
    const Ended ended = launcher.end();
    CHECK(seconds_since(start) < 1.0);
    CHECK(ended.status == 1);
    CHECK(ended.message.starts_with("rank " + rank +
                                    " (on h0) was ended by signal 9 (SIGKILL) in step "));
    CHECK(t.workers().empty());
  }
}

TEST_CASE("launch: a rank that fails ends all, its own message first, and leaves a record") {
  Launchers t(3);
  setenv("TORCHELASTIC_ERROR_FILE", (t.folder / "torch" / "error.json").c_str(), 1);
  std::filesystem::create_directories(t.folder / "torch");
  const Ended ended = run(t, "steps 7 1; 1: fail own 1 row 7 of a.csv is bad; hang");
  unsetenv("TORCHELASTIC_ERROR_FILE");
  CHECK(ended.seconds < 2.0);
  CHECK(ended.status == 1);
  CHECK(ended.message == "rank 1 (on h0): row 7 of a.csv is bad");
  CHECK(ended.help == "mend it");
  CHECK(ended.rank == 1);
  CHECK(ended.host == "h0");
  const auto record = nlohmann::json::parse(t.folder.read("failure.json"));
  CHECK(record["message"] == ended.message);
  CHECK(record["rank"] == 1);
  CHECK(record["host"] == "h0");
  CHECK(record["step"] == 7);
  CHECK(record["attempt"] == 0);
  const auto torch = nlohmann::json::parse(t.folder.read("torch/error.json"));
  CHECK(torch["message"]["message"] == ended.message);
}

TEST_CASE("launch: a rank that leaves early with status 0 is a failure, not a hang") {
  Launchers t(3);
  const Ended ended = run(t, "training; 2: exit 0; hang");
  CHECK(ended.seconds < 2.0);
  CHECK(ended.status == 1);
  CHECK(ended.message == "rank 2 (on h0) ended early, with status 0");
}

TEST_CASE("launch: the end that broke an exchange is told, though the exchange failed first") {
  Launchers t(2);
  const Ended ended =
      run(t, "training; 1: fail collective 1 connection reset; 0: sleep 100; 0: raise 11");
  CHECK(ended.message.starts_with("rank 0 (on h0) was ended by signal 11 (SIGSEGV)"));
}

TEST_CASE("launch: an exchange that fails by itself ends the run after a moment") {
  Launchers t(2);
  const Ended ended = run(t, "steps 1 1; 1: fail collective 1 sizes differ; hang");
  CHECK(ended.seconds < 2.0);
  CHECK(ended.message == "rank 1 (on h0): sizes differ");
  CHECK(ended.help == "mend it; ranks 0-1 were in step 1");
  CHECK(ended.kind == "collective");
}

TEST_CASE("launch: a stopped rank is found out by its heartbeat") {
  Launchers t(3);
  t.plan.timeout_seconds = 1;
  t.fake = "note pids RANK pid; 2: steps 5 1; 2: raise 19; steps 6 1; hang";
  Launcher launcher = t.start();
  const Ended ended = launcher.end();
  CHECK(ended.seconds >= 1.0);
  CHECK(ended.seconds < 3.5);
  CHECK(ended.status == 1);
  CHECK(ended.message ==
        "rank 2 (on h0) is stopped (SIGSTOP) and did not come to step 6 in 1 s; the others wait");
  CHECK(t.workers().empty());
}

TEST_CASE("launch: a rank that doesn't come is named after the start timeout") {
  Launchers t(4);
  t.plan.start_timeout_seconds = 1;
  const Ended ended = run(t, "3: hang; meeting; hang");
  CHECK(ended.seconds < 3.0);
  CHECK(ended.message == "rank 3 (on h0) did not arrive in 1 s");
}

TEST_CASE("launch: no worker outlives a launcher that is killed") {
  Launchers t(4);
  t.fake = "training; note ready RANK; hang";
  Launcher launcher = t.start();
  REQUIRE(t.has_lines("ready", 4));
  CHECK(t.workers().size() == 4);
  const auto start = Clock::now();
  launcher.signal(SIGKILL);
  CHECK(eventually([&] { return t.workers().empty(); }));
  CHECK(seconds_since(start) < 1.0);
  CHECK(launcher.end().status == 137);
}

TEST_CASE("launch: a signal reaches all ranks, which end by their own agreement") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    Launchers t(3);
    t.fake = "training; note ready RANK; steps 10000 20; done";
    Launcher launcher = t.start();
    REQUIRE(t.has_lines("ready", 3));
    launcher.signal(signal);
    const Ended ended = launcher.end();
    CHECK(ended.status == 128 + signal);
    CHECK(ended.message.empty());
    CHECK_FALSE(t.exists("failure.json"));
  }
}

TEST_CASE("launch: a second signal ends ranks at once that haven't heard the first") {
  Launchers t(3);
  t.fake = "training; note ready RANK; hang";
  Launcher launcher = t.start();
  REQUIRE(t.has_lines("ready", 3));
  launcher.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK(t.workers().size() == 3);
  launcher.signal(SIGTERM);
  CHECK(launcher.end().status == 143);
}

TEST_CASE("launch: ranks that agree to stop after somebody signalled one of them end as asked") {
  Launchers t(3);
  t.fake = "training; note pids RANK pid; steps 10000 20; done";
  Launcher launcher = t.start();
  REQUIRE(t.has_lines("pids", 3));
  for (const std::string rank : {"1", "0", "2"}) {
    kill(pid_of_rank(t, "pids", rank), SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  const Ended ended = launcher.end();
  CHECK(ended.status == 143);
  CHECK(ended.message.empty());
}

TEST_CASE("launch: a launcher that stood still with its ranks doesn't take that for a hang") {
  Launchers t(2);
  t.plan.timeout_seconds = 1;
  t.fake = "training; note ready RANK; steps 60 20; done";
  Launcher launcher = t.start();
  REQUIRE(t.has_lines("ready", 2));
  launcher.signal(SIGTSTP);
  int status = 0;
  REQUIRE(waitpid(launcher.pid(), &status, WUNTRACED) == launcher.pid());
  REQUIRE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  launcher.signal(SIGCONT);
  const Ended ended = launcher.end();
  CHECK(ended.status == 0);
  CHECK(ended.message.empty());
}

TEST_CASE("launch: a failed run starts again where the caller says, with nothing of the old one") {
  Launchers t(3);
  t.plan.max_restarts = 2;
  t.next_plan = [&](const launch::Failure& failure) {
    std::ofstream(t.folder / "asked", std::ios::app) << failure.message << "\n";
    plan::Plan next = t.plan;
    next.resume_from = (t.folder / "checkpoints" / "step-0000000040").string();
    return next;
  };
  t.fake =
      "note attempts RUNNER_ATTEMPT RUNNER_STORE_PREFIX; training; 1@0: fail own 1 bad luck; "
      "2@1: raise 9; @0: hang; @1: hang; steps 1 1; done";
  Launcher launcher([&] {
    dup2(open((t.folder / "err").c_str(), O_WRONLY | O_CREAT, 0666), STDERR_FILENO);
    return t.work(0);
  });
  const Ended ended = launcher.end();
  CHECK(ended.status == 0);
  CHECK(ended.message.empty());
  CHECK(t.folder.read("err") ==
        "rank 1 (on h0): bad luck; restart 1 of 2 from step 40\n"
        "rank 2 (on h0) was ended by signal 9 (SIGKILL) while training; restart 2 of 2 from step "
        "40\n");
  CHECK(plan::from_json(t.folder.read("plan.json")).resume_from->ends_with("step-0000000040"));
  // Whoever was killed at once may not have come to its note.
  std::set<std::string> stores;
  for (const std::string& line : t.lines("attempts")) stores.insert(line);
  CHECK(stores.size() == 3);
  CHECK_FALSE(t.exists("failure.json"));
}

TEST_CASE("launch: after its last restart a run has failed") {
  Launchers t(2);
  t.plan.max_restarts = 1;
  t.next_plan = [&](const launch::Failure&) { return t.plan; };
  const Ended ended = run(t, "note starts RANK; training; 0: fail own 1 again; hang");
  CHECK(ended.status == 1);
  CHECK(ended.message == "rank 0 (on h0): again");
  CHECK(nlohmann::json::parse(t.folder.read("failure.json"))["attempt"] == 1);
}

TEST_CASE("launch: a worker that can't work at all is not started again") {
  for (const int status : {2, 3, 4}) {
    Launchers t(2);
    t.plan.max_restarts = 5;
    t.next_plan = [&](const launch::Failure&) -> plan::Plan { throw std::logic_error("restart"); };
    const Ended ended = run(t, "0: fail own " + std::to_string(status) + " no such file; hang");
    CHECK(ended.status == status);
    CHECK(ended.message == "rank 0 (on h0): no such file");
  }
}

TEST_CASE("launch: when there is nothing to restart from, the failure says so") {
  Launchers t(2);
  t.plan.max_restarts = 1;
  t.next_plan = [](const launch::Failure&) -> plan::Plan {
    throw diag::Error(diag::Exit::failed, "all checkpoints are damaged");
  };
  const Ended ended = run(t, "0: fail own 1 bad luck; hang");
  CHECK(ended.message == "rank 0 (on h0): bad luck");
  CHECK(ended.help == "mend it; no restart: all checkpoints are damaged");
}

TEST_CASE("launch: somebody who ends the run doesn't get another attempt") {
  Launchers t(2);
  t.plan.max_restarts = 5;
  t.next_plan = [&](const launch::Failure&) {
    raise(SIGTERM);
    return t.plan;
  };
  const Ended ended = run(t, "note starts RANK; training; 0: fail own 1 bad luck; hang");
  CHECK(ended.status == 1);
  CHECK(ended.message == "rank 0 (on h0): bad luck");
}

TEST_CASE("launch: a worker that can't be started leaves none of the others") {
  Launchers t(3);
  t.fake = "hang";
  // Rank 1's log can't be made.
  std::filesystem::create_directory(t.folder / "rank-1.log");
  const Ended ended = t.start().end();
  CHECK(ended.status == 4);
  CHECK(ended.message.starts_with("can't open '" + (t.folder / "rank-1.log").string() + "': "));
  CHECK(t.workers().empty());
}

TEST_CASE("launch: 64 ranks start and end clean") {
  Launchers t(64);
  const Ended ended = run(t, "note seen RANK; steps 1 1; done");
  CHECK(ended.status == 0);
  CHECK(t.lines("seen").size() == 64);
  CHECK(ended.seconds < 60.0);
}

TEST_CASE("launch: many runs leave no zombie, no descriptor and no shared memory") {
  Launchers t(2);
  t.fake = "steps 1 0; done";
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), {});
  };
  const auto shared = count("/dev/shm");
  Launcher launcher([&] {
    launch::Outcome outcome = t.work(0);
    const auto descriptors = count("/proc/self/fd");
    for (int i = 0; i < 20 && outcome.exit_status == 0; ++i) outcome = t.work(0);
    if (waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) outcome.exit_status = 90;
    if (count("/proc/self/fd") != descriptors) outcome.exit_status = 91;
    return outcome;
  });
  CHECK(launcher.end().status == 0);
  CHECK(count("/dev/shm") == shared);
}

// --- several launchers ------------------------------------------------------------------------

namespace {

struct AllEnded {
  std::vector<Ended> ends;
  [[nodiscard]] std::vector<int> statuses() const {
    std::vector<int> result;
    for (const Ended& e : ends) result.push_back(e.status);
    return result;
  }
};

AllEnded run_all(const Launchers& t) {
  std::vector<std::unique_ptr<Launcher>> started;
  for (std::int64_t i = 0; i < t.launchers; ++i)
    started.push_back(std::make_unique<Launcher>([&t, i] { return t.work(i); }));
  AllEnded all;
  for (const auto& launcher : started) all.ends.push_back(launcher->end());
  return all;
}

}  // namespace

TEST_CASE("launchers: all start their ranks of one run, and end with it") {
  Launchers t(6, 3);
  t.fake =
      "note seen RANK LOCAL_RANK GROUP_RANK RUNNER_ADDRESS; note store MASTER_ADDR MASTER_PORT "
      "RUNNER_STORE_PREFIX;"
      "note plans plan; 0: store; steps 3 5; done";
  const AllEnded all = run_all(t);
  CHECK(all.statuses() == std::vector<int>{0, 0, 0});
  for (const Ended& e : all.ends) CHECK(e.message.empty());
  std::vector<std::string> seen = t.lines("seen");
  std::sort(seen.begin(), seen.end());
  CHECK(seen == std::vector<std::string>{"0 0 0 127.0.0.1", "1 1 0 127.0.0.1", "2 0 1 127.0.0.1",
                                         "3 1 1 127.0.0.1", "4 0 2 127.0.0.1", "5 1 2 127.0.0.1"});
  const std::vector<std::string> stores = t.lines("store");
  CHECK(std::set<std::string>(stores.begin(), stores.end()).size() == 1);
  // They share a run folder here, so nobody needs a copy of the plan.
  const std::vector<std::string> plans = t.lines("plans");
  CHECK(std::set<std::string>(plans.begin(), plans.end()) ==
        std::set<std::string>{(t.folder / "plan.json").string()});
}

TEST_CASE("launchers: a machine without the run folder gets the plan and keeps its ranks' logs") {
  Launchers t(2, 2);
  std::filesystem::create_directories(t.folder / "a" / "run");
  std::filesystem::create_directories(t.folder / "b");
  t.plan.run_folder = "run";
  t.fake = "print hello; 1: note plan_of_1 plan; done";
  Launcher leader([&] {
    std::filesystem::current_path(t.folder / "a");
    return t.work(0);
  });
  Launcher other([&] {
    std::filesystem::current_path(t.folder / "b");
    return t.work(1);
  });
  CHECK(leader.end().status == 0);
  CHECK(other.end().status == 0);
  CHECK(t.folder.read("b/run/rank-1.log") == "hello\n");
  CHECK(t.folder.read("plan_of_1").starts_with("/proc/" + std::to_string(other.pid())) == false);
  CHECK(t.folder.read("plan_of_1").starts_with("/proc/"));
}

TEST_CASE("launchers: one rank's failure ends all; only the leader has something to say") {
  Launchers t(4, 2);
  t.fake = "steps 3 1; 3: fail own 1 row 7 is bad; hang";
  std::vector<std::unique_ptr<Launcher>> started;
  for (std::int64_t i = 0; i < 2; ++i) {
    started.push_back(std::make_unique<Launcher>([&t, i] {
      const std::string file = (t.folder / ("torch-" + std::to_string(i))).string();
      setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
      return t.work(i);
    }));
  }
  const Ended leader = started[0]->end();
  const Ended other = started[1]->end();
  CHECK(leader.status == 1);
  CHECK(leader.seconds < 3.0);
  CHECK(leader.message == "rank 3 (on h1): row 7 is bad");
  CHECK(leader.host == "h1");
  CHECK(other.status == 1);
  CHECK(other.message.empty());
  CHECK(t.workers().empty());
  // torchrun shows what each says, and names the earliest.
  const auto told = [&t](const std::string& name) {
    return nlohmann::json::parse(t.folder.read(name)).at("message");
  };
  const auto time = [&told](const std::string& name) {
    return std::stoll(told(name).at("extraInfo").at("timestamp").get<std::string>());
  };
  CHECK(told("torch-0").at("message") == "rank 3 (on h1): row 7 is bad");
  CHECK(told("torch-1").at("message") == "rank 3 (on h1): row 7 is bad");
  CHECK(time("torch-1") <= time("torch-0"));
}

TEST_CASE("launchers: a rank that stands still is named over machines") {
  Launchers t(4, 2);
  t.plan.timeout_seconds = 2;
  t.fake = "3: steps 5 1; 3: raise 19; steps 6 1; hang";
  const AllEnded all = run_all(t);
  CHECK(all.statuses() == std::vector<int>{1, 1});
  CHECK(all.ends[0].seconds < 5.5);
  CHECK(all.ends[0].message ==
        "rank 3 (on h1) is stopped (SIGSTOP) and did not come to step 6 in 2 s; the others wait");
  CHECK(t.workers().empty());
}

TEST_CASE("launchers: when the leader is killed the others end their ranks and say so") {
  Launchers t(4, 2);
  t.fake = "training; note ready RANK; hang";
  Launcher leader = t.start(0);
  Launcher other = t.start(1);
  REQUIRE(t.has_lines("ready", 4));
  leader.signal(SIGKILL);
  const auto start = Clock::now();
  const Ended ended = other.end();
  CHECK(seconds_since(start) < 1.0);
  CHECK(ended.status == 1);
  CHECK(ended.message == "the leader (h0) is gone");
  CHECK(eventually([&] { return t.workers().empty(); }));
}

TEST_CASE("launchers: when another launcher is killed the leader names it and its ranks") {
  Launchers t(6, 3);
  t.plan.max_restarts = 3;  // not for this
  t.next_plan = [&](const launch::Failure&) { return t.plan; };
  t.fake = "training; note ready RANK; hang";
  Launcher leader = t.start(0);
  Launcher first = t.start(1);
  Launcher second = t.start(2);
  REQUIRE(t.has_lines("ready", 6));
  first.signal(SIGKILL);
  const Ended ended = leader.end();
  CHECK(ended.status == 1);
  CHECK(ended.message == "launcher 1 (h1, ranks 2-3) is gone");
  const Ended quiet = second.end();
  CHECK(quiet.status == 1);
  CHECK(quiet.message.empty());
  CHECK(eventually([&] { return t.workers().empty(); }));
}

TEST_CASE("launchers: one that isn't heard of any more ends the run, whatever its ranks do") {
  Launchers t(4, 2);
  t.plan.timeout_seconds = 1;  // the shortest silence that counts is 5 s
  t.fake = "training; note ready RANK; steps 3000 10; done";
  Launcher leader = t.start(0);
  Launcher other = t.start(1);
  REQUIRE(t.has_lines("ready", 4));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto start = Clock::now();
  other.signal(SIGSTOP);
  const Ended ended = leader.end();
  CHECK(seconds_since(start) > 0.9);
  CHECK(seconds_since(start) < 7.5);
  CHECK(ended.status == 1);
  CHECK(ended.message.starts_with("launcher 1 (h1, ranks 2-3) was not heard of for "));
}

TEST_CASE("launchers: a leader that isn't heard of any more is given up by the others") {
  Launchers t(4, 2);
  t.plan.timeout_seconds = 6;
  t.fake = "training; note ready RANK; steps 3000 10; done";
  Launcher leader = t.start(0);
  Launcher other = t.start(1);
  REQUIRE(t.has_lines("ready", 4));
  leader.signal(SIGSTOP);
  const auto start = Clock::now();
  const Ended ended = other.end();
  CHECK(seconds_since(start) > 4.5);
  CHECK(seconds_since(start) < 8.0);
  CHECK(ended.status == 1);
  CHECK(ended.message == "the leader (h0) was not heard of for 6 s");
}

TEST_CASE("launchers: a restart is one on all machines") {
  Launchers t(4, 2);
  t.plan.max_restarts = 2;
  t.next_plan = [&](const launch::Failure&) { return t.plan; };
  t.fake =
      "note attempts RANK RUNNER_ATTEMPT; training; 3@0: raise 9; 0@1: exit 0; @0: hang; @1: hang; "
      "steps 2 5; done";
  const AllEnded all = run_all(t);
  CHECK(all.statuses() == std::vector<int>{0, 0});
  const std::vector<std::string> attempts = t.lines("attempts");
  for (const std::string rank : {"0", "1", "2", "3"})
    CHECK(std::count(attempts.begin(), attempts.end(), rank + " 2") == 1);
  CHECK(t.workers().empty());
}

TEST_CASE("launchers: a signal to each of them is the end of all") {
  Launchers t(4, 2);
  t.fake = "training; note ready RANK; steps 10000 20; done";
  Launcher leader = t.start(0);
  Launcher other = t.start(1);
  REQUIRE(t.has_lines("ready", 4));
  leader.signal(SIGTERM);
  other.signal(SIGTERM);
  const Ended first = leader.end();
  const Ended second = other.end();
  CHECK(first.status == 143);
  CHECK(first.message.empty());
  CHECK(second.status == 143);
  CHECK(second.message.empty());
}

TEST_CASE("launchers: two signals to one of them end the ranks of all") {
  Launchers t(4, 2);
  t.fake = "training; note ready RANK; hang";
  Launcher leader = t.start(0);
  Launcher other = t.start(1);
  REQUIRE(t.has_lines("ready", 4));
  other.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  other.signal(SIGINT);
  CHECK(other.end().status == 130);
  CHECK(leader.end().status == 130);
  CHECK(t.workers().empty());
}

TEST_CASE("launchers: one that can't start its ranks ends the run with its reason") {
  Launchers t(4, 2);
  t.fake = "training; hang";
  std::filesystem::create_directory(t.folder / "rank-3.log");
  const AllEnded all = run_all(t);
  CHECK(all.statuses() == std::vector<int>{4, 4});
  CHECK(all.ends[0].message.starts_with("launcher 1 (h1, ranks 2-3): can't open '"));
  CHECK(all.ends[1].message.empty());
  CHECK(t.workers().empty());
}

TEST_CASE("launchers: a leader that can't start its ranks ends the others with its status") {
  Launchers t(4, 2);
  t.fake = "training; hang";
  std::filesystem::create_directory(t.folder / "rank-1.log");
  const AllEnded all = run_all(t);
  CHECK(all.statuses() == std::vector<int>{4, 4});
  CHECK(all.ends[0].message.starts_with("can't open '"));
  CHECK(all.ends[1].message.empty());
  CHECK(t.workers().empty());
}
