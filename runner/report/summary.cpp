#include "runner/report/summary.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string_view>

namespace runner::report {

namespace {

constexpr int kGap = 2;  // columns between two columns

int line_width(const std::vector<int>& widths) {
  return std::accumulate(widths.begin(), widths.end(), 0) +
         kGap * std::max(0, static_cast<int>(widths.size()) - 1);
}

/// The next line of `text`, of at most `width` columns, broken at a space if possible; takes the
/// line and the spaces after it off `text`.
std::string_view take_line(std::string_view& text, int width) {
  std::string_view line = prefix_of_width(text, width);
  if (line.empty()) line = text.substr(0, host::decode_utf8(text).length);  // a wide character
  const bool broken_inside_word = line.size() < text.size() && text[line.size()] != ' ';
  if (broken_inside_word) {
    const std::size_t space = line.find_last_of(' ');
    if (space != std::string_view::npos && space > 0) line = line.substr(0, space);
  }
  text.remove_prefix(line.size());
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  while (line.ends_with(' ')) line.remove_suffix(1);
  return line;
}

std::vector<std::string> wrap(std::string_view text, int width) {
  std::vector<std::string> lines;
  while (!text.empty()) lines.emplace_back(take_line(text, width));
  return lines;
}

std::string spaces(int count) {
  return std::string(static_cast<std::size_t>(std::max(count, 0)), ' ');
}

std::string repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::vector<std::string> escaped(const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  out.reserve(texts.size());
  for (const std::string& text : texts) out.push_back(escape_text(text));
  return out;
}

}  // namespace

void Table::set_title(std::string_view title) { title_ = escape_text(title); }

void Table::add_row(std::vector<std::string> cells) {
  if (cells.size() > columns_.size()) {
    throw std::logic_error("a row of " + std::to_string(cells.size()) + " cells for " +
                           std::to_string(columns_.size()) + " columns");
  }
  cells.resize(columns_.size());
  rows_.push_back({.cells = escaped(cells)});
}

void Table::add_rule() { rows_.push_back({.cells = {}, .is_rule = true}); }

/// What the cells want; then, as long as that is too much, one less for the widest column.
std::vector<int> Table::column_widths(int width) const {
  std::vector<int> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    int wanted = std::max(1, display_width(escape_text(columns_[i].header)));
    for (const Row& row : rows_) {
      if (!row.is_rule) wanted = std::max(wanted, display_width(row.cells[i]));
    }
    widths.push_back(wanted);
  }
  while (width > 0 && line_width(widths) > width) {
    const auto widest = std::max_element(widths.begin(), widths.end());
    if (*widest <= 1) break;
    --*widest;
  }
  return widths;
}

void Table::render_row(std::string& out, const std::vector<std::string>& cells,
                       const std::vector<int>& widths) const {
  std::vector<std::vector<std::string>> wrapped;
  std::size_t height = 1;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    wrapped.push_back(wrap(cells[i], widths[i]));
    height = std::max(height, wrapped.back().size());
  }
  for (std::size_t line = 0; line < height; ++line) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string cell = line < wrapped[i].size() ? wrapped[i][line] : "";
      const std::string pad = spaces(widths[i] - display_width(cell));
      if (i > 0) text += spaces(kGap);
      text += columns_[i].align == Align::right ? pad + cell : cell + pad;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
}

std::string Table::render(int width, bool utf8) const {
  const std::vector<int> widths = column_widths(width);
  const std::string rule = repeat(utf8 ? "─" : "-", line_width(widths)) + "\n";
  std::string out;
  for (const std::string& line : wrap(title_, width > 0 ? width : display_width(title_))) {
    out += line + "\n";
  }
  std::vector<std::string> headers;
  for (const Column& column : columns_) headers.push_back(escape_text(column.header));
  const bool has_header = std::any_of(headers.begin(), headers.end(),
                                      [](const std::string& header) { return !header.empty(); });
  if (has_header) {
    render_row(out, headers, widths);
    out += rule;
  }
  for (const Row& row : rows_) {
    if (row.is_rule) {
      out += rule;
    } else {
      render_row(out, row.cells, widths);
    }
  }
  return out;
}

std::string render_summary(const RunSummary& summary, int width, bool utf8) {
  Table table({{""}, {""}});
  table.set_title(summary.name);
  if (!summary.stopped.empty()) table.add_row({"stopped", summary.stopped});
  if (summary.best_epoch) {
    const std::string metric = summary.best_metric.empty() ? ""
                                                           : "  " + summary.best_metric + " " +
                                                                 format_metric(summary.best_value);
    table.add_row({"best epoch", std::to_string(*summary.best_epoch) + " of " +
                                     std::to_string(summary.epochs) + metric});
  }
  std::string last;
  for (const auto& [name, value] : summary.metrics) {
    last += (last.empty() ? "" : "  ") + name + " " + format_metric(value);
  }
  if (!last.empty()) table.add_row({"last epoch", last});
  table.add_row({"trained", format_count(summary.epochs, "epoch") + ", " +
                                format_count(summary.steps, "step") + " in " +
                                format_duration(summary.time)});
  if (summary.samples > 0 && summary.time.count() > 0) {
    table.add_row({"speed", format_rate(static_cast<double>(summary.samples) / summary.time.count(),
                                        "sample")});
  }
  for (const auto& [what, place] : summary.places) table.add_row({what, place});
  return table.render(width, utf8);
}

}  // namespace runner::report
