// launch: who the ranks of a run are, and which of them this launcher starts.
//
// `runner` may be alone on a machine, one of several that a person starts by hand, or started once
// a rank or once a node by torchrun, SLURM or MPI. All of it comes to one value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/host/environment.h"
#include "runner/plan/plan.h"

namespace runner::launch {

/// What started this launcher.
enum class Starter { nobody, hand, torchrun, variables, slurm, open_mpi, mpi };
[[nodiscard]] std::string_view to_text(Starter starter);

/// --node-rank, --master-addr, --master-port.
struct ByHand {
  std::optional<std::int64_t> node_rank;
  std::optional<std::string> master_addr;
  std::optional<std::int64_t> master_port;
};

/// What the environment says, checked for sense and not yet against a plan.
struct Started {
  Starter starter = Starter::nobody;
  std::string why;  ///< "SLURM step 12.0, task 2 of 4 on n2": one line for the plan
  std::int64_t rank = 0, world_size = 1;        ///< of this launcher among those started
  std::int64_t local_rank = 0, local_size = 1;  ///< among those on this machine
  std::int64_t node_rank = 0, num_nodes = 1;
  std::vector<std::int64_t> tasks_per_node;  ///< of a SLURM step; empty elsewhere
  std::string master_addr;                   ///< empty: this machine only
  std::optional<int> master_port;            ///< absent: one of `ports`
  std::string identity;  ///< the same on all launchers of one run and on no others, as far as known
  bool agent_store = false;  ///< torchrun's own store listens on master_addr:master_port
  std::optional<std::int64_t> job_tasks;  ///< tasks that the SLURM job asked for
};

/// Reads the environment and the flags. Throws diag::Error (invalid) naming a variable and its
/// value where it makes no sense, and (incompatible) for what SLURM itself can't have meant.
[[nodiscard]] Started detect(const host::Environment& environment, const ByHand& by_hand);

/// Whether this is a task of a SLURM step, which hands out the GPUs.
[[nodiscard]] bool in_slurm_step(const host::Environment& environment);

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
/// diag::Error (incompatible) naming both numbers where neither fits.
[[nodiscard]] Topology arrange(const plan::Plan& plan, const Started& started);

/// Ports to try, in this order, when nobody named one: the same on all launchers of a run.
[[nodiscard]] std::vector<int> ports(const Started& started);

}  // namespace runner::launch
