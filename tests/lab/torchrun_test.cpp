// `runner` as the program that torchrun starts, on one host and on two.
#include <doctest/doctest.h>

#include "tests/lab/lab.h"

using namespace runner;
using namespace runner::lab;

namespace {

Arguments on(int host, const Arguments& command) {
  return Arguments{std::getenv("RUNNER_NET_LAB"), "on", std::to_string(host)} + command;
}

/// torchrun with so many processes a node.
Arguments torchrun(int processes, const Arguments& options) {
  return Arguments{"env",
                   std::string("PYTHONPATH=") + std::getenv("RUNNER_TORCHRUN_PYTHONPATH"),
                   "python3",
                   "-W",
                   "ignore",
                   "-m",
                   "torch.distributed.run",
                   "--no-python",
                   "--nproc-per-node",
                   std::to_string(processes)} +
         options;
}

Arguments runner_with(const Arguments& arguments) {
  return Arguments{e2e::runner_path(), "t.toml"} + arguments;
}

const Arguments kTwo = {"trainer.num_processes=2"};
const Arguments kTwoNodes = {"trainer.num_nodes=2", "trainer.num_processes=2"};

}  // namespace

TEST_CASE("torchrun: starts one launcher for each rank, which meet by its store") {
  const std::string expected = weights_on_one_machine(2);
  Arguments options;
  SUBCASE("at its default port") {}
  SUBCASE("standalone") { options = {"--standalone"}; }
  const Bench bench;
  const e2e::Result result = bench.run(torchrun(2, options) + runner_with(kTwo));
  CHECK(result.status == 0);
  CHECK(has(result.out, "torchrun, rank 0 of 2"));
  CHECK(weights_hash(bench.only_run()) == expected);
}

TEST_CASE("torchrun: starts one launcher for the node, which starts its ranks") {
  const Bench bench;
  const e2e::Result result = bench.run(torchrun(1, {"--standalone"}) + runner_with(kTwo));
  CHECK_MESSAGE(result.status == 0, result.err);
  CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(2));
}

TEST_CASE("torchrun: another number of processes than the run has is refused with both") {
  const Bench bench;
  const e2e::Result result =
      bench.run(torchrun(3, {"--standalone"}) + runner_with({"trainer.num_processes=2"}));
  CHECK(result.status != 0);
  CHECK(has(result.err, "one of 3"));
  CHECK(has(result.err, "2 processes"));
  CHECK(has(result.err, "torchrun --nnodes=1 --nproc-per-node=2"));
}

TEST_CASE("torchrun: its own report shows what the rank that failed says") {
  const Bench bench;
  const e2e::Result result =
      bench.run(torchrun(2, {"--standalone"}) +
                runner_with({"trainer.num_processes=2", "debug.fail=\"rank=1,step=3,how=throw\""}));
  CHECK(result.status == 1);
  const std::size_t report = result.err.find("Root Cause");
  REQUIRE(report != std::string::npos);
  const std::string cause = result.err.substr(report);
  CHECK(has(cause, "rank      : 1 "));
  CHECK(has(cause, "rank 1 (on "));
  CHECK_FALSE(has(cause, "error_file: <N/A>"));
}

TEST_CASE("torchrun: a run that it starts again goes on from the checkpoint") {
  const Bench bench(kLong);
  Running run = bench.start(torchrun(2, {"--standalone", "--max-restarts=1"}) +
                            runner_with({"trainer.num_processes=2", "checkpoint.resume=auto",
                                         "checkpoint.every_n_steps=20"}));
  REQUIRE(comes_true([&] {
    return bench.trains() && std::filesystem::exists(bench.runs().back() / "checkpoints/last");
  }));
  const std::vector<pid_t> before = processes_with("runner-worker");
  REQUIRE(before.size() == 2);
  kill(before.back(), SIGKILL);
  REQUIRE(comes_true([&] {
    const std::vector<pid_t> now = processes_with("runner-worker");
    return now.size() == 2 && now.front() != before.front() && now.back() != before.back();
  }));
  const std::string metrics = e2e::read_file(bench.only_run() / "metrics.csv");
  CHECK(comes_true([&] {
    return e2e::read_file(bench.only_run() / "metrics.csv").size() > metrics.size() + 100;
  }));
  kill(run.pid(), SIGTERM);
  const e2e::Result result = run.result();
  CHECK(manifest(bench.only_run()).at("status") == "interrupted");
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 5));
}

TEST_CASE("torchrun: two hosts train as one machine does") {
  const std::string expected = weights_on_one_machine(4);
  const auto start = [](const Bench& bench, int host, int processes, const Arguments& options) {
    return bench.start(
        on(host, torchrun(processes, Arguments{"--nnodes=2"} + options) + runner_with(kTwoNodes)));
  };
  const Bench bench;
  std::vector<Running> hosts;
  SUBCASE("static, one launcher for each rank") {
    for (int host = 1; host <= 2; ++host) {
      hosts.push_back(start(bench, host, 2,
                            {"--node-rank=" + std::to_string(host - 1), "--master-addr=10.77.0.1",
                             "--master-port=29500"}));
    }
  }
  SUBCASE("c10d, one launcher for each node") {
    for (int host = 1; host <= 2; ++host) {
      hosts.push_back(
          start(bench, host, 1,
                {"--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400", "--rdzv-id=7"}));
    }
  }
  for (Running& host : hosts) {
    const e2e::Result result = host.result();
    CHECK_MESSAGE(result.status == 0, result.err);
  }
  CHECK(weights_hash(bench.only_run()) == expected);
}
