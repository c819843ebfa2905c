#include "models/model.h"
#include "models/support/names.h"

namespace runner::models {

namespace {

struct Options {
  std::vector<std::int64_t> channels = {6, 16};
  std::vector<std::int64_t> hidden = {120, 84};
  std::int64_t kernel = 5;
  std::int64_t padding = 2;
  std::string activation = "relu";
};
constexpr auto kRows = registry::rows<Options>({
    {.name = "channels",
     .member = &Options::channels,
     .doc = "output channels of each convolution",
     .range = registry::at_least(1)},
    {.name = "hidden",
     .member = &Options::hidden,
     .doc = "units of each hidden layer after the convolutions",
     .range = registry::at_least(1)},
    {.name = "kernel",
     .member = &Options::kernel,
     .doc = "side of the convolutions' square kernels, in pixels",
     .range = registry::at_least(1)},
    {.name = "padding",
     .member = &Options::padding,
     .doc = "zeros on each side of the first convolution's input, in pixels",
     .range = registry::at_least(0)},
    {.name = "activation",
     .member = &Options::activation,
     .doc = "after each layer but the last",
     .choices = kActivationNames},
});
static_assert(registry::covers<Options>(kRows));

/// LeCun et al. 1998 with today's activation and pooling: 61,706 parameters on 28x28 images of 10
/// classes.
graph::Graph build(const Options& options, const Task& task) {
  const graph::ActivationKind activation = graph::activation_from(options.activation);
  graph::Builder g(task.input);
  auto x = g.input();
  for (std::size_t i = 0; i < options.channels.size(); ++i) {
    const std::string n = std::to_string(i + 1);
    const std::int64_t padding = i == 0 ? options.padding : 0;
    g.at_table("");
    x = g.conv2d("conv" + n, x,
                 {.out = options.channels[i],
                  .kernel = {options.kernel, options.kernel},
                  .padding = {padding, padding}});
    x = g.activation(options.activation + n, x, activation);
    g.at("channels[" + std::to_string(i) + "]");
    x = g.max_pool2d("pool" + n, x);
  }
  x = g.flatten("flatten", x);
  for (std::size_t i = 0; i < options.hidden.size(); ++i) {
    g.at("hidden[" + std::to_string(i) + "]");
    x = g.linear("fc" + std::to_string(i + 1), x, {.out = options.hidden[i]});
    x = g.activation(options.activation + std::to_string(options.channels.size() + i + 1), x,
                     activation);
  }
  g.at("");
  x = g.linear("fc" + std::to_string(options.hidden.size() + 1), x, {.out = task.outputs});
  return std::move(g).finish(x);
}

}  // namespace

void register_lenet(Models& models) {
  models.add(
      model<Options>("lenet", "LeNet-5: convolutions and pools, then linear layers", kRows, build));
}

}  // namespace runner::models
