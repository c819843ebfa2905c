#include "runner/engine/cuda/cuda.h"

#include <doctest/doctest.h>

#include "runner/diag/error.h"

namespace runner::engine::cuda {

TEST_CASE("cuda: a build without the GPU side says how to get it") {
  CHECK_THROWS_WITH_AS((void)load("/nonexistent"),
                       "this build of runner-worker can't use GPUs: "
                       "'/nonexistent/librunner-cuda.so' is missing",
                       diag::Error);
}

TEST_CASE("cuda: the GPU side loads, and without a GPU says so") {
  const std::filesystem::path folder = RUNNER_BINARY_DIR;
  if (!std::filesystem::exists(folder / "librunner-cuda.so")) {
    MESSAGE("built without a CUDA toolkit: nothing to load");
    return;
  }
  try {
    const Api& api = load(folder);
    CHECK(api.device_count() > 0);
    CHECK_FALSE(api.device_name(0).empty());
    CHECK(api.peak_memory_bytes(0) >= 0);
  } catch (const diag::Error& error) {
    CHECK(std::string(error.what()) == "LibTorch sees no GPU on this machine");
    CHECK(error.exit() == diag::Exit::machine);
  }
}

}  // namespace runner::engine::cuda
