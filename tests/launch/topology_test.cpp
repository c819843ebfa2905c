// Environments as torchrun 2.11, SLURM 22.05 and MPI set them.
#include "runner/launch/topology.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "runner/diag/error.h"
#include "tests/fakes/fake_environment.h"

using namespace runner;
using host::FakeEnvironment;
using launch::Starter;
using Numbers = std::vector<std::int64_t>;
using Variables = std::vector<std::pair<std::string, std::string>>;

namespace {

struct Refusal {
  diag::Exit exit = diag::Exit::ok;
  std::string message;
  std::string help;
};

Refusal refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const diag::Error& error) {
    return {.exit = error.exit(), .message = error.what(), .help = error.help()};
  }
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

FakeEnvironment with(FakeEnvironment environment, const Variables& changes) {
  for (const auto& [name, value] : changes) environment.set(name, value);
  return environment;
}

FakeEnvironment environment_of(const Variables& variables) { return with({}, variables); }

launch::Started detect(const FakeEnvironment& environment) {
  return launch::detect(environment, {});
}

Refusal refused(const FakeEnvironment& environment) {
  return refusal_of([&] { (void)detect(environment); });
}

plan::Plan plan_for(std::int64_t nodes, std::int64_t per_node) {
  plan::Plan plan;
  plan.num_nodes = nodes;
  plan.processes_per_node = per_node;
  plan.world_size = nodes * per_node;
  plan.command_line = "runner a.toml";
  return plan;
}

Refusal refused(const plan::Plan& plan, const launch::Started& started) {
  return refusal_of([&] { (void)launch::arrange(plan, started); });
}

/// A worker of `torchrun --nnodes=2 --nproc-per-node=2`.
FakeEnvironment torchrun(std::int64_t rank) {
  return environment_of({{"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                         {"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", std::to_string(rank % 2)},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"GROUP_RANK", std::to_string(rank / 2)},
                         {"GROUP_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "10.0.0.7"},
                         {"MASTER_PORT", "29500"}});
}

/// A task of `srun -N2 --ntasks-per-node=2` in job 12.
FakeEnvironment srun(std::int64_t task) {
  const std::string node = std::to_string(task / 2);
  return environment_of({{"SLURM_JOB_ID", "12"},
                         {"SLURM_JOB_NAME", "x"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", std::to_string(task)},
                         {"SLURM_LOCALID", std::to_string(task % 2)},
                         {"SLURM_NODEID", node},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_NTASKS_PER_NODE", "2"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"SLURM_STEP_NODELIST", "n[1-2]"},
                         {"SLURM_JOB_NUM_NODES", "2"},
                         {"SLURMD_NODENAME", "n" + std::to_string(task / 2 + 1)}});
}

/// The only task of `srun -N1 -n1`.
FakeEnvironment srun_one() {
  return environment_of({{"SLURM_JOB_ID", "12"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_NTASKS", "1"},
                         {"SLURM_STEP_NUM_TASKS", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "1"},
                         {"SLURM_STEP_NODELIST", "n1"},
                         {"SLURM_JOB_NUM_NODES", "1"},
                         {"SLURMD_NODENAME", "n1"}});
}

/// The shell of `sbatch -N<nodes> --ntasks-per-node=1`, which looks like a task 0.
FakeEnvironment batch_shell(const std::string& nodes) {
  return environment_of({{"SLURM_JOB_ID", "12"},
                         {"SLURM_JOB_NAME", "job"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_NTASKS", nodes},
                         {"SLURM_NTASKS_PER_NODE", "1"},
                         {"SLURM_TASKS_PER_NODE", "1(x" + nodes + ")"},
                         {"SLURM_JOB_NUM_NODES", nodes},
                         {"SLURM_JOB_NODELIST", "n[1-" + nodes + "]"},
                         {"SLURMD_NODENAME", "n1"}});
}

/// A process of `mpirun -np 4 --map-by ppr:2:node` of Open MPI.
FakeEnvironment open_mpi(std::int64_t rank) {
  return environment_of({{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % 2)},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"OMPI_COMM_WORLD_NODE_RANK", std::to_string(rank % 2)},
                         {"OMPI_MCA_orte_hnp_uri", "1234.0;tcp://10.77.0.1,192.168.0.2:35741"},
                         {"PMIX_NAMESPACE", "3513909249"},
                         {"PMIX_RANK", std::to_string(rank)}});
}

/// RANK, WORLD_SIZE and where to meet.
FakeEnvironment variables(const std::string& rank, const std::string& world_size) {
  return environment_of({{"RANK", rank},
                         {"WORLD_SIZE", world_size},
                         {"MASTER_ADDR", "10.0.0.7"},
                         {"MASTER_PORT", "29500"}});
}

/// What arranging gives, in one line.
std::string arranged(const plan::Plan& plan, const launch::Started& started) {
  const launch::Topology t = launch::arrange(plan, started);
  return "ranks " + std::to_string(t.first_rank) + "+" + std::to_string(t.ranks_here) + " of " +
         std::to_string(t.world_size) + ", local " + std::to_string(t.local_rank) + " of " +
         std::to_string(t.local_size) + ", node " + std::to_string(t.node_rank) + " of " +
         std::to_string(t.num_nodes) + ", launcher " + std::to_string(t.launcher) + " of " +
         std::to_string(t.launchers);
}

}  // namespace

// ---- nobody ------------------------------------------------------------------------------------

TEST_CASE(
    "topology: without a launcher's variables nobody started this, and there is nothing to say") {
  const launch::Started s = detect({});
  CHECK(s.starter == Starter::nobody);
  CHECK(s.why.empty());
  CHECK(s.rank == 0);
  CHECK(s.world_size == 1);
  CHECK(s.master_addr.empty());
  CHECK(arranged(plan_for(1, 4), s) ==
        "ranks 0+4 of 4, local 0 of 4, node 0 of 1, launcher 0 of 1");
}

TEST_CASE(
    "topology: several nodes that nothing started are refused, with three ways to start them") {
  const Refusal refusal = refused(plan_for(2, 4), detect({}));
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.message, "trainer.num_nodes is 2"));
  CHECK(has(refusal.help,
            "runner a.toml --node-rank N --master-addr HOST --master-port PORT with N = 0 to 1"));
  CHECK(has(refusal.help, "srun --nodes=2 --ntasks-per-node=4 runner a.toml"));
  CHECK(has(refusal.help, "torchrun --nnodes=2 --nproc-per-node=4 --no-python runner a.toml"));
}

// ---- by hand -----------------------------------------------------------------------------------

TEST_CASE("topology: flags come before every variable, sense or nonsense") {
  FakeEnvironment environment = with(srun(3), {{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "abc"}});
  const launch::Started s =
      launch::detect(environment, {.node_rank = 1, .master_addr = "n1", .master_port = 29501});
  CHECK(s.starter == Starter::hand);
  CHECK(s.master_addr == "n1");
  CHECK(s.master_port == 29501);
  CHECK(s.why ==
        "by hand, node 1, meeting at n1:29501 (the variables of torchrun and SLURM don't count)");
  CHECK(arranged(plan_for(2, 4), s) ==
        "ranks 4+4 of 8, local 0 of 4, node 1 of 2, launcher 1 of 2");
  CHECK(arranged(plan_for(3, 1), s) ==
        "ranks 1+1 of 3, local 0 of 1, node 1 of 3, launcher 1 of 3");
}

TEST_CASE(
    "topology: by hand, a run of several nodes needs an address, a port and a node that it has") {
  const auto by_hand = [](const launch::ByHand& flags) {
    return launch::detect(FakeEnvironment{}, flags);
  };
  const Refusal no_address = refused(plan_for(2, 1), by_hand({.node_rank = 0}));
  CHECK(no_address.exit == diag::Exit::invalid);
  CHECK(has(no_address.message, "--master-addr is not given"));
  const Refusal no_port = refused(plan_for(2, 1), by_hand({.node_rank = 0, .master_addr = "n1"}));
  CHECK(no_port.exit == diag::Exit::invalid);
  CHECK(has(no_port.message, "--master-port is not given"));
  CHECK(has(no_port.message, "can't agree"));
  const launch::ByHand third = {.node_rank = 2, .master_addr = "n1", .master_port = 1};
  const Refusal too_far = refused(plan_for(2, 1), by_hand(third));
  CHECK(too_far.exit == diag::Exit::incompatible);
  CHECK(too_far.message == "--node-rank is 2, and trainer.num_nodes is 2");
  CHECK(arranged(plan_for(1, 2), by_hand({.node_rank = 0})) ==
        "ranks 0+2 of 2, local 0 of 2, node 0 of 1, launcher 0 of 1");
  const Refusal no_node = refusal_of([&] { (void)by_hand({.master_addr = "n1"}); });
  CHECK(no_node.exit == diag::Exit::invalid);
  CHECK(no_node.message == "--master-addr is given, and --node-rank is not");
}

TEST_CASE("topology: flags that are no node, host or port are refused with their value") {
  const auto words = [](const launch::ByHand& flags) {
    const Refusal refusal = refusal_of([&] { launch::verify(flags); });
    return refusal.exit == diag::Exit::invalid ? refusal.message : "not refused";
  };
  CHECK(words({.node_rank = -1}) == "--node-rank takes 0 to 65535, not -1");
  CHECK(words({.node_rank = 65'536}) == "--node-rank takes 0 to 65535, not 65536");
  CHECK(words({.master_port = 0}) == "--master-port takes 1 to 65535, not 0");
  CHECK(words({.master_port = 70'000}) == "--master-port takes 1 to 65535, not 70000");
  for (const char* address : {"", "n1 n2", "n1:29500", "http://n1", "n\x1b[1m"}) {
    CAPTURE(address);
    CHECK(has(words({.master_addr = address}), "--master-addr is '"));
  }
  for (const char* address : {"n1", "n1.cluster.local", "10.0.0.1", "fe80::1%eth0"}) {
    CAPTURE(address);
    CHECK(words({.node_rank = 65'535, .master_addr = address, .master_port = 65'535}) ==
          "not refused");
  }
}

// ---- torchrun ----------------------------------------------------------------------------------

TEST_CASE("topology: torchrun's workers are ranks, and its agent keeps the store") {
  const launch::Started s = detect(torchrun(3));
  CHECK(s.starter == Starter::torchrun);
  CHECK(s.rank == 3);
  CHECK(s.world_size == 4);
  CHECK(s.local_rank == 1);
  CHECK(s.local_size == 2);
  CHECK(s.node_rank == 1);
  CHECK(s.num_nodes == 2);
  CHECK(s.master_addr == "10.0.0.7");
  CHECK(s.master_port == 29500);
  CHECK(s.agent_store);
  CHECK(s.why == "torchrun, rank 3 of 4 on node 1");
  CHECK(arranged(plan_for(2, 2), s) ==
        "ranks 3+1 of 4, local 1 of 2, node 1 of 2, launcher 3 of 4");
  CHECK_FALSE(detect(with(torchrun(3), {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST_CASE("topology: torchrun inside SLURM or MPI wins, and the line says so") {
  FakeEnvironment environment = srun(0);
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
        "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    environment.set(name, *torchrun(2).get(name));
  }
  const launch::Started s = detect(environment);
  CHECK(s.starter == Starter::torchrun);
  CHECK(s.rank == 2);
  CHECK(s.why == "torchrun, rank 2 of 4 on node 1 (the variables of SLURM don't count)");
}

TEST_CASE("topology: one worker of torchrun a node starts all ranks of its node") {
  const launch::Started s = detect(with(torchrun(0), {{"RANK", "1"},
                                                      {"WORLD_SIZE", "2"},
                                                      {"LOCAL_WORLD_SIZE", "1"},
                                                      {"LOCAL_RANK", "0"},
                                                      {"GROUP_RANK", "1"}}));
  CHECK(arranged(plan_for(2, 4), s) ==
        "ranks 4+4 of 8, local 0 of 4, node 1 of 2, launcher 1 of 2");
}

TEST_CASE("topology: with --virtual-local-rank the place on the node follows from the rank") {
  const launch::Started s = detect(with(torchrun(3), {{"LOCAL_RANK", "0"}}));
  CHECK(s.local_rank == 1);
  CHECK(detect(with(torchrun(2), {{"LOCAL_RANK", "0"}})).local_rank == 0);
}

TEST_CASE("topology: torchrun with other numbers than the plan's is refused with both and a fix") {
  const Refusal processes = refused(plan_for(2, 4), detect(torchrun(0)));
  CHECK(processes.exit == diag::Exit::incompatible);
  CHECK(processes.message ==
        "this process is one of 4 that were started, 2 of them on this node, and the run has 2 "
        "nodes with 4 processes each");
  CHECK(has(processes.help, "torchrun --nnodes=2 --nproc-per-node=4 --no-python runner a.toml"));
  const Refusal nodes = refused(plan_for(1, 4), detect(torchrun(0)));
  CHECK(nodes.exit == diag::Exit::incompatible);
  CHECK(nodes.message == "this process was started on 2 nodes, and trainer.num_nodes is 1");
  CHECK(has(nodes.help, "torchrun --nnodes=1 --nproc-per-node=4"));
}

TEST_CASE("topology: a variable of torchrun that is missing or out of its range is named") {
  FakeEnvironment bare;
  bare.set("TORCHELASTIC_RUN_ID", "none");
  CHECK(has(refused(bare).message, "torchrun started this process, and RANK is not set"));
  CHECK(has(refused(with(torchrun(0), {{"LOCAL_RANK", "2"}})).message,
            "LOCAL_RANK is 2 and LOCAL_WORLD_SIZE is 2"));
  CHECK(has(refused(with(torchrun(0), {{"GROUP_RANK", "x"}})).message, "GROUP_RANK is 'x'"));
}

// ---- variables that make no sense --------------------------------------------------------------

TEST_CASE("D13: variables that make no sense are refused by name and value, whoever set them") {
  struct Row {
    const char* name;
    const char* value;
    const char* words;
  };
  const std::vector<Row> rows = {
      {"RANK", "-1", "RANK is '-1', and takes a whole number from 0"},
      {"RANK", "abc", "RANK is 'abc'"},
      {"RANK", "", "RANK is ''"},
      {"RANK", "1.5", "RANK is '1.5'"},
      {"RANK", " 1", "RANK is ' 1'"},
      {"RANK", "99999999999999999999", "RANK is '99999999999999999999'"},
      {"RANK", "4", "RANK is 4 and WORLD_SIZE is 4, and numbers go from 0 to 3"},
      {"WORLD_SIZE", "0", "WORLD_SIZE is '0', and takes a whole number from 1"},
      {"MASTER_PORT", "70000", "MASTER_PORT is '70000', and takes a whole number from 1 to 65535"},
      {"MASTER_PORT", "0", "MASTER_PORT is '0'"},
      {"MASTER_ADDR", "", "MASTER_ADDR is '', and takes the name or address of a host"},
      {"MASTER_ADDR", "n1:29500", "MASTER_ADDR is 'n1:29500'"}};
  for (const FakeEnvironment& base : {variables("1", "4"), torchrun(1)}) {
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CAPTURE(row.value);
      const Refusal refusal = refused(with(base, {{row.name, row.value}}));
      CHECK(refusal.exit == diag::Exit::invalid);
      CAPTURE(refusal.message);
      CHECK(has(refusal.message, row.words));
      CHECK_FALSE(refusal.help.empty());
    }
  }
  // Alone too, where nobody would use them: half a set is somebody's whose other half was lost.
  for (const Row& row : rows) {
    if (std::string(row.value) == "4") continue;
    CAPTURE(row.name);
    CAPTURE(row.value);
    CHECK(has(refused(environment_of({{row.name, row.value}})).message, row.words));
  }
}

TEST_CASE(
    "D13: a list of nodes that is none is refused by its variable's name, in a step and out of "
    "it") {
  for (const auto& row : std::vector<std::pair<FakeEnvironment, std::string>>{
           {with(srun(1), {{"SLURM_STEP_NODELIST", "n[1-"}}), "SLURM_STEP_NODELIST"},
           {with(srun_one(), {{"SLURM_STEP_NODELIST", "n[1-"}}), "SLURM_STEP_NODELIST"},
           {with(batch_shell("2"), {{"SLURM_JOB_NODELIST", "n[1-"}}), "SLURM_JOB_NODELIST"},
           {environment_of({{"SLURM_NODELIST", "n[1-"}}), "SLURM_NODELIST"}}) {
    CAPTURE(row.second);
    const Refusal refusal = refused(row.first);
    CHECK(refusal.exit == diag::Exit::invalid);
    CHECK(has(refusal.message, row.second + " is 'n[1-': it ends where"));
  }
}

// ---- variables by hand -------------------------------------------------------------------------

TEST_CASE("topology: RANK, WORLD_SIZE and a place to meet start one launcher a rank or a node") {
  const launch::Started s = detect(variables("3", "4"));
  CHECK(s.starter == Starter::variables);
  CHECK(s.master_addr == "10.0.0.7");
  CHECK(s.master_port == 29500);
  CHECK(s.why == "RANK, WORLD_SIZE and MASTER_ADDR, rank 3 of 4, meeting at 10.0.0.7:29500");
  // Nothing says how many of the four are on one machine, so the plan does.
  CHECK(arranged(plan_for(2, 2), s) ==
        "ranks 3+1 of 4, local 1 of 2, node 1 of 2, launcher 3 of 4");
  CHECK(arranged(plan_for(1, 4), s) ==
        "ranks 3+1 of 4, local 3 of 4, node 0 of 1, launcher 3 of 4");
  CHECK(arranged(plan_for(4, 1), s) ==
        "ranks 3+1 of 4, local 0 of 1, node 3 of 4, launcher 3 of 4");
  CHECK(arranged(plan_for(4, 2), s) ==
        "ranks 6+2 of 8, local 0 of 2, node 3 of 4, launcher 3 of 4");
  const Refusal refusal = refused(plan_for(3, 2), s);
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.message, "one of 4 that were started, and the run has 3 nodes with 2"));
}

TEST_CASE("topology: LOCAL_RANK and LOCAL_WORLD_SIZE place a rank, and come together") {
  const FakeEnvironment whole =
      with(variables("1", "4"), {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  CHECK(arranged(plan_for(2, 2), detect(whole)) ==
        "ranks 1+1 of 4, local 1 of 2, node 0 of 2, launcher 1 of 4");
  CHECK(refused(plan_for(1, 4), detect(whole)).exit == diag::Exit::incompatible);
  CHECK(detect(with(whole, {{"NODE_RANK", "1"}})).node_rank == 1);
  CHECK(has(refused(with(whole, {{"NODE_RANK", "2"}})).message, "NODE_RANK is 2"));
  const Refusal half = refused(with(variables("1", "4"), {{"LOCAL_RANK", "1"}}));
  CHECK(half.exit == diag::Exit::invalid);
  CHECK(half.message == "LOCAL_RANK is 1, and LOCAL_WORLD_SIZE is not set");
  CHECK(refused(with(whole, {{"LOCAL_WORLD_SIZE", "3"}})).exit == diag::Exit::incompatible);
}

TEST_CASE(
    "topology: a rank of several without a place to meet is refused, one of one is nobody's") {
  const Refusal refusal = refused(environment_of({{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
  CHECK(refusal.exit == diag::Exit::invalid);
  CHECK(refusal.message == "RANK is 2 and WORLD_SIZE is 4, and MASTER_ADDR is not set");
  CHECK(has(
      refused(environment_of({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}})).message,
      "MASTER_PORT is not set"));
  CHECK(detect(environment_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}})).starter == Starter::nobody);
  CHECK(detect(environment_of({{"WORLD_SIZE", "4"}})).starter == Starter::nobody);
}

TEST_CASE("topology: a leftover RANK=0 WORLD_SIZE=1 still starts all processes of one node") {
  const launch::Started s = detect(variables("0", "1"));
  CHECK(s.starter == Starter::variables);
  CHECK(arranged(plan_for(1, 4), s) ==
        "ranks 0+4 of 4, local 0 of 4, node 0 of 1, launcher 0 of 1");
  CHECK(refused(plan_for(2, 4), s).exit == diag::Exit::incompatible);
}

// ---- SLURM -------------------------------------------------------------------------------------

TEST_CASE("topology: a task of a SLURM step has its place from the step, by whatever job name") {
  const launch::Started s = detect(with(srun(2), {{"SLURM_JOB_NAME", "bash"}}));
  CHECK(s.starter == Starter::slurm);
  CHECK(s.rank == 2);
  CHECK(s.world_size == 4);
  CHECK(s.local_rank == 0);
  CHECK(s.local_size == 2);
  CHECK(s.node_rank == 1);
  CHECK(s.num_nodes == 2);
  CHECK(s.tasks_per_node == Numbers{2, 2});
  CHECK(s.master_addr == "n1");
  CHECK_FALSE(s.master_port.has_value());
  CHECK(s.identity == "slurm 12.0");
  CHECK(s.why == "SLURM step 12.0, task 2 of 4 on n2");
  CHECK(arranged(plan_for(2, 2), s) ==
        "ranks 2+1 of 4, local 0 of 2, node 1 of 2, launcher 2 of 4");
}

TEST_CASE("topology: the variables of a task count over those of its PMI and over RANK") {
  const FakeEnvironment both = with(srun(2), {{"PMI_RANK", "2"},
                                              {"PMI_SIZE", "4"},
                                              {"RANK", "0"},
                                              {"WORLD_SIZE", "1"},
                                              {"OMPI_COMM_WORLD_RANK", "0"}});
  CHECK(detect(both).starter == Starter::slurm);
  CHECK(detect(both).rank == 2);
}

TEST_CASE("topology: a step without SLURM_NTASKS_PER_NODE and with the old names is understood") {
  const launch::Started s = detect(environment_of({{"SLURM_JOBID", "9"},
                                                   {"SLURM_STEP_ID", "3"},
                                                   {"SLURM_PROCID", "1"},
                                                   {"SLURM_LOCALID", "0"},
                                                   {"SLURM_NODEID", "1"},
                                                   {"SLURM_NPROCS", "2"},
                                                   {"SLURM_TASKS_PER_NODE", "1(x2)"},
                                                   {"SLURM_NODELIST", "cn[09-10]"}}));
  CHECK(s.starter == Starter::slurm);
  CHECK(s.world_size == 2);
  CHECK(s.master_addr == "cn09");
  CHECK(s.why == "SLURM step 9.3, task 1 of 2 on cn10");
}

TEST_CASE("topology: the shells of sbatch and salloc are no steps, and the line says which job's") {
  const FakeEnvironment salloc =
      environment_of({{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "1"}, {"SLURM_NNODES", "1"}});
  for (const FakeEnvironment& shell :
       {batch_shell("1"), salloc,
        // Numbers that SLURM keeps for shells: interactive, batch, extern, pending.
        with(srun_one(), {{"SLURM_STEP_ID", "4294967290"}}),
        with(srun_one(), {{"SLURM_STEP_ID", "4294967291"}}),
        with(srun_one(), {{"SLURM_STEP_ID", "4294967292"}}),
        with(srun_one(), {{"SLURM_STEP_ID", "4294967293"}})}) {
    const launch::Started s = detect(shell);
    CHECK(s.starter == Starter::nobody);
    CHECK(s.why ==
          "in a shell of SLURM job 12, not a step of it: the run starts its own processes");
    CHECK_FALSE(launch::in_slurm_step(shell));
    CHECK(arranged(plan_for(1, 4), s) ==
          "ranks 0+4 of 4, local 0 of 4, node 0 of 1, launcher 0 of 1");
  }
  CHECK(launch::in_slurm_step(srun_one()));
  CHECK(launch::in_slurm_step(with(srun_one(), {{"SLURM_STEP_ID", "4294967279"}})));
  CHECK_FALSE(launch::in_slurm_step(with(srun_one(), {{"SLURM_STEP_ID", "x"}})));
  CHECK(has(refused(with(srun_one(), {{"SLURM_STEP_ID", "x"}})).message, "SLURM_STEP_ID is 'x'"));
}

TEST_CASE("topology: in the shell of a job of several nodes the run is to be started with srun") {
  const launch::Started s = detect(batch_shell("2"));
  const Refusal two = refused(plan_for(2, 4), s);
  CHECK(two.exit == diag::Exit::incompatible);
  CHECK(has(two.message, "SLURM job has 2 nodes, trainer.num_nodes is 2"));
  CHECK(two.help == "start it with srun: srun --nodes=2 --ntasks-per-node=4 runner a.toml");
  const Refusal one = refused(plan_for(1, 4), s);
  CHECK(has(one.message, "has 2 nodes, trainer.num_nodes is 1"));
  CHECK(has(refused(plan_for(2, 1), detect(batch_shell("1"))).message,
            "has 1 node, trainer.num_nodes is 2"));
}

TEST_CASE("topology: `srun --pty bash` gives one task, which starts its node's processes") {
  CHECK(arranged(plan_for(1, 4), detect(srun_one())) ==
        "ranks 0+4 of 4, local 0 of 4, node 0 of 1, launcher 0 of 1");
}

TEST_CASE("topology: one task a node starts all ranks of its node") {
  const FakeEnvironment task = with(srun(2), {{"SLURM_PROCID", "1"},
                                              {"SLURM_NTASKS", "2"},
                                              {"SLURM_NTASKS_PER_NODE", "1"},
                                              {"SLURM_STEP_NUM_TASKS", "2"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  CHECK(arranged(plan_for(2, 4), detect(task)) ==
        "ranks 4+4 of 8, local 0 of 4, node 1 of 2, launcher 1 of 2");
}

TEST_CASE(
    "topology: steps with other nodes or tasks than the plan's are refused with both numbers") {
  const Refusal nodes = refused(plan_for(1, 2), detect(srun(0)));
  CHECK(nodes.exit == diag::Exit::incompatible);
  CHECK(nodes.message == "this process was started on 2 nodes, and trainer.num_nodes is 1");
  CHECK(has(nodes.help,
            "set trainer.num_nodes = 2, or start it with: srun --nodes=1 "
            "--ntasks-per-node=2 runner a.toml"));
  const Refusal tasks = refused(plan_for(2, 3), detect(srun(0)));
  CHECK(tasks.exit == diag::Exit::incompatible);
  CHECK(has(tasks.message,
            "one of 4 that were started, 2 of them on this node, and the run has 2 "
            "nodes with 3 processes each"));
  CHECK(has(tasks.help, "srun --nodes=2 --ntasks-per-node=3 runner a.toml"));
}

TEST_CASE(
    "T76: fewer tasks than tasks a node are refused with both numbers, where ranks would wait") {
  const FakeEnvironment step = with(srun_one(), {{"SLURM_NTASKS_PER_NODE", "2"}});
  const FakeEnvironment shell =
      with(batch_shell("1"), {{"SLURM_NTASKS", "1"}, {"SLURM_NTASKS_PER_NODE", "2"}});
  for (const FakeEnvironment& environment : {step, shell}) {
    const Refusal refusal = refused(plan_for(1, 2), detect(environment));
    CHECK(refusal.exit == diag::Exit::incompatible);
    CHECK(refusal.message == "SLURM_NTASKS is 1, and SLURM_NTASKS_PER_NODE is 2 on 1 node");
    // One rank waits for nobody.
    CHECK(arranged(plan_for(1, 1), detect(environment)) ==
          "ranks 0+1 of 1, local 0 of 1, node 0 of 1, launcher 0 of 1");
  }
}

TEST_CASE("topology: one task of a job that has several is enough for one node only") {
  const launch::Started s = detect(with(srun_one(), {{"SLURM_NTASKS", "4"}}));
  CHECK(s.job_tasks == 4);
  CHECK(arranged(plan_for(1, 2), s) ==
        "ranks 0+2 of 2, local 0 of 2, node 0 of 1, launcher 0 of 1");
  const Refusal refusal = refused(plan_for(2, 2), s);
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.message, "1 task of the job's 4, and trainer.num_nodes is 2"));
  CHECK(has(refusal.help, "srun -n 4 --nodes=2 runner a.toml"));
}

TEST_CASE("topology: nodes with unequal tasks are refused, both counts named") {
  const FakeEnvironment environment = with(srun(0), {{"SLURM_NTASKS", "3"},
                                                     {"SLURM_NTASKS_PER_NODE", "1"},
                                                     {"SLURM_STEP_NUM_TASKS", "3"},
                                                     {"SLURM_STEP_TASKS_PER_NODE", "2,1"}});
  const Refusal refusal = refused(plan_for(3, 1), detect(environment));
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.message, "SLURM started 2 tasks on node 0 and 1 on node 1"));
}

TEST_CASE(
    "topology: task 0 away from the first node is refused, unless MASTER_ADDR says where it is") {
  const FakeEnvironment elsewhere = with(srun(0), {{"SLURMD_NODENAME", "n2"}});
  const Refusal refusal = refused(elsewhere);
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.message, "SLURM's task 0 is on 'n2', and the first node of the step is 'n1'"));
  CHECK(refused(with(srun(0), {{"SLURM_NODEID", "1"}, {"SLURMD_NODENAME", ""}})).exit ==
        diag::Exit::incompatible);
  CHECK(detect(with(elsewhere, {{"MASTER_ADDR", "n2"}})).master_addr == "n2");
}

TEST_CASE("topology: heterogeneous jobs are refused") {
  const Refusal refusal = refused(with(srun(0), {{"SLURM_HET_SIZE", "2"}}));
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.message, "heterogeneous SLURM job of 2 parts"));
  CHECK(detect(with(srun(0), {{"SLURM_HET_SIZE", "1"}})).starter == Starter::slurm);
}

TEST_CASE("topology: a step whose numbers contradict each other is refused with both") {
  const Refusal tasks = refused(with(srun(0), {{"SLURM_STEP_TASKS_PER_NODE", "2,3"}}));
  CHECK(tasks.exit == diag::Exit::incompatible);
  CHECK(has(tasks.message, "add up to 5, and the number of its tasks is 4"));
  const Refusal nodes = refused(with(srun(0), {{"SLURM_STEP_NODELIST", "n[1-3]"}}));
  CHECK(has(nodes.message, "has 3, and the number of nodes with tasks is 2"));
  for (const auto& variable :
       Variables{{"SLURM_PROCID", "4"}, {"SLURM_NODEID", "2"}, {"SLURM_LOCALID", "2"}}) {
    CAPTURE(variable.first);
    const Refusal refusal = refused(with(srun(1), {variable}));
    CHECK(refusal.exit == diag::Exit::invalid);
    CHECK(has(refusal.message, variable.first + " is " + variable.second));
  }
}

TEST_CASE("topology: MASTER_ADDR and MASTER_PORT of a step come before what it says itself") {
  const launch::Started s =
      detect(with(srun(1), {{"MASTER_ADDR", "10.1.1.1"}, {"MASTER_PORT", "4000"}}));
  CHECK(s.master_addr == "10.1.1.1");
  CHECK(s.master_port == 4000);
  CHECK(has(refused(with(srun(1), {{"MASTER_PORT", "70000"}})).message, "MASTER_PORT is '70000'"));
  CHECK(has(refused(with(srun(1), {{"MASTER_ADDR", ""}})).message, "MASTER_ADDR is ''"));
  // One node meets without its name.
  CHECK(detect(srun_one()).master_addr == "127.0.0.1");
}

TEST_CASE("topology: the node's GPUs are SLURM's number in a step, and unknown elsewhere") {
  const Variables four = {{"SLURM_GPUS_ON_NODE", "4"}};
  CHECK(launch::slurm_gpus_on_node(with(srun(0), four)) == 4);
  CHECK_FALSE(launch::slurm_gpus_on_node(srun(0)).has_value());
  CHECK_FALSE(launch::slurm_gpus_on_node(with(batch_shell("1"), four)).has_value());
  const Refusal refusal = refusal_of([] {
    (void)launch::slurm_gpus_on_node(with(srun(0), {{"SLURM_GPUS_ON_NODE", "many"}}));
  });
  CHECK(refusal.exit == diag::Exit::invalid);
  CHECK(has(refusal.message, "SLURM_GPUS_ON_NODE is 'many'"));
}

// ---- MPI ---------------------------------------------------------------------------------------

TEST_CASE("topology: Open MPI's ranks find their node by division and meet at mpirun's machine") {
  const launch::Started s = detect(open_mpi(3));
  CHECK(s.starter == Starter::open_mpi);
  CHECK(s.rank == 3);
  CHECK(s.world_size == 4);
  CHECK(s.local_rank == 1);
  CHECK(s.local_size == 2);
  CHECK(s.node_rank == 1);
  CHECK(s.num_nodes == 2);
  CHECK(s.master_addr == "10.77.0.1");
  CHECK(s.identity == "open mpi 3513909249");
  CHECK(s.why == "Open MPI, rank 3 of 4 on machine 1");
  CHECK(arranged(plan_for(2, 2), s) ==
        "ranks 3+1 of 4, local 1 of 2, node 1 of 2, launcher 3 of 4");
  const Refusal refusal = refused(plan_for(2, 3), s);
  CHECK(refusal.exit == diag::Exit::incompatible);
  CHECK(has(refusal.help, "mpirun -np 6 --map-by ppr:3:node runner a.toml"));
}

TEST_CASE(
    "topology: Open MPI on one machine meets there, and MASTER_ADDR goes before mpirun's address") {
  const Variables one = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.9"}};
  CHECK(detect(with(open_mpi(1), one)).master_addr == "127.0.0.1");
  CHECK(detect(with(open_mpi(1), {{"MASTER_ADDR", "10.0.0.9"}})).master_addr == "10.0.0.9");
  for (const char* uri : {"", "1234.0", "1234.0;tcp://", "1234.0;tcp://:35741",
                          "1234.0;tcp://host:1", "1234.0;tcp6://[fe80::1]:35741"}) {
    CAPTURE(uri);
    const Refusal refusal = refused(with(open_mpi(1), {{"OMPI_MCA_orte_hnp_uri", uri}}));
    CHECK(refusal.exit == diag::Exit::invalid);
    CHECK(has(refusal.message, "MASTER_ADDR is not set"));
    CHECK(has(refusal.help, "-x MASTER_ADDR=HOST"));
  }
}

TEST_CASE("topology: MPI with unequal machines or ranks dealt round is refused") {
  const Refusal uneven = refused(with(open_mpi(0), {{"OMPI_COMM_WORLD_SIZE", "3"}}));
  CHECK(uneven.exit == diag::Exit::incompatible);
  CHECK(has(uneven.message, "MPI started 3 processes, 2 of them on this machine"));
  const Refusal dealt = refused(with(open_mpi(1), {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  CHECK(dealt.exit == diag::Exit::incompatible);
  CHECK(has(dealt.message, "MPI's rank 1 is process 0 of 2"));
  CHECK(has(dealt.help, "mpirun -np 4 --map-by ppr:2:node"));
}

TEST_CASE("topology: other MPI needs a place to meet, and a port, since nothing names its run") {
  const FakeEnvironment bare = environment_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
  CHECK(has(refused(bare).message, "MASTER_ADDR is not set"));
  CHECK(has(refused(bare).help, "-genv MASTER_ADDR"));
  const FakeEnvironment addressed = with(bare, {{"MASTER_ADDR", "n1"}});
  CHECK(has(refused(addressed).message, "MASTER_PORT is not set"));
  const launch::Started s = detect(with(addressed, {{"MASTER_PORT", "4000"}}));
  CHECK(s.starter == Starter::mpi);
  CHECK(s.why == "MPI, rank 1 of 4");
  CHECK(arranged(plan_for(2, 2), s) ==
        "ranks 1+1 of 4, local 1 of 2, node 0 of 2, launcher 1 of 4");
  const launch::Started local = detect(
      with(bare, {{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}, {"MASTER_PORT", "4000"}}));
  CHECK(local.master_addr == "127.0.0.1");
  CHECK(local.num_nodes == 1);
  const launch::Started cray = detect(
      with(addressed, {{"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}, {"PALS_APID", "a-b"}}));
  CHECK(cray.identity == "mpi a-b");
  CHECK(cray.num_nodes == 2);
}

// ---- GPUs and ports ----------------------------------------------------------------------------

TEST_CASE("topology: a rank takes its share of the GPUs that all see, or the ones it was given") {
  CHECK(launch::devices_of_rank(4, 2, 4, 1) == Numbers{2});
  CHECK(launch::devices_of_rank(8, 3, 4, 1) == Numbers{3});
  CHECK(launch::devices_of_rank(1, 2, 4, 1) == Numbers{0});
  CHECK(launch::devices_of_rank(1, 0, 1, 1) == Numbers{0});
  CHECK(launch::devices_of_rank(4, 1, 2, 2) == Numbers{2, 3});
  CHECK(launch::devices_of_rank(2, 1, 2, 2) == Numbers{0, 1});
  struct Row {
    std::int64_t visible, size, wanted;
  };
  for (const Row& row : {Row{2, 4, 1}, Row{0, 4, 1}, Row{3, 2, 2}, Row{1, 1, 2}}) {
    CAPTURE(row.visible);
    const Refusal refusal =
        refusal_of([&row] { (void)launch::devices_of_rank(row.visible, 0, row.size, row.wanted); });
    CHECK(refusal.exit == diag::Exit::machine);
    CHECK(has(refusal.message, "sees " + std::to_string(row.visible) + " GPU"));
    CHECK(has(refusal.message, "the " + std::to_string(row.size) + " process"));
  }
}

TEST_CASE("topology: the ports of a run are 32 different ones, the same to all its launchers") {
  const auto ports = [](const std::string& job, const std::string& step, std::int64_t task) {
    return launch::ports(
        detect(with(srun(task), {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}})));
  };
  const std::vector<int> first = ports("12", "0", 0);
  CHECK(first == ports("12", "0", 3));
  CHECK(first.front() == 15'012);
  CHECK(ports("4294967295", "4294967279", 1).size() == 32);
  for (const std::vector<int>& list :
       {first, ports("9999", "7", 0), launch::ports(detect(open_mpi(0)))}) {
    CHECK(std::set<int>(list.begin(), list.end()).size() == 32);
    CHECK(*std::min_element(list.begin(), list.end()) >= 15'000);
    CHECK(*std::max_element(list.begin(), list.end()) < 25'000);
  }
  // Some runs' identities give a stride that would come round too soon.
  launch::Started any;
  for (int run = 0; run < 5'000; ++run) {
    any.identity = "run " + std::to_string(run);
    const std::vector<int> list = launch::ports(any);
    REQUIRE(std::set<int>(list.begin(), list.end()).size() == 32);
  }
  // Two steps of a job, and two jobs whose numbers end alike, go different ways.
  CHECK(ports("12", "1", 0).front() != first.front());
  const std::vector<int> alike = ports("10012", "0", 0);
  CHECK(alike.front() == first.front());
  CHECK(alike != first);
}

TEST_CASE("topology: every starter has a name of its own") {
  std::set<std::string_view> names;
  for (const Starter starter :
       {Starter::nobody, Starter::hand, Starter::torchrun, Starter::variables, Starter::slurm,
        Starter::open_mpi, Starter::mpi}) {
    names.insert(launch::to_text(starter));
  }
  CHECK(names.size() == 7);
}
