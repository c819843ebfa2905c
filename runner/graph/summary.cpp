#include "runner/graph/summary.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace runner::graph {

namespace {

using Row = std::array<std::string, 4>;

std::string grouped(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string grouped_or_dash(std::int64_t count) { return count == 0 ? "-" : grouped(count); }

std::string mebibytes(double bytes) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.2f MiB", bytes / (1 << 20));
  return text.data();
}

Row row_of(const Layer& layer, std::int64_t batch) {
  Shape shape = layer.output;
  shape.insert(shape.begin(), batch);
  std::int64_t parameters = 0;
  for (const Parameter& p : layer.parameters) {
    parameters += p.trainable ? element_count(p.shape) : 0;
  }
  const std::string_view type = op_name(layer.op);
  return {layer.name == type ? layer.name : layer.name + " (" + std::string(type) + ")",
          to_text(shape), grouped_or_dash(parameters), grouped_or_dash(layer.flops)};
}

/// Text to the left, numbers to the right.
std::string line_of(const Row& row, const std::array<std::size_t, 4>& widths) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::string fill(widths[i] - row[i].size(), ' ');
    line += (i == 0 ? "" : "  ") + (i < 2 ? row[i] + fill : fill + row[i]);
  }
  return line + "\n";
}

/// Labels to the left, numbers below each other.
std::string totals(const std::vector<std::array<std::string, 2>>& rows) {
  std::size_t label = 0;
  std::size_t number = 0;
  for (const auto& row : rows) {
    label = std::max(label, row[0].size());
    number = std::max(number, row[1].size());
  }
  std::string out;
  for (const auto& row : rows) {
    out += row[0] + std::string(label - row[0].size() + 2 + number - row[1].size(), ' ') + row[1] +
           "\n";
  }
  return out;
}

std::string counts(const Graph& graph) {
  return totals({
      {"trainable parameters", grouped(graph.parameter_count())},
      {"non-trainable (running statistics)", grouped(graph.buffer_count())},
      {"total", grouped(graph.parameter_count() + graph.buffer_count())},
      {"FLOPs of a sample, forward", grouped(graph.flops())},
  });
}

std::string sizes(const Graph& graph, std::int64_t batch, int bytes_per_element) {
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<double>(elements) * bytes_per_element;
  };
  const std::int64_t input_elements = element_count(graph.input());
  const auto samples = static_cast<double>(batch);
  const double input = bytes(input_elements) * samples;
  const double kept = bytes(graph.activation_count() - input_elements) * samples;
  const double weights = bytes(graph.parameter_count() + graph.buffer_count());
  return totals({
      {"input", mebibytes(input)},
      {"kept for the backward pass", mebibytes(kept)},
      {"parameters and statistics", mebibytes(weights)},
      {"total, before gradients and optimizer", mebibytes(input + kept + weights)},
  });
}

}  // namespace

std::string summary(const Graph& graph, std::int64_t batch, int bytes_per_element) {
  std::vector<Row> rows = {{"layer (type)", "output shape", "parameters", "FLOPs/sample"}};
  for (const Layer& layer : graph.layers()) rows.push_back(row_of(layer, batch));
  std::array<std::size_t, 4> widths{};
  std::size_t total_width = 2 * (widths.size() - 1);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    for (const Row& row : rows) widths[i] = std::max(widths[i], row[i].size());
    total_width += widths[i];
  }
  const std::string thick = std::string(total_width, '=') + "\n";
  const std::string thin = std::string(total_width, '-') + "\n";

  std::string out = thick + line_of(rows.front(), widths) + thick;
  for (std::size_t i = 1; i < rows.size(); ++i) out += line_of(rows[i], widths);
  return out + thick + counts(graph) + thin + sizes(graph, batch, bytes_per_element) + thick;
}

}  // namespace runner::graph
