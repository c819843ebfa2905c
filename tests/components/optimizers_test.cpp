#include <doctest/doctest.h>

#include "runner/components/component.h"

using namespace runner::components;
using runner::registry::OptionInfo;
using runner::registry::Value;

namespace {

/// Sets one option of an entry's defaults; the message of the misfit, or "".
std::string set(const Optimizer& optimizer, std::any& options, std::string_view key,
                const Value& value) {
  const auto& table = *optimizer.options;
  const auto misfit = table.set(table.object(options), table.index(key), value);
  return misfit ? misfit->message : "";
}

}  // namespace

TEST_CASE("optimizers: the defaults are PyTorch's") {
  struct Row {
    const char* name;
    std::vector<std::pair<const char*, Value>> defaults;
  };
  const std::vector<Row> rows = {
      {"sgd", {{"momentum", 0.0}, {"dampening", 0.0}, {"weight_decay", 0.0}, {"nesterov", false}}},
      {"adam",
       {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}}},
      {"adamw", {{"lr", 1e-3}, {"weight_decay", 1e-2}, {"amsgrad", false}}},
      {"rmsprop", {{"lr", 1e-2}, {"alpha", 0.99}, {"eps", 1e-8}, {"centered", false}}},
      {"adagrad", {{"lr", 1e-2}, {"lr_decay", 0.0}, {"eps", 1e-10}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Optimizer* optimizer = optimizers().find(row.name);
    REQUIRE(optimizer != nullptr);
    for (const auto& [key, value] : row.defaults) {
      CAPTURE(key);
      const OptionInfo* option = optimizer->options->find(key);
      REQUIRE(option != nullptr);
      CHECK(option->default_value == value);
    }
  }
  CHECK(optimizers().entries().size() == rows.size());
}

TEST_CASE("optimizers: numbers that can't train are refused") {
  struct Row {
    const char* name;
    const char* key;
    Value value;
    const char* message;
  };
  for (const Row& row : std::vector<Row>{
           {"sgd", "lr", 0.0, "expected a number, above 0, found the float 0.0"},
           {"adam", "lr", -1, "expected a number, above 0, found the integer -1"},
           {"sgd", "momentum", 1.0, "expected a number, 0 to below 1, found the float 1.0"},
           {"adam", "beta2", 1.5, "expected a number, 0 to below 1, found the float 1.5"},
           {"adamw", "eps", -1e-8, "expected a number, at least 0, found the float -1e-08"},
           {"adagrad", "weight_decay", -0.5,
            "expected a number, at least 0, found the float -0.5"}}) {
    CAPTURE(row.key);
    const Optimizer& optimizer = *optimizers().find(row.name);
    std::any options = optimizer.defaults;
    CHECK(set(optimizer, options, row.key, row.value) == row.message);
  }
}

TEST_CASE("optimizers: the tensors kept for each weight follow the options") {
  const auto count = [](std::string_view name, std::vector<std::pair<const char*, Value>> values) {
    const Optimizer& optimizer = *optimizers().find(name);
    std::any options = optimizer.defaults;
    for (const auto& [key, value] : values) REQUIRE(set(optimizer, options, key, value).empty());
    return optimizer.state_tensors(options);
  };
  CHECK(count("sgd", {}) == 0);
  CHECK(count("sgd", {{"momentum", 0.9}}) == 1);
  CHECK(count("adam", {}) == 2);
  CHECK(count("adam", {{"amsgrad", true}}) == 3);
  CHECK(count("adamw", {{"amsgrad", true}}) == 3);
  CHECK(count("rmsprop", {}) == 1);
  CHECK(count("rmsprop", {{"momentum", 0.9}, {"centered", true}}) == 3);
  CHECK(count("adagrad", {}) == 1);
}

TEST_CASE("optimizers: the learning rate comes from the options") {
  for (const Optimizer& optimizer : optimizers().entries()) {
    CAPTURE(optimizer.name);
    std::any options = optimizer.defaults;
    REQUIRE(set(optimizer, options, "lr", 0.25).empty());
    CHECK(optimizer.lr(options) == 0.25);
  }
}

TEST_CASE("optimizers: another rate may be resumed with, another state may not") {
  using runner::registry::Resume;
  CHECK(optimizers().find("adam")->options->find("lr")->resume == Resume::warn);
  CHECK(optimizers().find("adam")->options->find("amsgrad")->resume == Resume::fixed);
  CHECK(optimizers().find("sgd")->options->find("momentum")->resume == Resume::fixed);
}
