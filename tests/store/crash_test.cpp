// A writer stops at its n-th call to the file system, for every n, and the disk then loses what
// wasn't synced. Whatever is left must be the checkpoint before or the one after, whole.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runner/store/checkpoint.h"
#include "tests/fakes/temp_folder.h"
#include "tests/store/faulty_file_ops.h"
#include "tests/store/store_testing.h"

using namespace runner;
using namespace runner::store;

namespace {

using PowerLoss = FaultyFileOps::PowerLoss;

struct Scenario {
  const char* what;
  bool exchange;
  void (*prepare)(CheckpointFolder&);
  void (*until_reported)(CheckpointFolder&);  ///< returns once the new checkpoint is promised
  void (*afterwards)(CheckpointFolder&);
};

const Scenario kScenarios[] = {
    {"a first checkpoint", true, [](CheckpointFolder&) {},
     [](CheckpointFolder& folder) { Sample(20, "new").save_to(folder); }, [](CheckpointFolder&) {}},
    {"the next one, then links, then retention", true,
     [](CheckpointFolder& folder) {
       Sample(5, "older").save_to(folder);
       Sample(10, "old").save_to(folder);
       folder.link(Link::last, 10);
     },
     [](CheckpointFolder& folder) { Sample(20, "new").save_to(folder); },
     [](CheckpointFolder& folder) {
       folder.link(Link::last, 20);
       folder.retain({.keep_last = 1});
     }},
    {"the same step again, by exchange", true,
     [](CheckpointFolder& folder) { Sample(20, "old").save_to(folder); },
     [](CheckpointFolder& folder) { Sample(20, "new").save_to(folder); }, [](CheckpointFolder&) {}},
    {"the same step again, without exchange", false,
     [](CheckpointFolder& folder) { Sample(20, "old").save_to(folder); },
     [](CheckpointFolder& folder) { Sample(20, "new").save_to(folder); }, [](CheckpointFolder&) {}},
};

enum Outcome { finished = 10, crashed_before_report = 11, crashed_after_report = 12 };

struct Fault {
  int call;
  bool performed;
  PowerLoss loss;
  unsigned seed;
};

/// What the writer does, in a process of its own. Ends it.
[[noreturn]] void write_and_die(const std::filesystem::path& root, const Scenario& scenario,
                                const Fault& fault) {
  FaultyFileOps before(root / "graveyard0");
  CheckpointFolder old_folder(root / "ckpt", before);
  std::filesystem::create_directory(root / "ckpt");
  scenario.prepare(old_folder);

  FaultyFileOps ops(root / "graveyard1");
  if (!scenario.exchange) ops.forbid_exchange();
  Outcome outcome = crashed_before_report;
  const auto die = [&] {
    std::mt19937 random(fault.seed);
    ops.lose_power(root / "ckpt", fault.loss, random);
    ::_exit(outcome);
  };
  ops.crash_at(fault.call, fault.performed, die);
  CheckpointFolder folder(root / "ckpt", ops);
  scenario.until_reported(folder);
  outcome = crashed_after_report;
  scenario.afterwards(folder);
  outcome = finished;
  die();
  std::abort();
}

Outcome run_writer(const std::filesystem::path& root, const Scenario& scenario,
                   const Fault& fault) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      write_and_die(root, scenario, fault);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) >= finished);
  REQUIRE(WEXITSTATUS(status) <= crashed_after_report);
  return static_cast<Outcome>(WEXITSTATUS(status));
}

/// What the next run does at its start, and what it must find.
void check_recovery(const std::filesystem::path& root, const Scenario& scenario, Outcome outcome) {
  FaultyFileOps ops(root / "graveyard2");
  CheckpointFolder folder(root / "ckpt", ops);
  folder.clean_leftovers();
  for (const std::string& name : names_in(root / "ckpt")) CHECK_FALSE(name.starts_with('.'));

  std::vector<std::string> skipped;
  const std::optional<Manifest> found = folder.newest_valid(&skipped);
  CHECK(skipped.empty());  // never a half one, not even to be passed over
  const bool had_one = std::string(scenario.what) != "a first checkpoint";
  if (outcome != crashed_before_report) {
    REQUIRE(found);
    CHECK(found->extra.at("generation") == "new");
  } else if (had_one) {
    REQUIRE(found);
    CHECK(std::set<std::string>{"old", "new"}.contains(found->extra.at("generation")));
  }
  CHECK(Sample(30, "next").save_to(folder).step == 30);
  CHECK(folder.newest_valid(nullptr)->step == 30);
}

/// Runs every n until the writer gets through; the number of crashes.
int crash_everywhere(const Scenario& scenario, bool performed, PowerLoss loss, unsigned seed) {
  for (int n = 1;; ++n) {
    CAPTURE(std::string(scenario.what));
    CAPTURE(n);
    CAPTURE(performed);
    CAPTURE(seed);
    TempFolder temp;
    const Outcome outcome = run_writer(
        temp.path(), scenario, {.call = n, .performed = performed, .loss = loss, .seed = seed + n});
    check_recovery(temp.path(), scenario, outcome);
    if (outcome == finished) return n - 1;
  }
}

}  // namespace

TEST_CASE("crash: killed at any call, the checkpoint before or after is there, whole") {
  for (const Scenario& scenario : kScenarios) {
    for (const bool performed : {false, true}) {
      CHECK(crash_everywhere(scenario, performed, PowerLoss::none, 0) >= 16);
    }
  }
}

TEST_CASE("crash: with everything unsynced lost, too") {
  for (const Scenario& scenario : kScenarios) {
    for (const bool performed : {false, true}) {
      CHECK(crash_everywhere(scenario, performed, PowerLoss::everything_unsynced, 0) >= 16);
    }
  }
}

TEST_CASE("crash: with a random part of the unsynced lost, too") {
  for (const Scenario& scenario : kScenarios) {
    for (const unsigned seed : {1000U, 2000U}) {
      CHECK(crash_everywhere(scenario, true, PowerLoss::at_random, seed) >= 16);
    }
  }
}

TEST_CASE("crash: the disk model does lose what wasn't synced") {
  TempFolder temp;
  std::filesystem::create_directory(temp / "disk");
  FaultyFileOps ops(temp / "graveyard");
  std::mt19937 random(0);
  {
    FileWriter out(ops, temp / "disk/data-synced");
    out.write("x");
    out.finish();
  }
  CHECK(ops.sync_folder(temp / "disk") == 0);
  {
    FileWriter out(ops, temp / "disk/name-unsynced");
    out.write("x");
    out.finish();
  }
  CHECK(ops.rename(temp / "disk/data-synced", temp / "disk/renamed") == 0);
  ops.lose_power(temp / "disk", PowerLoss::everything_unsynced, random);
  CHECK(names_in(temp / "disk") == std::vector<std::string>{"data-synced"});
  CHECK(temp.read("disk/data-synced") == "x");

  const int fd = ops.create(temp / "disk/data-unsynced");
  CHECK(ops.write(fd, std::as_bytes(std::span("x", 1))) == 1);
  CHECK(ops.sync_folder(temp / "disk") == 0);
  ops.lose_power(temp / "disk", PowerLoss::everything_unsynced, random);
  CHECK(names_in(temp / "disk") == std::vector<std::string>{"data-synced", "data-unsynced"});
  CHECK(temp.read("disk/data-unsynced").empty());
}
