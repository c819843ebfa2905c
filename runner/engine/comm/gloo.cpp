#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "runner/engine/comm/backends.h"

namespace runner::engine {

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendOptions& options) {
  using c10d::ProcessGroupGloo;
  const auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices.push_back(ProcessGroupGloo::createDeviceForHostname(options.address));
  return c10::make_intrusive<ProcessGroupGloo>(options.store, options.rank, options.size, gloo);
}

}  // namespace runner::engine
