#include "runner/engine/cuda/nccl.h"

#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace runner::engine::cuda {

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendOptions& options, int index) {
  // A communicator lives on the device that is current when it is first used.
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(options.store, options.rank, options.size,
                                                     std::move(nccl));
}

}  // namespace runner::engine::cuda
