// launch: who the ranks of a run are, and which of them this launcher starts.
//
// `runner` may be alone on a machine, one of several that a person starts by hand, or started once
// a rank or once a node by torchrun, SLURM or MPI. All of it comes to one value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/host/environment.h"
#include "runner/plan/plan.h"

namespace runner::launch {

/// What started this launcher.
enum class Starter { nobody, hand, torchrun, variables, slurm, open_mpi, mpi };
[[nodiscard]] std::string_view to_text(Starter starter);

/// --node-rank, --master-addr, --master-port.
struct ByHand {
  std::optional<std::int64_t> node_rank = {};
  std::optional<std::string> master_addr = {};
  std::optional<std::int64_t> master_port = {};
};

/// Throws diag::Error (invalid) unless the flags that are given are a node's number, a host and a
/// port.
void verify(const ByHand& by_hand);

/// What the environment says, checked for sense and not yet against a plan.
struct Started {
  Starter starter = Starter::nobody;
  std::string why;  ///< "SLURM step 12.0, task 2 of 4 on n2": one line for the plan; empty when
                    ///< there is nothing to say
  std::int64_t rank = 0;        ///< of this launcher among those started
  std::int64_t world_size = 1;  ///< launchers started; 0: by hand, one a node of the plan
  std::int64_t local_rank = 0;  ///< of this launcher among those on this machine
  std::int64_t local_size = 1;  ///< launchers on this machine; 0: nobody said, the plan decides
  std::int64_t node_rank = 0, num_nodes = 1;  ///< num_nodes 0: nobody said, the plan decides
  std::vector<std::int64_t> tasks_per_node;   ///< of a SLURM step; empty elsewhere
  std::string master_addr;                    ///< empty: this machine only
  std::optional<int> master_port;             ///< absent: one of `ports`
  std::optional<std::int64_t> port_offset;    ///< 0 to 9999, where `ports` begins
  std::string identity;  ///< the same on all launchers of one run and on no others, as far as known
  bool agent_store = false;  ///< torchrun's own store listens on master_addr:master_port
  std::optional<std::int64_t> job_tasks;  ///< tasks that the SLURM job asked for
  std::optional<std::int64_t> job_nodes;  ///< nodes of the SLURM job
  /// SLURM_NTASKS and the larger number that SLURM_NTASKS_PER_NODE makes, when they disagree.
  struct FewTasks {
    std::int64_t tasks = 0, per_node = 0, nodes = 0;
  };
  std::optional<FewTasks> few_tasks;
};

/// Reads the environment and the flags; of several launchers' variables the ones nearest to this
/// process count: flags, torchrun, a SLURM step, Open MPI, other MPI, RANK and its company. Throws
/// diag::Error (invalid) naming a variable and its value where it makes no sense or is missing, and
/// (incompatible) for what can't be one run: a heterogeneous job, SLURM's task 0 away from the
/// first node, MPI processes that aren't spread evenly.
[[nodiscard]] Started detect(const host::Environment& environment, const ByHand& by_hand);

/// Whether this is a task of a SLURM step, which hands out the GPUs. The shell of `sbatch` and
/// `salloc` isn't one, whatever its variables look like.
[[nodiscard]] bool in_slurm_step(const host::Environment& environment);

/// GPUs that a SLURM step has on this node, of which a task may see fewer; nothing elsewhere.
/// Throws diag::Error (invalid) when SLURM_GPUS_ON_NODE isn't a number.
[[nodiscard]] std::optional<std::int64_t> slurm_gpus_on_node(const host::Environment& environment);

/// Which of the `visible` GPUs a rank uses, `wanted` of them: its share when all ranks of the
/// machine see all GPUs, all that it sees when it was given its own. Throws diag::Error (machine)
/// naming both numbers for anything between.
[[nodiscard]] std::vector<std::int64_t> devices_of_rank(std::int64_t visible,
                                                        std::int64_t local_rank,
                                                        std::int64_t local_size,
                                                        std::int64_t wanted);

struct Topology {
  Started started;
  std::int64_t world_size = 1;  ///< ranks of the run
  std::int64_t first_rank = 0;  ///< that this launcher starts
  std::int64_t ranks_here = 1;  ///< that this launcher starts
  std::int64_t local_rank = 0;  ///< of the first of them, on this machine
  std::int64_t local_size = 1;  ///< ranks on this machine
  std::int64_t node_rank = 0, num_nodes = 1;
  std::int64_t launchers = 1;  ///< that must meet
  std::int64_t launcher = 0;   ///< number of this one; 0 leads
};

/// Fits what was started to what the plan asks for: one launcher a rank, or one a node. Throws
/// diag::Error (incompatible) naming both numbers where neither fits, (invalid) for a flag that is
/// missing.
[[nodiscard]] Topology arrange(const plan::Plan& plan, const Started& started);

/// 32 ports to try, in this order, when nobody named one: the same on all launchers of a run, 15000
/// to 24999, which lie below those that systems hand out by themselves. Runs may share some:
/// `identity` tells them apart.
[[nodiscard]] std::vector<int> ports(const Started& started);

}  // namespace runner::launch
