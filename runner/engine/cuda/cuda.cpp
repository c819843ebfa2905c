// librunner-cuda.so; see cuda.h.
#include "runner/engine/cuda/cuda.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include "runner/engine/cuda/nccl.h"

namespace runner::engine::cuda {

namespace {

int device_count() { return c10::cuda::device_count(); }

std::string device_name(int index) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return "unknown GPU";
  return properties.name;
}

std::int64_t peak_memory_bytes(int index) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  return stats.allocated_bytes[kAll].peak;
}

constexpr Api kApi{Api::kVersion, device_count, device_name, peak_memory_bytes, make_nccl};

}  // namespace

}  // namespace runner::engine::cuda

extern "C" const runner::engine::cuda::Api* runner_cuda_api() {
  return &runner::engine::cuda::kApi;
}
