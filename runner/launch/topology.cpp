#include "runner/launch/topology.h"

#include <numeric>

#include "runner/diag/error.h"

namespace runner::launch {

namespace {

constexpr int kFirstPort = 15'000;
constexpr std::int64_t kPorts = 10'000;
constexpr std::int64_t kTries = 32;

[[noreturn]] void refuse(const std::string& message, const std::string& help) {
  throw diag::Error(diag::Exit::incompatible, message, help);
}

std::string counted(std::int64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string nodes_text(std::int64_t count) { return counted(count, "node", "nodes"); }

/// "2 nodes with 4 processes each".
std::string wanted_text(const plan::Plan& plan) {
  return nodes_text(plan.num_nodes) + " with " +
         counted(plan.processes_per_node, "process", "processes") +
         (plan.num_nodes == 1 ? "" : " each");
}

// ---- commands that would do --------------------------------------------------------------------

std::string command_of(const plan::Plan& plan) {
  return plan.command_line.empty() ? "runner …" : plan.command_line;
}

std::string srun_command(const plan::Plan& plan) {
  return "srun --nodes=" + std::to_string(plan.num_nodes) +
         " --ntasks-per-node=" + std::to_string(plan.processes_per_node) + " " + command_of(plan);
}

std::string torchrun_command(const plan::Plan& plan) {
  return "torchrun --nnodes=" + std::to_string(plan.num_nodes) +
         " --nproc-per-node=" + std::to_string(plan.processes_per_node) + " --no-python " +
         command_of(plan);
}

std::string mpirun_command(const plan::Plan& plan) {
  return "mpirun -np " + std::to_string(plan.world_size) +
         " --map-by ppr:" + std::to_string(plan.processes_per_node) + ":node " + command_of(plan);
}

std::string by_hand_command(const plan::Plan& plan) {
  return command_of(plan) + " --node-rank N --master-addr HOST --master-port PORT with N = 0 to " +
         std::to_string(plan.num_nodes - 1);
}

std::string fix_of(const plan::Plan& plan, Starter starter) {
  switch (starter) {
    case Starter::slurm:
      return "start it with: " + srun_command(plan);
    case Starter::open_mpi:
    case Starter::mpi:
      return "start it with: " + mpirun_command(plan);
    case Starter::torchrun:
      return "start it with: " + torchrun_command(plan);
    default:
      return "on each node: " + by_hand_command(plan) + "; with SLURM: " + srun_command(plan) +
             "; with torchrun: " + torchrun_command(plan);
  }
}

// ---- arrangements ------------------------------------------------------------------------------

/// One launcher starts every rank of its node.
Topology one_a_node(const plan::Plan& plan, const Started& started, std::int64_t node) {
  Topology t;
  t.started = started;
  t.world_size = plan.world_size;
  t.first_rank = node * plan.processes_per_node;
  t.ranks_here = t.local_size = plan.processes_per_node;
  t.node_rank = t.launcher = node;
  t.num_nodes = t.launchers = plan.num_nodes;
  return t;
}

/// Each launcher starts the rank that it was given.
Topology one_a_rank(const plan::Plan& plan, const Started& started) {
  Topology t;
  t.started = started;
  t.world_size = t.launchers = plan.world_size;
  t.first_rank = t.launcher = started.rank;
  t.local_size = plan.processes_per_node;
  t.num_nodes = plan.num_nodes;
  const bool known = started.local_size > 0;
  t.local_rank = known ? started.local_rank : started.rank % plan.processes_per_node;
  t.node_rank = known ? started.node_rank : started.rank / plan.processes_per_node;
  return t;
}

/// The job asked for tasks on each node and for fewer tasks than that: the ranks that it has would
/// wait for ones that never come.
void need_enough_tasks(const plan::Plan& plan, const Started& started) {
  if (!started.few_tasks || plan.world_size == 1) return;
  const auto& [tasks, per_node, nodes] = *started.few_tasks;
  refuse("SLURM_NTASKS is " + std::to_string(tasks) + ", and SLURM_NTASKS_PER_NODE is " +
             std::to_string(per_node) + " on " + nodes_text(nodes),
         "ask sbatch for --ntasks-per-node and leave --ntasks out, then start it with: " +
             srun_command(plan));
}

Topology alone(const plan::Plan& plan, const Started& started) {
  need_enough_tasks(plan, started);
  if (started.job_nodes && (*started.job_nodes > 1 || plan.num_nodes > 1)) {
    refuse("this shell's SLURM job has " + nodes_text(*started.job_nodes) +
               ", trainer.num_nodes is " + std::to_string(plan.num_nodes) +
               ", and nothing started the run on the job's nodes",
           "start it with srun: " + srun_command(plan));
  }
  if (plan.num_nodes > 1) {
    refuse("trainer.num_nodes is " + std::to_string(plan.num_nodes) +
               ", and nothing started this process on several nodes",
           fix_of(plan, Starter::nobody));
  }
  return one_a_node(plan, started, 0);
}

Topology by_hand(const plan::Plan& plan, const Started& started) {
  if (started.node_rank >= plan.num_nodes) {
    refuse("--node-rank is " + std::to_string(started.node_rank) + ", and trainer.num_nodes is " +
               std::to_string(plan.num_nodes),
           "nodes are numbered from 0 to " + std::to_string(plan.num_nodes - 1));
  }
  if (plan.num_nodes > 1 && started.master_addr.empty()) {
    throw diag::Error(diag::Exit::invalid,
                      "trainer.num_nodes is " + std::to_string(plan.num_nodes) +
                          ", and --master-addr is not given",
                      "name the host of node 0 on every node, the same to all");
  }
  if (plan.num_nodes > 1 && !started.master_port) {
    throw diag::Error(diag::Exit::invalid,
                      "trainer.num_nodes is " + std::to_string(plan.num_nodes) +
                          ", and --master-port is not given: nodes started by hand can't agree on "
                          "one by themselves",
                      "name a port that is free on node 0, the same to all, 29500 for instance");
  }
  return one_a_node(plan, started, started.node_rank);
}

void need_slurm_to_fit(const plan::Plan& plan, const Started& started) {
  need_enough_tasks(plan, started);
  const std::int64_t first = started.tasks_per_node.front();
  for (std::size_t i = 0; i < started.tasks_per_node.size(); ++i) {
    if (started.tasks_per_node[i] == first) continue;
    refuse("SLURM started " + counted(first, "task", "tasks") + " on node 0 and " +
               std::to_string(started.tasks_per_node[i]) + " on node " + std::to_string(i) +
               ", and a run has as many processes on each node",
           fix_of(plan, started.starter));
  }
  if (started.world_size == 1 && started.job_tasks.value_or(1) > 1 && plan.num_nodes > 1) {
    refuse("this SLURM step has 1 task of the job's " + std::to_string(*started.job_tasks) +
               ", and trainer.num_nodes is " + std::to_string(plan.num_nodes),
           "start it with srun -n: srun -n " + std::to_string(plan.world_size) +
               " --nodes=" + std::to_string(plan.num_nodes) + " " + command_of(plan));
  }
}

}  // namespace

Topology arrange(const plan::Plan& plan, const Started& started) {
  if (started.starter == Starter::nobody) return alone(plan, started);
  if (started.starter == Starter::hand) return by_hand(plan, started);
  if (started.starter == Starter::slurm) need_slurm_to_fit(plan, started);
  const bool known = started.local_size > 0;
  if (known && started.num_nodes != plan.num_nodes) {
    refuse("this process was started on " + nodes_text(started.num_nodes) +
               ", and trainer.num_nodes is " + std::to_string(plan.num_nodes),
           "set trainer.num_nodes = " + std::to_string(started.num_nodes) + ", or " +
               fix_of(plan, started.starter));
  }
  const std::int64_t per_node = plan.processes_per_node;
  if (started.world_size == plan.world_size && (!known || started.local_size == per_node)) {
    return one_a_rank(plan, started);
  }
  if (started.world_size == plan.num_nodes && (!known || started.local_size == 1)) {
    return one_a_node(plan, started, started.rank);
  }
  refuse("this process is one of " + std::to_string(started.world_size) + " that were started" +
             (known ? ", " + std::to_string(started.local_size) + " of them on this node" : "") +
             ", and the run has " + wanted_text(plan),
         "start one for each process, or one for each node; " + fix_of(plan, started.starter));
}

std::vector<std::int64_t> devices_of_rank(std::int64_t visible, std::int64_t local_rank,
                                          std::int64_t local_size, std::int64_t wanted) {
  std::int64_t first = 0;
  if (visible >= local_size * wanted) {
    first = local_rank * wanted;
  } else if (visible != wanted) {
    throw diag::Error(diag::Exit::machine,
                      "this process sees " + counted(visible, "GPU", "GPUs") + ", and the " +
                          counted(local_size, "process", "processes") + " of its machine use " +
                          std::to_string(wanted) +
                          " each: it can be given neither its share nor its own",
                      "with SLURM: --gpus-per-node=" + std::to_string(local_size * wanted) +
                          ", or --gpus-per-task=" + std::to_string(wanted));
  }
  std::vector<std::int64_t> devices(static_cast<std::size_t>(wanted));
  std::iota(devices.begin(), devices.end(), first);
  return devices;
}

std::vector<int> ports(const Started& started) {
  // FNV-1a: the same on all machines, which std::hash needn't be.
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char c : started.identity) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
  }
  const auto mixed = static_cast<std::int64_t>(hash >> 32);
  // Odd and no multiple of 5, so that no port comes twice; two runs that begin at one port part
  // ways after it.
  std::int64_t stride = 2 * (mixed % (kPorts / 2)) + 1;
  if (stride % 5 == 0) stride += 2;
  const std::int64_t offset = started.port_offset.value_or(mixed / kPorts % kPorts);
  std::vector<int> result;
  result.reserve(static_cast<std::size_t>(kTries));
  for (std::int64_t i = 0; i < kTries; ++i) {
    result.push_back(kFirstPort + static_cast<int>((offset + i * stride) % kPorts));
  }
  return result;
}

}  // namespace runner::launch
