// engine/cuda: NCCL as a c10d backend.
#pragma once

#include "runner/engine/comm/backends.h"

namespace runner::engine::cuda {

/// See Api::make_nccl.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendOptions& options, int index);

}  // namespace runner::engine::cuda
