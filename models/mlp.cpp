#include "models/model.h"
#include "models/support/names.h"

namespace runner::models {

namespace {

struct Options {
  std::vector<std::int64_t> hidden = {128};
  std::string activation = "relu";
  bool batch_norm = false;
  double dropout = 0;
};
constexpr auto kRows = registry::rows<Options>({
    {.name = "hidden",
     .member = &Options::hidden,
     .doc = "units of each hidden layer",
     .range = registry::at_least(1)},
    {.name = "activation",
     .member = &Options::activation,
     .doc = "after each hidden layer",
     .choices = kActivationNames},
    {.name = "batch_norm",
     .member = &Options::batch_norm,
     .doc = "normalise before each activation"},
    {.name = "dropout",
     .member = &Options::dropout,
     .doc = "share of the hidden units zeroed in training",
     .range = registry::from_to_below(0, 1)},
});
static_assert(registry::covers<Options>(kRows));

graph::Graph build(const Options& options, const Task& task) {
  graph::Builder g(task.input);
  auto x = task.input.size() == 1 ? g.input() : g.flatten("flatten", g.input());
  for (std::size_t i = 0; i < options.hidden.size(); ++i) {
    const std::string n = std::to_string(i + 1);
    g.at("hidden[" + std::to_string(i) + "]");
    x = g.linear("fc" + n, x, {.out = options.hidden[i], .bias = !options.batch_norm});
    if (options.batch_norm) x = g.batch_norm("bn" + n, x);
    x = g.activation(options.activation + n, x, graph::activation_from(options.activation));
    if (options.dropout > 0) x = g.dropout("dropout" + n, x, options.dropout);
  }
  g.at("");
  x = g.linear("fc" + std::to_string(options.hidden.size() + 1), x, {.out = task.outputs});
  return std::move(g).finish(x);
}

}  // namespace

void register_mlp(Models& models) {
  models.add(
      model<Options>("mlp", "multi-layer perceptron over the flattened input", kRows, build));
}

}  // namespace runner::models
