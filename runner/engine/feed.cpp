#include "runner/engine/feed.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace runner::engine {

Feed::Feed(Loader& loader, const at::Device& device, at::ScalarType dtype)
    : loader_(loader), device_(device), dtype_(dtype) {
  if (device_.is_cpu()) return;
  copies_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  copied_.emplace(device_.type());
}

Feed::~Feed() {
  // The last copy may still read from the loader's buffers, which are freed after this.
  if (copied_ && staged_.inputs.defined()) copied_->synchronize();
}

Batch Feed::next() {
  if (!copies_) return to_dtype(loader_.next());
  if (!staged_.inputs.defined()) start_copy();
  const c10::Stream compute = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  copied_->block(compute);
  // Its buffers are free once the copy is over, and were copied a whole step ago.
  copied_->synchronize();
  const Batch batch = std::exchange(staged_, {});
  batch.inputs.record_stream(compute);
  batch.targets.record_stream(compute);
  start_copy();
  return to_dtype(batch);
}

void Feed::start_copy() {
  const Batch& host = loader_.next();
  const c10::StreamGuard guard(*copies_);
  staged_.inputs = host.inputs.to(device_, /*non_blocking=*/true);
  staged_.targets = host.targets.to(device_, /*non_blocking=*/true);
  staged_.samples = host.samples;
  copied_->record(*copies_);
}

Batch Feed::to_dtype(const Batch& batch) const {
  if (dtype_ == at::kFloat) return batch;
  const bool classes = !batch.targets.is_floating_point();
  return {batch.inputs.to(dtype_), classes ? batch.targets : batch.targets.to(dtype_),
          batch.samples};
}

}  // namespace runner::engine
