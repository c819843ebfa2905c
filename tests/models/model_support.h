// Building a registered model from the text of its options' values.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/model.h"

namespace runner::models {

using registry::Value;

/// The model's options with some of them set.
inline std::any options_of(const Model& model, const Value::Table& set) {
  std::any options = model.defaults;
  const registry::OptionTable& table = *model.options;
  for (const auto& [key, value] : set) {
    REQUIRE_MESSAGE(table.find(key) != nullptr, key);
    REQUIRE_FALSE(table.set(table.object(options), table.index(key), value).has_value());
  }
  return options;
}

inline graph::Graph build_model(std::string_view name, const graph::Shape& input,
                                std::int64_t outputs, const Value::Table& set = {}) {
  const Model* model = all().find(name);
  REQUIRE(model != nullptr);
  return model->build(options_of(*model, set), {input, outputs});
}

/// "path | message | help" of the ShapeError that building throws.
inline std::string build_error(std::string_view name, const graph::Shape& input,
                               std::int64_t outputs, const Value::Table& set = {}) {
  try {
    (void)build_model(name, input, outputs, set);
  } catch (const graph::ShapeError& error) {
    return error.path() + " | " + error.what() + " | " + error.help();
  }
  return "builds";
}

/// A layer of `sequential`.
inline Value layer(std::string type, Value::Table options = {}) {
  options.insert(options.begin(), {"type", std::move(type)});
  return options;
}

/// Full names of all tensors, in order.
inline std::vector<std::string> tensor_names(const graph::Graph& graph) {
  std::vector<std::string> names;
  for (const graph::Layer& layer : graph.layers()) {
    for (const graph::Parameter& p : layer.parameters) names.push_back(layer.name + "." + p.name);
  }
  return names;
}

/// What a graph computes: the operations with their sizes, free of the layers' names.
inline std::vector<std::string> structure(const graph::Graph& graph) {
  std::vector<std::string> lines;
  for (const graph::Layer& layer : graph.layers()) {
    std::string line = std::string(graph::op_name(layer.op)) + " " + graph::to_text(layer.output) +
                       " " + std::to_string(layer.flops);
    for (const std::size_t input : layer.inputs) line += " from " + std::to_string(input);
    for (const graph::Parameter& p : layer.parameters) {
      line += " " + p.name + graph::to_text(p.shape);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace runner::models
