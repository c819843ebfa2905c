#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "models/support/layers.h"
#include "tests/models/model_support.h"

namespace runner::models {

namespace {

/// Options that a model can't be built without.
Value::Table needed_options(std::string_view name, std::int64_t outputs) {
  if (name != "sequential") return {};
  return {{"layers", Value::Array{layer("flatten"), layer("linear", {{"out", outputs}})}}};
}

void check_documentation(const registry::Entry& entry) {
  CAPTURE(entry.name);
  CHECK_FALSE(entry.doc.empty());
  CHECK(entry.doc.back() != '.');
  REQUIRE(entry.options != nullptr);
  for (const registry::OptionInfo& option : entry.options->options()) {
    CAPTURE(option.name);
    CHECK_FALSE(option.doc.empty());
    CHECK(option.doc.back() != '.');
    CHECK_FALSE(option.type.empty());
  }
}

}  // namespace

TEST_CASE("models: every file of the folder is registered") {
  const auto names = all().names();
  const std::set<std::string_view> found(names.begin(), names.end());
  CHECK(found == std::set<std::string_view>{"cnn", "lenet", "mlp", "resnet", "sequential"});
}

TEST_CASE("models: every model is described, and fits images and targets of several sizes") {
  const std::vector<Task> tasks = {
      {{1, 28, 28}, 10}, {{3, 32, 32}, 10}, {{3, 64, 48}, 100}, {{1, 28, 28}, 1}};
  for (const Model& model : all().entries()) {
    check_documentation(model);
    for (const Task& task : tasks) {
      CAPTURE(model.name);
      CAPTURE(graph::to_text(task.input));
      const auto options = options_of(model, needed_options(model.name, task.outputs));
      if (model.check) CHECK(model.check(options).empty());
      const graph::Graph graph = model.build(options, task);
      CHECK(graph.input() == task.input);
      CHECK(graph.output() == graph::Shape{task.outputs});
      CHECK(graph.parameter_count() > 0);
      CHECK(graph.flops() > 0);
      CHECK(graph.activation_count() > graph::element_count(task.input));
    }
  }
}

TEST_CASE("models: a task without outputs is refused by each") {
  for (const Model& model : all().entries()) {
    CAPTURE(model.name);
    CHECK(build_error(model.name, {1, 28, 28}, 0) ==
          " | a model needs at least 1 output, and the task asks for 0 | the dataset's classes, or "
          "target values, decide it");
  }
}

TEST_CASE("models: options survive a trip through their values") {
  for (const Model& model : all().entries()) {
    CAPTURE(model.name);
    std::any copy = model.defaults;
    const registry::OptionTable& table = *model.options;
    for (const registry::OptionInfo& option : table.options()) {
      CAPTURE(option.name);
      const std::size_t index = table.index(option.name);
      CHECK_FALSE(table.set(table.object(copy), index, option.default_value).has_value());
      CHECK(table.get(table.object(copy), index) == option.default_value);
    }
  }
}

TEST_CASE("layers: every type is described and is an operation of the graph under its name") {
  for (const LayerType& type : layer_types().entries()) {
    check_documentation(type);
    Value::Table options;
    if (type.options->find("out") != nullptr) options.emplace_back("out", 4);
    std::vector<Problem> problems;
    const auto specs = read_layers(Value::Array{layer(std::string(type.name), options)}, problems);
    REQUIRE(problems.empty());
    REQUIRE(specs.size() == 1);
    graph::Builder g({4, 8, 8});
    const auto x = specs[0].type->add(g, specs[0].name, g.input(), specs[0].options);
    const graph::Graph graph = std::move(g).finish(x);
    CHECK(graph::op_name(graph.layers().back().op) == type.name);
    CHECK(graph.layers().back().name == std::string(type.name) + "1");
  }
  CHECK(layer_types().names().size() == 17);
}

}  // namespace runner::models
