#include <algorithm>
#include <array>

#include "models/model.h"

namespace runner::models {

namespace {

struct Options {
  std::int64_t depth = 18;
  std::string stem = "auto";
};
constexpr auto kRows = registry::rows<Options>({
    {.name = "depth",
     .member = &Options::depth,
     .doc = "20, 32, 44, 56 (CIFAR's), 18, 34 or 50 (ImageNet's)",
     .range = registry::between(18, 56)},
    {.name = "stem",
     .member = &Options::stem,
     .doc = "first layer of depth 18, 34 and 50: imagenet (7x7 and a pool), cifar (3x3), auto: by "
            "the image's size",
     .choices = {"auto", "imagenet", "cifar"}},
});
static_assert(registry::covers<Options>(kRows));

using graph::Builder;

/// Layers are named as torchvision names them, so that its weights fit.
class Residual {
 public:
  explicit Residual(Builder& g) : g_(g) {}

  Builder::Node conv_bn(const std::string& conv, const std::string& bn, Builder::Node x,
                        std::int64_t out, std::int64_t kernel, std::int64_t stride) {
    const std::int64_t padding = kernel / 2;
    x = g_.conv2d(conv, x,
                  {.out = out,
                   .kernel = {kernel, kernel},
                   .stride = {stride, stride},
                   .padding = {padding, padding},
                   .bias = false});
    return g_.batch_norm(bn, x);
  }

  /// Two 3x3 convolutions.
  Builder::Node basic(const std::string& name, Builder::Node x, std::int64_t channels,
                      std::int64_t stride) {
    auto y =
        g_.relu(name + ".relu1", conv_bn(name + ".conv1", name + ".bn1", x, channels, 3, stride));
    y = conv_bn(name + ".conv2", name + ".bn2", y, channels, 3, 1);
    return join(name, x, y, channels, stride);
  }

  /// 1x1, 3x3 (which carries the stride), 1x1 to four times the channels.
  Builder::Node bottleneck(const std::string& name, Builder::Node x, std::int64_t channels,
                           std::int64_t stride) {
    auto y = g_.relu(name + ".relu1", conv_bn(name + ".conv1", name + ".bn1", x, channels, 1, 1));
    y = g_.relu(name + ".relu2", conv_bn(name + ".conv2", name + ".bn2", y, channels, 3, stride));
    y = conv_bn(name + ".conv3", name + ".bn3", y, 4 * channels, 1, 1);
    return join(name, x, y, 4 * channels, stride);
  }

 private:
  /// Adds the shortcut: the input itself, or a projection where the shape changes.
  Builder::Node join(const std::string& name, Builder::Node x, Builder::Node y,
                     std::int64_t channels, std::int64_t stride) {
    if (stride != 1 || g_.shape(x)[0] != channels) {
      x = conv_bn(name + ".downsample.0", name + ".downsample.1", x, channels, 1, stride);
    }
    return g_.relu(name + ".relu", g_.add(name + ".add", y, x));
  }

  Builder& g_;
};

struct Layout {
  std::int64_t depth;
  std::array<std::int64_t, 4> blocks;  ///< of each stage; 0: no such stage
  bool bottleneck;
  bool small;  ///< He et al. 2015, section 4.2: 16, 32, 64 channels after a 3x3 stem
};
constexpr std::array<Layout, 7> kLayouts = {{
    {20, {3, 3, 3, 0}, false, true},
    {32, {5, 5, 5, 0}, false, true},
    {44, {7, 7, 7, 0}, false, true},
    {56, {9, 9, 9, 0}, false, true},
    {18, {2, 2, 2, 2}, false, false},
    {34, {3, 4, 6, 3}, false, false},
    {50, {3, 4, 6, 3}, true, false},
}};

graph::Graph build(const Options& options, const Task& task) {
  const auto layout = std::find_if(kLayouts.begin(), kLayouts.end(),
                                   [&](const Layout& l) { return l.depth == options.depth; });
  if (layout == kLayouts.end()) {
    throw graph::ShapeError("there is no resnet of depth " + std::to_string(options.depth), "depth",
                            "the depths are 20, 32, 44, 56 and 18, 34, 50");
  }
  Builder g(task.input);
  g.at("name");
  Residual blocks(g);
  auto x = g.input();
  constexpr std::int64_t kSmallImage = 64;
  const bool small_image =
      task.input.size() == 3 && std::max(task.input[1], task.input[2]) <= kSmallImage;
  const bool cifar_stem =
      layout->small || options.stem == "cifar" || (options.stem == "auto" && small_image);
  std::int64_t channels = layout->small ? 16 : 64;
  x = g.relu("relu",
             blocks.conv_bn("conv1", "bn1", x, channels, cifar_stem ? 3 : 7, cifar_stem ? 1 : 2));
  if (!cifar_stem)
    x = g.max_pool2d("maxpool", x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  for (std::size_t stage = 0; stage < layout->blocks.size(); ++stage) {
    for (std::int64_t block = 0; block < layout->blocks[stage]; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      x = layout->bottleneck ? blocks.bottleneck(name, x, channels, stride)
                             : blocks.basic(name, x, channels, stride);
    }
    channels *= 2;
  }
  x = g.global_avg_pool("avgpool", x);
  x = g.linear("fc", x, {.out = task.outputs});
  return std::move(g).finish(x);
}

}  // namespace

void register_resnet(Models& models) {
  models.add(model<Options>("resnet", "residual network with projection shortcuts", kRows, build));
}

}  // namespace runner::models
