// engine: the training loop.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "datasets/dataset.h"
#include "runner/config/experiment.h"
#include "runner/engine/checkpoint.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/evaluate.h"
#include "runner/engine/lower.h"
#include "runner/host/clock.h"
#include "runner/host/heartbeat.h"
#include "runner/plan/plan.h"
#include "runner/report/progress.h"
#include "runner/store/file.h"

namespace runner::engine {

/// What training works on; everything outlives the call.
struct Training {
  const plan::Plan& plan;
  const config::Experiment& experiment;
  const datasets::Spec& spec;
  const datasets::Samples& train;
  const datasets::Samples* validation = nullptr;  ///< null: no validation
  Network& network;
  std::vector<at::Device> devices;  ///< of this process, root first
  const Group& group;
  report::Progress& progress;
  host::Clock& clock;
  /// Number of a signal that asks to stop, 0 before. The step in progress is finished and a
  /// checkpoint written; one rank's signal stops all of them, after the same step.
  const std::atomic<int>& signal;
  host::Heartbeat* heartbeat = nullptr;  ///< for the launcher; null: nobody looks
  std::int64_t attempt = 0;              ///< restarts of the run so far
  store::FileOps& files = store::system_file_ops();
};

struct Outcome {
  int signal = 0;       ///< that stopped the run; 0: it came to its end
  std::string stopped;  ///< why it ended: "all 10 epochs done"
  TrainingState state;
  std::int64_t epochs = 0;  ///< begun, the last one perhaps not ended
  Figures figures;          ///< of the last validation, and the last epoch's train_loss
  std::optional<std::filesystem::path> best_checkpoint;  ///< on rank 0
  std::optional<std::filesystem::path> last_checkpoint;  ///< on rank 0
  std::int64_t steps_here = 0;                           ///< optimizer steps of this start
  std::int64_t samples_here = 0;                         ///< training samples of this start
  std::optional<host::Seconds> first_step;  ///< when the first step was done, on the clock
  std::string strategy;                     ///< Strategy::describe()
  host::Seconds loop_time{0};  ///< from the first batch to the last, validation included
};

/// Trains until a bound is reached, early stopping says so, or a signal comes; from `resume`, if
/// given, exactly as if there had been no interruption. Rank 0 writes metrics.csv and checkpoints/
/// in the plan's run folder. Collective. Throws diag::Error (failed) for a loss that isn't finite
/// (naming step, epoch and batch) and for what can't be written.
[[nodiscard]] Outcome fit(const Training& training, const std::optional<Snapshot>& resume);

/// Folder of the checkpoints in a run folder.
[[nodiscard]] std::filesystem::path checkpoints_in(const std::filesystem::path& run_folder);

/// Whether larger values of a figure ("val_accuracy") are better.
[[nodiscard]] bool larger_is_better(std::string_view figure);

}  // namespace runner::engine
