#include "runner/launch/crew.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>

using namespace runner;
using launch::CrewPlan;

namespace {

struct Bench {
  plan::Plan plan;
  launch::Topology topology;

  explicit Bench(std::int64_t ranks) {
    plan.world_size = ranks;
    topology.world_size = topology.ranks_here = topology.local_size = ranks;
    unsetenv("OMP_NUM_THREADS");
  }
  [[nodiscard]] CrewPlan crew() const {
    return {.plan = plan,
            .topology = topology,
            .plan_file = {},
            .worker = {},
            .address = "10.0.0.2",
            .store = {.host = "10.0.0.1", .port = 4711, .prefix = "abc-0"},
            .store_fd = 7,
            .attempt = 3,
            .gpus = plan.devices.ids,
            .devices = {}};
  }
  /// The value of a variable; "absent" when it isn't set.
  [[nodiscard]] static std::string value(const CrewPlan& crew, std::int64_t index,
                                         const std::string& name, int cores = 8) {
    std::string found = "absent";
    for (const std::string& entry : launch::worker_environment(crew, index, 5, cores)) {
      if (entry.starts_with(name + "=")) found = entry.substr(name.size() + 1);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("crew: a worker learns its place, the store and its heartbeat") {
  Bench t(4);
  t.topology = {.started = {},
                .world_size = 6,
                .first_rank = 4,
                .ranks_here = 2,
                .local_rank = 0,
                .local_size = 2,
                .node_rank = 2,
                .num_nodes = 3,
                .launchers = 3,
                .launcher = 2};
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"RANK", "5"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "6"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "2"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "4711"},
      {"RUNNER_STORE_PREFIX", "abc-0"},
      {"RUNNER_STORE_FD", "absent"},
      {"RUNNER_ADDRESS", "10.0.0.2"},
      {"RUNNER_ATTEMPT", "3"},
      {"RUNNER_HEARTBEAT_FD", "5"},
      {"RUNNER_HEARTBEAT_SLOT", "1"},
      {"RUNNER_HEARTBEAT_SLOTS", "2"},
      {"RUNNER_DEVICES", ""},
      {"CUDA_VISIBLE_DEVICES", "absent"},
  };
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(t.value(t.crew(), 1, name) == value);
  }
}

TEST_CASE("crew: the store's socket is rank 0's, and a single rank has no store") {
  const Bench two(2);
  CHECK(two.value(two.crew(), 0, "RUNNER_STORE_FD") == "7");
  CHECK(two.value(two.crew(), 1, "RUNNER_STORE_FD") == "absent");
  const Bench one(1);
  for (const std::string name :
       {"RUNNER_STORE_FD", "RUNNER_STORE_PREFIX", "MASTER_ADDR", "MASTER_PORT"})
    CHECK(one.value(one.crew(), 0, name) == "absent");
}

TEST_CASE("crew: on the CPU the cores are shared out, unless somebody has done so") {
  Bench t(3);
  CHECK(t.value(t.crew(), 0, "OMP_NUM_THREADS", 8) == "2");
  CHECK(t.value(t.crew(), 0, "OMP_NUM_THREADS", 2) == "1");
  setenv("OMP_NUM_THREADS", "5", 1);
  CHECK(t.value(t.crew(), 0, "OMP_NUM_THREADS", 8) == "absent");
  unsetenv("OMP_NUM_THREADS");
  t.plan.devices = {.type = "cuda", .ids = {0, 1, 2}, .note = ""};
  CHECK(t.value(t.crew(), 0, "OMP_NUM_THREADS", 8) == "absent");
  const Bench one(1);
  CHECK(one.value(one.crew(), 0, "OMP_NUM_THREADS", 8) == "absent");
}

TEST_CASE("crew: one GPU a rank where ranks share the batch, all of them where a process does") {
  Bench t(3);
  t.plan.devices = {.type = "cuda", .ids = {6, 2, 4}, .note = ""};
  for (const std::string backend : {"ddp", "horovod"}) {
    t.plan.backend = backend;
    CHECK(t.value(t.crew(), 1, "CUDA_VISIBLE_DEVICES") == "2");
    CHECK(t.value(t.crew(), 1, "RUNNER_DEVICES") == "0");
    CHECK(t.value(t.crew(), 1, "CUDA_DEVICE_ORDER") == "PCI_BUS_ID");
  }
  for (const std::string backend : {"none", "dp", "ddp2", "balanced"}) {
    t.plan.backend = backend;
    CHECK(t.value(t.crew(), 0, "CUDA_VISIBLE_DEVICES") == "6,2,4");
    CHECK(t.value(t.crew(), 0, "RUNNER_DEVICES") == "0,1,2");
  }
  // One launcher a rank: the second process of its machine.
  t.plan.backend = "ddp";
  t.topology.ranks_here = 1;
  t.topology.local_rank = 2;
  CHECK(t.value(t.crew(), 0, "CUDA_VISIBLE_DEVICES") == "4");
}

TEST_CASE("crew: what SLURM bound stays as it is") {
  Bench t(2);
  t.plan.backend = "ddp";
  t.plan.devices = {.type = "cuda", .ids = {0, 1}, .note = ""};
  t.topology.started.starter = launch::Starter::slurm;
  CrewPlan crew = t.crew();
  crew.devices = {{0}, {1}};
  CHECK(t.value(crew, 1, "CUDA_VISIBLE_DEVICES") == "absent");
  CHECK(t.value(crew, 1, "CUDA_DEVICE_ORDER") == "absent");
  CHECK(t.value(crew, 1, "RUNNER_DEVICES") == "1");
}
