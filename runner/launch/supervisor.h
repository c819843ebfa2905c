// launch: Plan -> running processes.
//
// A launcher starts its workers, passes signals on, watches, and brings back the exit status and,
// after a failure, its root cause: all ranks end when one fails. A worker never outlives its
// launcher: the kernel ends it when the launcher dies, SIGKILL included. Where several launchers
// start the ranks, the leader decides for all of them, and the others do as it says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runner/launch/failure.h"
#include "runner/launch/meeting.h"
#include "runner/launch/topology.h"
#include "runner/plan/plan.h"

namespace runner::launch {

struct Outcome {
  int exit_status = 0;             ///< of `runner`: diag::Exit, or 128 + n after signal n
  std::optional<Failure> failure;  ///< to print; the leader prints for the whole run
};

struct Job {
  /// Finished, with its run folder. The others get that from the leader, and have from their own
  /// only where this machine keeps its files.
  plan::Plan plan;
  Topology topology;
  Meeting* meeting = nullptr;    ///< null where this launcher starts all ranks
  std::filesystem::path worker;  ///< the program
  std::string host;              ///< name of this machine, for people
  /// This machine's GPUs by its own numbers, where they are others than the plan's.
  std::vector<std::int64_t> gpus;
  /// In SLURM: for each rank that is started here, its GPUs among those visible to it.
  std::vector<std::vector<std::int64_t>> devices;
  /// The plan to go on with after a failure; called on the leader, all workers being dead.
  std::function<plan::Plan(const Failure&)> next_plan;
};

/// Writes the plan into its run folder (plan.json, test-plan.json for an evaluation), runs the
/// workers to their end and reports; the reason of a failure is also in the run folder's
/// failure.json. Each worker is its own process group, so a Ctrl-C of the terminal reaches it once,
/// through here. Throws diag::Error (machine) when a worker can't be started here. Call it from the
/// thread that lives longest.
[[nodiscard]] Outcome supervise(const Job& job);

/// A run of one process.
[[nodiscard]] Outcome run_alone(const plan::Plan& plan, const std::filesystem::path& worker);

}  // namespace runner::launch
