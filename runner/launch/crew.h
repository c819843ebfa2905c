// launch: the workers that one launcher starts in one attempt of a run.
#pragma once

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runner/host/heartbeat.h"
#include "runner/launch/failure.h"
#include "runner/launch/topology.h"
#include "runner/launch/worker.h"
#include "runner/plan/plan.h"

namespace runner::launch {

/// A rank's sign of life.
struct Sign {
  std::int64_t beats = 0;
  std::int64_t step = 0;
  host::Phase phase = host::Phase::starting;
  bool stopped = false;  ///< its process is, by a signal

  friend bool operator==(const Sign&, const Sign&) = default;
};

/// How a rank ended.
struct RankEnd {
  std::int64_t rank = 0;
  int status = 0;                 ///< as wait(2) gives it
  std::optional<Failure> record;  ///< what the worker wrote
  Sign last;
};

/// Where the ranks meet each other in one attempt; empty for a run of one rank.
struct StorePlace {
  std::string host;  ///< numeric address
  int port = 0;
  std::string prefix;  ///< of this attempt's keys: nothing that an earlier one left is read
};

struct CrewPlan {
  const plan::Plan& plan;
  const Topology& topology;
  std::filesystem::path plan_file;
  std::filesystem::path worker;
  std::string address;  ///< of this machine, towards the leader
  StorePlace store;
  int store_fd = -1;  ///< listens at `store`; of the launcher of rank 0
  std::int64_t attempt = 0;
  std::vector<std::int64_t> gpus;                  ///< physical ids of this machine; all ranks'
  std::vector<std::vector<std::int64_t>> devices;  ///< SLURM's: per rank here, among the visible
};

/// "NAME=value" for the worker `index` of the launcher. `cores` is what this process may use,
/// `is_bound` whether that is less than the machine has.
[[nodiscard]] std::vector<std::string> worker_environment(const CrewPlan& crew, std::int64_t index,
                                                          int heartbeat_fd, int cores,
                                                          bool is_bound = false);

class Crew {
 public:
  /// Starts all of them. Throws diag::Error (machine); none is left then.
  Crew(const CrewPlan& plan, const sigset_t& mask);
  /// Kills those that run.
  ~Crew();

  /// Of those that have ended since the last call.
  [[nodiscard]] std::vector<RankEnd> take_ends();
  [[nodiscard]] std::vector<Sign> signs() const;  ///< by rank, the launcher's first one first
  void signal(int signal) const;
  void kill() const;

 private:
  std::int64_t first_rank_;
  host::HeartbeatPage page_;
  std::vector<WorkerProcess> workers_;
};

}  // namespace runner::launch
