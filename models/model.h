// models: one file a model.
//
// A model file holds an option struct with its table, a function that builds the layer graph, and
// the function that registers both; CMake finds the file by itself:
//
//   namespace runner::models {
//   namespace {
//   struct Options { std::vector<std::int64_t> hidden = {128}; };
//   constexpr auto kRows = registry::rows<Options>({
//       {.name = "hidden", .member = &Options::hidden, .doc = "units of each hidden layer",
//        .range = registry::at_least(1)},
//   });
//   static_assert(registry::covers<Options>(kRows));
//   graph::Graph build(const Options& options, const Task& task) { … }
//   }  // namespace
//   void register_mlp(Models& models) {
//     models.add(model<Options>("mlp", "multi-layer perceptron", kRows, build));
//   }
//   }  // namespace runner::models
#pragma once

#include <any>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/catalog.h"
#include "runner/graph/graph.h"

namespace runner::models {

/// What the dataset and the loss ask of a model.
struct Task {
  graph::Shape input;  ///< of one sample
  /// Numbers a sample that the model must give: classes, or target values; at least 1.
  std::int64_t outputs = 0;
};

/// Something wrong with a model's own options that their table can't say.
struct Problem {
  std::string path;  ///< relative to [model]: "layers[2].kernel"
  std::string message;
  std::string help;
};

struct Model : registry::Entry {
  /// `options` holds the model's own struct; the graph's output is [task.outputs]. Throws
  /// graph::ShapeError.
  std::function<graph::Graph(const std::any& options, const Task& task)> build;
  /// All that is wrong with options that hold more than their table can check; may be empty.
  std::function<std::vector<Problem>(const std::any& options)> check;
};

using Models = registry::Catalog<Model>;

/// Throws graph::ShapeError when the task asks for no outputs.
void require_outputs(const Task& task);
/// Throws graph::ShapeError, with `path`, when the graph's output isn't [task.outputs].
void require_fit(const graph::Graph& graph, const Task& task, std::string path = {});

/// A catalog entry from a model file's parts.
template <class O, std::size_t N>
Model model(std::string_view name, std::string_view doc,
            const std::array<registry::Row<O>, N>& rows,
            graph::Graph (*build)(const O&, const Task&)) {
  Model entry;
  entry.name = name;
  entry.doc = doc;
  entry.options = &registry::table_of<O>(rows);
  entry.defaults = O{};
  entry.build = [build](const std::any& options, const Task& task) {
    require_outputs(task);
    graph::Graph graph = build(std::any_cast<const O&>(options), task);
    require_fit(graph, task);
    return graph;
  };
  return entry;
}

/// Registers every model of this folder (generated from the list of files).
void register_all(Models& models);
/// All models, registered once.
[[nodiscard]] const Models& all();

}  // namespace runner::models
