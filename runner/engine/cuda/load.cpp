#include <dlfcn.h>

#include "runner/diag/error.h"
#include "runner/engine/cuda/cuda.h"

namespace runner::engine::cuda {

namespace {

const Api& open(const std::filesystem::path& folder) {
  const std::filesystem::path library = folder / "librunner-cuda.so";
  if (!std::filesystem::exists(library)) {
    throw diag::Error(
        diag::Exit::machine,
        "this build of runner-worker can't use GPUs: '" + library.string() + "' is missing",
        "build it with -DRUNNER_CUDA=ON where a CUDA toolkit is installed, or leave "
        "out trainer.gpus");
  }
  // Never closed: LibTorch keeps pointers into it.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    throw diag::Error(diag::Exit::machine, "cannot load '" + library.string() + "': " + dlerror(),
                      "is the CUDA toolkit that it was built with still installed?");
  }
  const auto get = reinterpret_cast<const Api* (*)()>(dlsym(handle, "runner_cuda_api"));
  const Api* api = get == nullptr ? nullptr : get();
  if (api == nullptr || api->version != Api::kVersion) {
    throw diag::Error(diag::Exit::machine,
                      "'" + library.string() + "' is of another build than runner-worker");
  }
  return *api;
}

}  // namespace

const Api& load(const std::filesystem::path& folder) {
  static const Api& api = open(folder);
  if (api.device_count() == 0) {
    throw diag::Error(diag::Exit::machine, "LibTorch sees no GPU on this machine",
                      "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or leave out trainer.gpus");
  }
  return api;
}

}  // namespace runner::engine::cuda
