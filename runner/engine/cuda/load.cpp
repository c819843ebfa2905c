#include "runner/diag/error.h"
#include "runner/engine/cuda/cuda.h"
#include "runner/engine/plugin.h"

namespace runner::engine::cuda {

namespace {

constexpr Plugin kPlugin{
    .file = "librunner-cuda.so",
    .symbol = "runner_cuda_api",
    .use = "GPUs",
    .to_build =
        "build it with -DRUNNER_CUDA=ON where a CUDA toolkit is installed, or leave "
        "out trainer.gpus",
    .to_load = "is the CUDA toolkit that it was built with still installed?"};

}  // namespace

const Api& load(const std::filesystem::path& folder) {
  static const Api& api = load_plugin<Api>(folder, kPlugin);
  if (api.device_count() == 0) {
    throw diag::Error(diag::Exit::machine, "LibTorch sees no GPU on this machine",
                      "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or leave out trainer.gpus");
  }
  return api;
}

}  // namespace runner::engine::cuda
