#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/host/machine.h"

namespace runner::host {

/// A machine of the test's making; all members may be changed.
class FakeMachine final : public Machine {
 public:
  FakeMachine() = default;
  /// `gpu_count` equal, idle GPUs of 80 GiB.
  explicit FakeMachine(int gpu_count) {
    constexpr std::int64_t kMemory = std::int64_t{80} << 30;
    for (int i = 0; i < gpu_count; ++i) {
      gpu_list.push_back({.index = i,
                          .name = "Fake GPU",
                          .memory_bytes = kMemory,
                          .free_bytes = kMemory,
                          .uuid = "GPU-0000000" + std::to_string(i),
                          .capability_major = 9,
                          .capability_minor = 0,
                          .processes = {}});
    }
  }

  [[nodiscard]] std::vector<Gpu> gpus() const override { return gpu_list; }
  [[nodiscard]] int cpu_count() const override { return cpus; }
  [[nodiscard]] std::int64_t memory_bytes() const override { return memory; }
  [[nodiscard]] std::string hostname() const override { return host; }

  std::vector<Gpu> gpu_list;
  int cpus = 8;
  std::int64_t memory = std::int64_t{64} << 30;
  std::string host = "fakehost";
};

}  // namespace runner::host
