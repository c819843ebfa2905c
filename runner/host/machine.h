#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace runner::host {

struct Gpu {
  int index = 0;  ///< in PCI bus order, as nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID count
  std::string name = {};
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  std::string uuid = {};     ///< "GPU-…"; empty if unknown
  int capability_major = 0;  ///< 0 if unknown
  int capability_minor = 0;
  std::vector<std::int64_t> processes = {};  ///< ids of the processes that compute on it now
};

class Machine {
 public:
  virtual ~Machine() = default;

  /// All GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says, with their state at this moment;
  /// empty when there is no GPU or no driver.
  [[nodiscard]] virtual std::vector<Gpu> gpus() const = 0;
  /// CPUs that this process may use (its affinity mask), at least 1.
  [[nodiscard]] virtual int cpu_count() const = 0;
  /// Main memory: what the machine has, or the container's limit where that is lower.
  [[nodiscard]] virtual std::int64_t memory_bytes() const = 0;
  [[nodiscard]] virtual std::string hostname() const = 0;
};

/// This machine. The NVIDIA driver's library is loaded at the first gpus(), never before: a check
/// that doesn't ask for GPUs doesn't pay for it.
[[nodiscard]] const Machine& system_machine();

/// As system_machine(), with another file in the place of "libnvidia-ml.so.1".
[[nodiscard]] std::unique_ptr<Machine> make_machine(const std::string& nvml_library);

/// The GPUs that a mask as in CUDA_VISIBLE_DEVICES lets a program see, in the mask's order, by
/// CUDA's own rules: entries are numbers or beginnings of UUIDs; the first entry that names no GPU
/// ends the list, and a repeated one empties it. No mask: all of them.
[[nodiscard]] std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                                            const std::optional<std::string>& mask);

}  // namespace runner::host
