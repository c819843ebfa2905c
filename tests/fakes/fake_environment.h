#pragma once

#include <map>
#include <string>
#include <utility>

#include "runner/host/environment.h"

namespace runner::host {

class FakeEnvironment final : public Environment {
 public:
  FakeEnvironment() = default;
  FakeEnvironment(std::initializer_list<std::pair<const std::string, std::string>> variables)
      : variables_(variables) {}

  [[nodiscard]] std::optional<std::string> get(const std::string& name) const override {
    const auto found = variables_.find(name);
    if (found == variables_.end()) return std::nullopt;
    return found->second;
  }

  void set(const std::string& name, std::string value) { variables_[name] = std::move(value); }

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace runner::host
