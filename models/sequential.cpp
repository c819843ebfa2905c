#include "models/model.h"
#include "models/support/layers.h"

namespace runner::models {

namespace {

struct Options {
  registry::Value layers;
};
constexpr auto kRows = registry::rows<Options>({
    {.name = "layers",
     .member = &Options::layers,
     .doc =
         "the layers from input to output, each a table: its type, a name if wanted, its options",
     .type = "list of layers"},
});
static_assert(registry::covers<Options>(kRows));

graph::Graph build(const Options& options, const Task& task) {
  std::vector<Problem> problems;
  const std::vector<LayerSpec> layers = read_layers(options.layers, problems);
  if (!problems.empty()) {
    Problem& first = problems.front();
    throw graph::ShapeError(first.message, std::move(first.path), std::move(first.help));
  }
  graph::Builder g(task.input);
  auto x = g.input();
  for (const LayerSpec& layer : layers) {
    g.at_table(layer.path);
    x = layer.type->add(g, layer.name, x, layer.options);
  }
  graph::Graph graph = std::move(g).finish(x);
  const bool has_out = layers.back().type->options->find("out") != nullptr;
  require_fit(graph, task, layers.back().path + (has_out ? ".out" : ""));
  return graph;
}

std::vector<Problem> check(const std::any& options) {
  std::vector<Problem> problems;
  (void)read_layers(std::any_cast<const Options&>(options).layers, problems);
  return problems;
}

}  // namespace

void register_sequential(Models& models) {
  Model entry = model<Options>(
      "sequential", "layers one after another, written in the experiment file", kRows, build);
  entry.check = check;
  models.add(std::move(entry));
}

}  // namespace runner::models
