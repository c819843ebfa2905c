#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runner/host/machine.h"

namespace runner::host {

/// NVIDIA's management library, loaded at run time through prototypes of our own: nothing has to be
/// installed to build, and a machine without a driver just has no GPUs.
class Nvml {
 public:
  /// nullptr when the library isn't there, lacks a function, or finds no driver.
  static std::unique_ptr<Nvml> load(const std::string& library);
  virtual ~Nvml() = default;

  /// A GPU that can't be asked (fallen off the bus, say) is left out.
  [[nodiscard]] virtual std::vector<Gpu> gpus() const = 0;
};

}  // namespace runner::host
