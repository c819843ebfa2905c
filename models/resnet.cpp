#include <algorithm>
#include <array>
#include <optional>

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

/// Adds residual blocks. Layers that own tensors are named as torchvision names them, so that its
/// weights fit; where a block changes the shape, its shortcut is a 1x1 convolution with batch norm
/// (the paper's option B) at every depth.
class Residual {
 public:
  explicit Residual(Builder& g) : g_(g) {}

  /// A square convolution that keeps the image's size at stride 1, and batch norm.
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

std::optional<Problem> fault(const Options& options) {
  const auto is_depth = [&](const Layout& layout) { return layout.depth == options.depth; };
  const auto layout = std::find_if(kLayouts.begin(), kLayouts.end(), is_depth);
  const std::string depth = std::to_string(options.depth);
  if (layout == kLayouts.end()) {
    return Problem{"depth", "there is no resnet of depth " + depth,
                   "the depths are 20, 32, 44, 56 (CIFAR's) and 18, 34, 50 (ImageNet's)"};
  }
  if (layout->small && options.stem == "imagenet") {
    return Problem{"stem", "a resnet of depth " + depth + " has no imagenet stem",
                   "choose depth 18, 34 or 50, or leave the stem out"};
  }
  return {};
}

bool has_cifar_stem(const Layout& layout, const Options& options, const graph::Shape& input) {
  constexpr std::int64_t kSmallImage = 64;
  if (layout.small || options.stem == "cifar") return true;
  const bool is_small = input.size() == 3 && std::max(input[1], input[2]) <= kSmallImage;
  return options.stem == "auto" && is_small;
}

graph::Graph build(const Options& options, const Task& task) {
  if (const auto problem = fault(options)) {
    throw graph::ShapeError(problem->message, problem->path, problem->help);
  }
  const Layout& layout =
      *std::find_if(kLayouts.begin(), kLayouts.end(),
                    [&](const Layout& candidate) { return candidate.depth == options.depth; });
  Builder g(task.input);
  g.at("name");
  Residual net(g);
  std::int64_t channels = layout.small ? 16 : 64;
  auto x = g.input();
  if (has_cifar_stem(layout, options, task.input)) {
    x = g.relu("relu", net.conv_bn("conv1", "bn1", x, channels, 3, 1));
  } else {
    x = g.relu("relu", net.conv_bn("conv1", "bn1", x, channels, 7, 2));
    x = g.max_pool2d("maxpool", x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  }
  for (std::size_t stage = 0; stage < layout.blocks.size(); ++stage) {
    for (std::int64_t block = 0; block < layout.blocks[stage]; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      const std::int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      x = layout.bottleneck ? net.bottleneck(name, x, channels, stride)
                            : net.basic(name, x, channels, stride);
    }
    channels *= 2;
  }
  x = g.linear("fc", g.global_avg_pool("avgpool", x), {.out = task.outputs});
  return std::move(g).finish(x);
}

std::vector<Problem> check(const std::any& options) {
  const auto problem = fault(std::any_cast<const Options&>(options));
  return problem ? std::vector{*problem} : std::vector<Problem>();
}

}  // namespace

void register_resnet(Models& models) {
  Model entry = model<Options>(
      "resnet", "residual network with projection shortcuts (He et al. 2015)", kRows, build);
  entry.check = check;
  models.add(std::move(entry));
}

}  // namespace runner::models
