#include "runner/graph/summary.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace runner::graph {

namespace {

std::string grouped(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string mebibytes(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f MiB", bytes / (1 << 20));
  return text.data();
}

struct Line {
  std::array<std::string, 4> cells;
};

}  // namespace

std::string summary(const Graph& graph, std::int64_t batch, int bytes_per_element) {
  std::vector<Line> lines = {{{"layer (type)", "output shape", "parameters", "FLOPs"}}};
  for (const Layer& layer : graph.layers()) {
    Shape shape = layer.output;
    shape.insert(shape.begin(), batch);
    std::int64_t parameters = 0;
    for (const Parameter& p : layer.parameters)
      parameters += p.trainable ? element_count(p.shape) : 0;
    lines.push_back({{layer.name + " (" + std::string(op_name(layer.op)) + ")", to_text(shape),
                      parameters == 0 ? "-" : grouped(parameters),
                      layer.flops == 0 ? "-" : grouped(layer.flops * batch)}});
  }
  std::array<std::size_t, 4> widths{};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], line.cells[i].size());
  }
  std::string out;
  const std::string rule(widths[0] + widths[1] + widths[2] + widths[3] + 6, '-');
  for (std::size_t row = 0; row < lines.size(); ++row) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string& cell = lines[row].cells[i];
      const std::string padding(widths[i] - cell.size(), ' ');
      const bool number = i >= 2;
      out += (i == 0 ? "" : "  ") + (number                   ? padding + cell
                                     : i + 1 == widths.size() ? cell
                                                              : cell + padding);
    }
    out += "\n";
    if (row == 0) out += rule + "\n";
  }
  const std::int64_t trainable = graph.parameter_count();
  const std::int64_t kept = graph.buffer_count();
  const double activations =
      static_cast<double>(graph.activation_count() * batch) * bytes_per_element;
  const double weights = static_cast<double>(trainable + kept) * bytes_per_element;
  const double input =
      static_cast<double>(element_count(graph.input()) * batch) * bytes_per_element;
  out += rule + "\n";
  out += "parameters: " + grouped(trainable) + " trainable, " + grouped(kept) +
         " running statistics\n";
  out += "FLOPs of a forward pass: " + grouped(graph.flops() * batch) + " for a batch of " +
         grouped(batch) + ", " + grouped(graph.flops()) + " a sample\n";
  out += "input " + mebibytes(input) + ", activations " + mebibytes(activations) + ", parameters " +
         mebibytes(weights) + "\n";
  return out;
}

}  // namespace runner::graph
