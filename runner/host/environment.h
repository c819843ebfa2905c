#pragma once

#include <optional>
#include <string>

namespace runner::host {

class Environment {
 public:
  virtual ~Environment() = default;

  /// The variable's value, which may be empty; nullopt when it isn't set.
  [[nodiscard]] virtual std::optional<std::string> get(const std::string& name) const = 0;
};

/// The environment of this process.
[[nodiscard]] const Environment& system_environment();

}  // namespace runner::host
