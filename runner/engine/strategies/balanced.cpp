#include <stdexcept>

#include "runner/engine/strategy.h"

namespace runner::engine {

std::unique_ptr<Strategy> make_balanced(const StrategyOptions& /*options*/) {
  throw std::logic_error("balanced");
}

}  // namespace runner::engine
