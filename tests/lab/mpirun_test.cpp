// `runner` as the program that Open MPI's mpirun starts, on one host and on two. With backend "ddp"
// MPI only starts the processes; what they exchange goes by gloo.
#include <doctest/doctest.h>

#include "tests/lab/lab.h"

using namespace runner;
using namespace runner::lab;

namespace {

Arguments mpirun(int processes, const Arguments& options = {}) {
  return Arguments{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np",
                   std::to_string(processes)} +
         options;
}

Arguments runner_with(const Arguments& arguments) {
  return Arguments{e2e::runner_path(), "t.toml"} + arguments;
}

std::string processes(int count) { return "trainer.num_processes=" + std::to_string(count); }

/// Options by which mpirun, on h1, starts its helper on other hosts, as it does by ssh elsewhere.
Arguments hosts(const Bench& bench, const std::string& list) {
  bench.write(
      "on_host",
      "#!/bin/sh\nhost=${1#h}\nshift\nexec \"$RUNNER_NET_LAB\" on \"$host\" sh -c \"$*\"\n");
  std::filesystem::permissions(bench.path() / "on_host", std::filesystem::perms::owner_all);
  return {"--host",
          list,
          "--mca",
          "plm_rsh_agent",
          bench.path() / "on_host",
          "--mca",
          "btl_tcp_if_include",
          "eth0"};
}

Arguments on_first_host(const Arguments& command) {
  return Arguments{std::getenv("RUNNER_NET_LAB"), "on", "1"} + command;
}

}  // namespace

TEST_CASE("mpirun: two and four processes train as one launcher's do") {
  for (const int count : {2, 4}) {
    CAPTURE(count);
    const Bench bench;
    const e2e::Result result = bench.run(mpirun(count) + runner_with({processes(count)}));
    CHECK_MESSAGE(result.status == 0, result.err);
    CHECK(has(result.out, "Open MPI, rank 0 of " + std::to_string(count)));
    CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(count));
  }
}

TEST_CASE("mpirun: another number of processes than the run has is refused with both") {
  const Bench bench;
  const e2e::Result result = bench.run(mpirun(3) + runner_with({processes(2)}));
  CHECK(result.status == 3);
  CHECK(has(result.err, "one of 3"));
  CHECK(has(result.err, "2 processes"));
  CHECK(has(result.err, "mpirun -np 2"));
}

TEST_CASE("mpirun: a rank that fails ends all of them, and is named") {
  const Bench bench;
  const e2e::Result result =
      bench.run(mpirun(2) + runner_with({processes(2), "debug.fail=\"rank=1,step=3,how=throw\""}));
  CHECK(result.status == 1);
  CHECK(has(result.err, "rank 1 (on "));
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 2));
}

TEST_CASE("mpirun: a launcher that is killed ends all of them in seconds") {
  const Bench bench(kLong);
  Running run = bench.start(mpirun(2) + runner_with({processes(2)}));
  REQUIRE(comes_true([&] { return bench.trains(); }));
  pid_t victim = 0;
  for (const pid_t pid : processes_with(e2e::runner_path())) {
    if (variable_of(pid, "OMPI_COMM_WORLD_RANK") == "1" && variable_of(pid, "RANK") == "(not set)")
      victim = pid;
  }
  REQUIRE(victim != 0);
  kill(victim, SIGKILL);
  const e2e::Result result = run.result();
  CHECK(result.status != 0);
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 5));
}

TEST_CASE("mpirun: SIGTERM and Ctrl-C save a checkpoint") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Bench bench(kLong);
    Running run = bench.start(mpirun(2) + runner_with({processes(2)}));
    REQUIRE(comes_true([&] { return bench.trains(); }));
    kill(run.pid(), signal);
    const e2e::Result result = run.result();
    CHECK(std::filesystem::exists(bench.only_run() / "checkpoints/last"));
    CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 5));
  }
}

TEST_CASE("mpirun: two hosts train as one machine does") {
  const std::string expected = weights_on_one_machine(4);
  const Arguments shape = {"trainer.num_nodes=2", processes(2)};
  const Bench bench;
  SUBCASE("one launcher for each rank") {
    const e2e::Result result =
        bench.run(on_first_host(mpirun(4, hosts(bench, "h1:2,h2:2")) + runner_with(shape)));
    CHECK_MESSAGE(result.status == 0, result.err);
  }
  SUBCASE("one launcher for each node") {
    const e2e::Result result =
        bench.run(on_first_host(mpirun(2, hosts(bench, "h1:1,h2:1")) + runner_with(shape)));
    CHECK_MESSAGE(result.status == 0, result.err);
  }
  CHECK(weights_hash(bench.only_run()) == expected);
}

#ifdef RUNNER_HAS_MPI
TEST_CASE("mpirun: horovod's gradients go from host to host through MPI") {
  const Bench bench;
  const e2e::Result result = bench.run(
      on_first_host(mpirun(2, hosts(bench, "h1:1,h2:1")) +
                    runner_with({"trainer.backend=horovod", "trainer.num_nodes=2", processes(1)})));
  CHECK_MESSAGE(result.status == 0, result.err);
  CHECK(manifest(bench.only_run()).at("backend") == "horovod");
  // A sum of two numbers is the same in either order.
  CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(2));
}
#endif
