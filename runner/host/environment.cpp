#include "runner/host/environment.h"

#include <cstdlib>

namespace runner::host {

namespace {

class SystemEnvironment final : public Environment {
 public:
  std::optional<std::string> get(const std::string& name) const override {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  }
};

}  // namespace

const Environment& system_environment() {
  static const SystemEnvironment environment;
  return environment;
}

}  // namespace runner::host
