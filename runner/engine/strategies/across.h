// engine: what the strategies of several processes have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "runner/config/experiment.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/lower.h"

namespace runner::engine {

/// Parameters whose gradients are sent together, by their position.
using Buckets = std::vector<std::vector<std::size_t>>;

/// Buckets of at most `limits` bytes, the last limit for all that follow; from the last parameter
/// to the first, since gradients come from the last layer to the first.
[[nodiscard]] Buckets make_buckets(const std::vector<at::Tensor>& parameters,
                                   const std::vector<std::size_t>& limits);
/// Of trainer.bucket_mb.
[[nodiscard]] std::size_t bucket_bytes(const config::Trainer& trainer);

/// Makes running statistics rank 0's on all ranks, as in PyTorch. Collective.
void share_statistics(const Group& group, const Network& network);

/// Averages gradients over the processes, a bucket at a time, in the format that
/// trainer.gradient_compression asks for.
class GradientMean {
 public:
  /// All arguments but the buckets must outlive it.
  GradientMean(const Group& group, const Network& network, const config::Trainer& trainer,
               Buckets buckets);

  [[nodiscard]] const Buckets& buckets() const { return buckets_; }
  /// Begins to average the gradients of the bucket with this number, which must stay as they are
  /// until finish(). Collective; in the same order on all ranks.
  void start(std::size_t bucket);
  /// Returns when the gradients of all buckets that were started are means.
  void finish();

 private:
  struct Exchange {
    std::size_t bucket = 0;
    at::Tensor values;  ///< of its gradients, one after the other
    c10::intrusive_ptr<c10d::Work> work;
  };

  /// The parameters of a bucket that have gradients.
  [[nodiscard]] std::vector<at::Tensor> with_gradients(std::size_t bucket) const;

  const Group& group_;
  const Network& network_;
  const config::Trainer& trainer_;
  const Buckets buckets_;
  std::vector<Exchange> exchanges_;
};

}  // namespace runner::engine
