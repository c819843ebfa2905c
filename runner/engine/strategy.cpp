#include "runner/engine/strategy.h"

#include <stdexcept>

namespace runner::engine {

std::int64_t replicas_of(const plan::Plan& plan) {
  return plan.backend == "balanced" ? 1 : plan.devices_per_process;
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options) {
  const std::string& backend = options.plan.backend;
  const bool alone = options.group.size() == 1 && options.devices.size() == 1;
  if (alone) return make_single(options);
  const bool replicas = options.devices.size() > 1;
  if (backend == "ddp" || backend == "horovod") return make_distributed(options);
  // With one device a process ddp2 is ddp, which sends gradients while it computes them.
  if (backend == "ddp2" && !replicas) return make_distributed(options);
  if (backend == "dp" || backend == "ddp2") return make_data_parallel(options);
  if (backend == "balanced") return make_balanced(options);
  throw std::logic_error("backend '" + backend + "' has no strategy");
}

}  // namespace runner::engine
