#include "models/model.h"
#include "models/support/names.h"

namespace runner::models {

namespace {

struct Options {
  std::vector<std::int64_t> channels = {32, 64};
  std::int64_t kernel = 3;
  std::vector<std::int64_t> hidden = {128};
  bool batch_norm = true;
  double dropout = 0.25;
  std::string activation = "relu";
};
constexpr auto kRows = registry::rows<Options>({
    {.name = "channels",
     .member = &Options::channels,
     .doc = "output channels of each convolution; each halves the image",
     .range = registry::at_least(1)},
    {.name = "kernel",
     .member = &Options::kernel,
     .doc = "side of the square kernels, in pixels; padding keeps the image's size when it is odd",
     .range = registry::at_least(1)},
    {.name = "hidden",
     .member = &Options::hidden,
     .doc = "units of each hidden layer after the convolutions",
     .range = registry::at_least(1)},
    {.name = "batch_norm",
     .member = &Options::batch_norm,
     .doc = "normalise after each convolution"},
    {.name = "dropout",
     .member = &Options::dropout,
     .doc = "share zeroed before each linear layer in training",
     .range = registry::from_to_below(0, 1)},
    {.name = "activation",
     .member = &Options::activation,
     .doc = "after each layer but the last",
     .choices = kActivationNames},
});
static_assert(registry::covers<Options>(kRows));

graph::Graph build(const Options& options, const Task& task) {
  const graph::ActivationKind activation = graph::activation_from(options.activation);
  const std::int64_t padding = options.kernel / 2;
  graph::Builder g(task.input);
  auto x = g.input();
  std::size_t activations = 0;
  const auto activate = [&](graph::Builder::Node node) {
    return g.activation(options.activation + std::to_string(++activations), node, activation);
  };
  for (std::size_t i = 0; i < options.channels.size(); ++i) {
    const std::string n = std::to_string(i + 1);
    g.at_table("");
    x = g.conv2d("conv" + n, x,
                 {.out = options.channels[i],
                  .kernel = {options.kernel, options.kernel},
                  .padding = {padding, padding},
                  .bias = !options.batch_norm});
    if (options.batch_norm) x = g.batch_norm("bn" + n, x);
    x = activate(x);
    g.at("channels[" + std::to_string(i) + "]");
    x = g.max_pool2d("pool" + n, x);
  }
  x = g.flatten("flatten", x);
  for (std::size_t i = 0; i <= options.hidden.size(); ++i) {
    const std::string n = std::to_string(i + 1);
    const bool last = i == options.hidden.size();
    g.at(last ? "" : "hidden[" + std::to_string(i) + "]");
    if (options.dropout > 0) x = g.dropout("dropout" + n, x, options.dropout);
    x = g.linear("fc" + n, x, {.out = last ? task.outputs : options.hidden[i]});
    if (!last) x = activate(x);
  }
  return std::move(g).finish(x);
}

}  // namespace

void register_cnn(Models& models) {
  models.add(model<Options>(
      "cnn", "a few convolutions with batch norm and pools, then linear layers", kRows, build));
}

}  // namespace runner::models
