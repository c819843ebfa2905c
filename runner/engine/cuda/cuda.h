// engine/cuda: the GPU side of LibTorch, loaded only when a plan has GPUs.
//
// libtorch_cuda takes longer to load than a small run on the CPU takes, so the worker doesn't link
// it. librunner-cuda.so does; loading it makes the CUDA device known to LibTorch, and what can't be
// said through LibTorch's device-independent interfaces is in Api.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace c10d {
class Backend;
}
namespace runner::engine {
struct BackendOptions;
}

namespace runner::engine::cuda {

struct Api {
  static constexpr int kVersion = 2;
  int version;
  /// GPUs that this process sees; 0 also when the driver is missing.
  int (*device_count)();
  std::string (*device_name)(int index);
  /// Most bytes of tensors there have been on the device.
  std::int64_t (*peak_memory_bytes)(int index);
  /// NCCL, for tensors on the device `index`. Throws diag::Error (machine) where the build has
  /// none.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const BackendOptions& options, int index);
};

/// Loads librunner-cuda.so from `folder` (once; later calls give the same). To be called before
/// anything else of LibTorch. Throws diag::Error (machine) when it wasn't built or can't be loaded,
/// and when it sees no GPU.
const Api& load(const std::filesystem::path& folder);

}  // namespace runner::engine::cuda
