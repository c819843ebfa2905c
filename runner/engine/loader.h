// engine: batches of a dataset, gathered ahead of the training loop by threads of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "datasets/dataset.h"

namespace runner::engine {

struct Batch {
  at::Tensor inputs;         ///< float [n, input...]
  at::Tensor targets;        ///< int64 [n] class numbers, or float [n, target_values]
  std::int64_t samples = 0;  ///< n; 0 where the tensors hold a stand-in that must not count
};

/// Consecutive rows that are one process's, or one device's, of several.
struct Share {
  std::int64_t first = 0, count = 0;
};
/// Splits `rows` among `parts` as evenly as can be, larger shares first.
[[nodiscard]] Share share_of(std::int64_t rows, std::int64_t part, std::int64_t parts);

struct LoaderOptions {
  std::int64_t batch_size = 1;  ///< of all parts together; may be more than there are samples
  std::int64_t batches = 0;     ///< of an epoch, at most those that the samples make
  bool shuffle = false;  ///< order of an epoch: torch.randperm with a generator seeded seed + epoch
  std::int64_t seed = 0;
  int threads = 1;         ///< at least 1; the batches don't depend on it
  std::int64_t part = 0;   ///< of each batch this loader gives the share of this part…
  std::int64_t parts = 1;  ///< …of so many
  bool pinned = false;     ///< page-locked buffers, for copies to a GPU that don't wait
};

/// An endless row of batches, epoch after epoch, from any position. Batches are gathered into a
/// ring of buffers that are allocated once; threads wait until half of the ring is free, so that
/// tiny batches don't cost a wake-up each.
class Loader {
 public:
  /// Starts with batch `first_batch` of `first_epoch`. `samples` must outlive the loader.
  Loader(const datasets::Samples& samples, const datasets::Spec& spec, LoaderOptions options,
         std::int64_t first_epoch = 0, std::int64_t first_batch = 0);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();

  /// The next batch, which stays valid until the next call. Throws what a gathering thread threw.
  [[nodiscard]] const Batch& next();

  [[nodiscard]] std::int64_t batches() const { return options_.batches; }
  /// Samples of batch `index` of an epoch, all parts together.
  [[nodiscard]] std::int64_t batch_size(std::int64_t index) const;

 private:
  using Order = std::vector<std::int64_t>;
  struct Slot {
    Batch full;  ///< the buffers
    Batch batch;
    std::int64_t ready = -1;  ///< number of the batch that it holds
    std::exception_ptr error;
  };

  void gather_until_stopped();
  void gather(Slot& slot, std::int64_t number);
  [[nodiscard]] std::shared_ptr<const Order> order_of(std::int64_t epoch);

  const datasets::Samples& samples_;
  const datasets::TargetKind target_kind_;
  const LoaderOptions options_;
  std::vector<Slot> ring_;

  std::mutex mutex_;  ///< guards all below and the slots' `ready` and `error`
  std::condition_variable slot_ready_, slots_free_;
  bool stopped_ = false;
  bool consumer_waits_ = false;
  std::int64_t claimed_;   ///< number of the next batch to gather; counts over epochs
  std::int64_t released_;  ///< batches below it may be overwritten
  std::int64_t next_;      ///< number of the batch that next() gives
  std::mutex orders_mutex_;
  std::vector<std::pair<std::int64_t, std::shared_ptr<const Order>>> orders_;  ///< by epoch

  std::vector<std::thread> threads_;
};

}  // namespace runner::engine
