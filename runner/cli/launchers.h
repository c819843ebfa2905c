// The launchers of a run: this process, and those on other machines or beside it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "runner/cli/judged.h"
#include "runner/cli/options.h"
#include "runner/host/gpu_picker.h"
#include "runner/launch/meeting.h"
#include "runner/launch/supervisor.h"
#include "runner/launch/topology.h"
#include "runner/plan/plan.h"

namespace runner::cli {

/// Finds out who started this process and what its part of the plan is, holds the GPUs of that
/// part, and, if there are others, meets them. Throws diag::Error.
class Launchers {
 public:
  /// `plan`: without a run folder; of the same experiment on all launchers.
  Launchers(const config::Experiment& experiment, const plan::Plan& plan,
            const launch::ByHand& by_hand);

  /// Whether this one makes the run folder, prints, and decides.
  [[nodiscard]] bool leads() const { return !meeting_ || meeting_->leads(); }
  /// Physical ids of the GPUs of this machine that the run uses, for the plan; empty on the CPU.
  [[nodiscard]] const std::vector<std::int64_t>& gpus() const { return gpus_; }

  /// The leader: runs the finished plan to its end. `next_plan` is asked after a failure that
  /// leaves restarts.
  [[nodiscard]] launch::Outcome run(const plan::Plan& plan,
                                    std::function<plan::Plan(const launch::Failure&)> next_plan);
  /// The others: do what the leader says, to the end. `plan`: until the leader's has come.
  [[nodiscard]] launch::Outcome follow(const plan::Plan& plan);

 private:
  void hold_gpus(const config::Experiment& experiment, const plan::Plan& plan);
  [[nodiscard]] launch::Job job() const;

  launch::Topology topology_;
  std::vector<std::int64_t> gpus_;
  std::vector<std::vector<std::int64_t>> devices_;
  std::vector<host::GpuLease> leases_;
  std::optional<launch::Meeting> meeting_;
};

[[nodiscard]] std::filesystem::path worker_path();

/// Throws diag::Error (machine) where there is no worker, or one that can't use the plan's kind of
/// device.
void need_worker(const plan::Plan& plan);

}  // namespace runner::cli
