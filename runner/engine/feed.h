// engine: a loader's batches on the device that trains.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

#include "runner/engine/loader.h"

namespace runner::engine {

/// Hands out a loader's batches on `device`, real numbers in `dtype`. For a GPU the next batch is
/// copied on a stream of its own while the current one is worked on; on the CPU nothing is copied
/// unless the dtype asks for it.
class Feed {
 public:
  Feed(Loader& loader, const at::Device& device, at::ScalarType dtype);
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;
  ~Feed();

  /// The next batch; valid until the next call. Throws what Loader::next throws.
  [[nodiscard]] Batch next();

 private:
  void start_copy();
  [[nodiscard]] Batch to_dtype(const Batch& batch) const;

  Loader& loader_;
  at::Device device_;
  at::ScalarType dtype_;
  std::optional<c10::Stream> copies_;  ///< GPU only, as all below
  std::optional<c10::Event> copied_;
  Batch staged_;
};

}  // namespace runner::engine
