#include "runner/graph/summary.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

namespace runner::graph {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("summary: a small convolutional network") {
  Builder g({1, 28, 28});
  auto x = g.conv2d("conv1", g.input(), {.out = 32, .kernel = {5, 5}, .padding = {2, 2}});
  x = g.max_pool2d("pool1", g.relu("relu1", g.batch_norm("bn1", x)));
  x = g.linear("fc1", g.flatten("flatten", x), {.out = 10});
  const std::string text = summary(std::move(g).finish(x), 128);
  // Kept: conv1's output for bn1, relu1's, pool1's indices (twice) and output, fc1's output.
  static_assert(25088 + 25088 + 2 * 6272 + 6272 + 10 == 69002);  // x 128 x 4 / 2^20 = 33.69
  CHECK(text == R"(===============================================================
layer (type)        output shape       parameters  FLOPs/sample
===============================================================
input               [128, 1, 28, 28]            -             -
conv1 (conv2d)      [128, 32, 28, 28]         832     1,279,488
bn1 (batch_norm)    [128, 32, 28, 28]          64       100,352
relu1 (relu)        [128, 32, 28, 28]           -        25,088
pool1 (max_pool2d)  [128, 32, 14, 14]           -        25,088
flatten             [128, 6272]                 -             -
fc1 (linear)        [128, 10]              62,730       125,450
===============================================================
trainable parameters                   63,626
non-trainable (running statistics)         65
total                                  63,691
FLOPs of a sample, forward          1,555,466
---------------------------------------------------------------
input                                   0.38 MiB
kept for the backward pass             33.69 MiB
parameters and statistics               0.24 MiB
total, before gradients and optimizer  34.32 MiB
===============================================================
)");
}

TEST_CASE("summary: rows are of one width, with long names and a large batch too") {
  Builder g({3, 64, 64});
  auto x = g.conv2d("layer4.0.downsample.0", g.input(), {.out = 2048});
  x = g.batch_norm("layer4.0.downsample.1", x);
  x = g.linear("fc", g.global_avg_pool("avgpool", x), {.out = 1000});
  const auto lines = lines_of(summary(std::move(g).finish(x), 1'000'000'000));
  const std::size_t width = lines.front().size();
  for (std::size_t i = 0; i < 8; ++i) {
    CAPTURE(lines[i]);
    CHECK(lines[i].size() == width);
  }
  CHECK(std::all_of(lines.begin(), lines.end(),
                    [&](const std::string& line) { return line.size() <= width; }));
}

}  // namespace runner::graph
