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
     .doc = "the layers from input to output, each a table with its type",
     .type = "array of tables"},
});
static_assert(registry::covers<Options>(kRows));

graph::Graph build(const Options& options, const Task& task) {
  std::vector<Problem> problems;
  const std::vector<LayerSpec> layers = read_layers(options.layers, problems);
  if (!problems.empty())
    throw graph::ShapeError(problems.front().message, problems.front().path, problems.front().help);
  graph::Builder g(task.input);
  auto x = g.input();
  for (const LayerSpec& layer : layers) {
    g.at(layer.path);
    x = layer.type->add(g, layer.name, x, layer.options);
  }
  if (g.shape(x) != graph::Shape{task.outputs}) {
    throw graph::ShapeError("the last layer gives " + graph::to_text(g.shape(x)) +
                                ", and the task needs " + graph::to_text({task.outputs}),
                            layers.back().path,
                            "end with a linear layer of out = " + std::to_string(task.outputs));
  }
  return std::move(g).finish(x);
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
