#include "models/model.h"

namespace runner::models {

void require_outputs(const Task& task) {
  if (task.outputs >= 1) return;
  throw graph::ShapeError(
      "a model needs at least 1 output, and the task asks for " + std::to_string(task.outputs), {},
      "the dataset's classes, or target values, decide it");
}

void require_fit(const graph::Graph& graph, const Task& task, std::string path) {
  const graph::Shape wanted = {task.outputs};
  if (graph.output() == wanted) return;
  const graph::Layer& last = graph.layers().back();
  const bool is_row = graph.output().size() == 1;
  throw graph::ShapeError(
      "the last layer '" + last.name + "' (" + std::string(graph::op_name(last.op)) + ") gives " +
          graph::to_text(graph.output()) + ", and the task needs " + graph::to_text(wanted),
      std::move(path),
      std::string(is_row ? "end with a linear layer of out = "
                         : "end with flatten and a linear layer of out = ") +
          std::to_string(task.outputs));
}

const Models& all() {
  static const Models models = [] {
    Models result;
    register_all(result);
    return result;
  }();
  return models;
}

}  // namespace runner::models
