// engine: what a checkpoint of a run holds, and the thread that writes it.
//
//   model.safetensors      weights and buffers under PyTorch's names; Python opens it directly
//   optimizer.safetensors  the optimizer's tensors, "<state>.<parameter>"
//   rng.safetensors        generator states
//   state.json             all numbers below; floats as hexadecimal text, exact to the bit
//   plan.json              the plan of the run, which says what model the weights are of
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runner/components/component.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/lower.h"
#include "runner/engine/precision.h"
#include "runner/store/checkpoint.h"

namespace runner::engine {

/// A checkpoint among the best, by the monitored value.
struct Ranked {
  double value = 0;
  std::int64_t step = 0;
  std::int64_t epoch = 0;  ///< counted from 1
};

/// What training goes on from, beside the tensors.
struct TrainingState {
  /// Ranks that it was saved by.
  [[nodiscard]] int world_size() const { return static_cast<int>(losses.size()); }

  std::int64_t step = 0;           ///< optimizer steps taken
  std::int64_t skipped_steps = 0;  ///< whose fp16 gradients overflowed
  std::int64_t epoch = 0;          ///< of the next batch, from 0
  std::int64_t batch = 0;          ///< batches of that epoch done
  bool validation_due = false;     ///< a signal came before the validation after this step was done
  std::int64_t samples = 0;        ///< seen in training
  double lr = 0;                   ///< of the last step
  /// A rank's losses of the epoch's samples so far.
  struct Losses {
    double sum = 0;
    std::int64_t weight = 0;
  };
  std::vector<Losses> losses = {};                     ///< by rank
  std::int64_t batch_size = 0;                         ///< of all ranks together
  std::vector<std::vector<std::size_t>> buckets = {};  ///< of the strategy's exchanges
  double elapsed_seconds = 0;
  std::int64_t csv_bytes = 0;  ///< of metrics.csv that belong to this state, but for the last row
  std::vector<std::string> csv_row = {};  ///< that row's cells; empty: none
  int threads = 1;                        ///< of one operation; another number changes sums
  std::int64_t optimizer_steps = 0;
  Precision::State precision;
  std::optional<components::Plateau::State> plateau;
  std::optional<components::EarlyStopper::State> early_stopper;
  std::optional<Ranked> best;           ///< whether or not its checkpoint is kept
  std::vector<Ranked> ranking;          ///< the best checkpoints so far, best first
  std::optional<std::string> finished;  ///< why the run ended; absent if it can go on
};

/// All of a training state, in CPU memory of its own.
struct Snapshot {
  TrainingState state;
  std::vector<NamedTensor> weights;
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> generators;
  std::map<std::string, double> metrics;  ///< of the validation at this very step
};

/// Rank 0's snapshot, or nothing, on all ranks. Collective.
[[nodiscard]] std::optional<Snapshot> broadcast(const Group& group,
                                                const std::optional<Snapshot>& snapshot);

/// CPU copies that share no memory with `tensors`.
[[nodiscard]] std::vector<NamedTensor> copy_to_cpu(const std::vector<NamedTensor>& tensors);

/// Reads a checkpoint folder that has been verified. Throws diag::Error (failed) for a file that
/// isn't what the runner writes.
[[nodiscard]] Snapshot read_checkpoint(const std::filesystem::path& folder);
/// Weights and buffers only.
[[nodiscard]] std::vector<NamedTensor> read_weights(const std::filesystem::path& folder);

struct WriterOptions {
  std::filesystem::path folder = {};  ///< <run folder>/checkpoints
  std::string plan_json = {};
  std::string config_digest = {};
  std::map<std::string, std::string> extra = {};  ///< for the manifest: versions, command line
  std::int64_t batches_per_epoch = 0;
  std::filesystem::path csv =
      {};  ///< put on the disk before a checkpoint that counts on its length
  store::RetentionPolicy retention = {};
};

/// Writes snapshots on a thread of its own while training goes on. At most two wait: one that has
/// not been started and that nobody needs any more gives way to a newer one.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(WriterOptions options, store::FileOps& ops = store::system_file_ops());
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits for the snapshot being written; drops those that wait.
  ~CheckpointWriter();

  /// Queues a snapshot; waits only while two others that are still wanted are waiting. `wanted`:
  /// steps that are among the best; `best`: the step that the link `best` is to point to, if any.
  void submit(Snapshot snapshot, std::set<std::int64_t> wanted, std::optional<std::int64_t> best);
  /// Returns when everything submitted is on the disk.
  void wait();
  /// The first failure since the last call, if any.
  [[nodiscard]] std::exception_ptr take_error();

  /// Where a step's checkpoint lies.
  [[nodiscard]] std::filesystem::path path(std::int64_t step) const { return folder_.path(step); }

 private:
  struct Job {
    Snapshot snapshot;
    std::optional<std::int64_t> best;
  };

  void write_until_stopped();
  void write(const Job& job);
  [[nodiscard]] bool drop_unwanted();

  const WriterOptions options_;
  store::CheckpointFolder folder_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::set<std::int64_t> wanted_;
  bool writing_ = false;
  bool stopped_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace runner::engine
