#include "runner/check/matrix.h"

#include <algorithm>
#include <array>
#include <vector>

#include "runner/check/rules.h"

namespace runner::check {

namespace {

using Row = std::vector<std::string>;

constexpr std::array<std::string_view, 8> kBackends = {"",     "none",    "dp",       "ddp",
                                                       "ddp2", "horovod", "balanced", "tpu"};
constexpr std::array<std::string_view, 4> kPrecisions = {"64", "32", "bf16", "16"};
constexpr std::string_view kLegend =
    "yes: runs. yes CODE: runs, with a warning. ddp CODE: ddp is inferred, since no backend is "
    "named. no CODE: refused.";

/// A column of the matrix: devices and nodes.
struct Devices {
  std::string_view title;
  std::int64_t gpus = 0;
  std::optional<std::int64_t> num_processes;
  std::int64_t num_nodes = 1;
};
constexpr std::array<Devices, 6> kDevices = {{
    {.title = "CPU", .gpus = 0, .num_processes = {}},
    {.title = "2+ CPU processes", .gpus = 0, .num_processes = 2},
    {.title = "1 GPU", .gpus = 1, .num_processes = {}},
    {.title = "2+ GPUs", .gpus = 2, .num_processes = {}},
    {.title = "2+ nodes, 1 GPU each", .gpus = 1, .num_processes = {}, .num_nodes = 2},
    {.title = "2+ nodes, 2+ GPUs each", .gpus = 2, .num_processes = {}, .num_nodes = 2},
}};

/// " M010 M011": the codes of the rules with this ruling, by id.
std::string codes_of(const std::vector<const Rule*>& applied, Ruling ruling) {
  std::vector<std::string_view> ids;
  for (const Rule* rule : applied) {
    if (rule->ruling == ruling) ids.push_back(diag::info(rule->code).id);
  }
  std::sort(ids.begin(), ids.end());
  std::string out;
  for (const std::string_view id : ids) out += " " + std::string(id);
  return out;
}

std::string cell(std::string_view backend, std::string_view precision, const Devices& devices) {
  Facts facts;
  facts.backend = backend;
  facts.precision = precision;
  facts.gpus = devices.gpus;
  facts.num_processes = devices.num_processes;
  facts.num_nodes = devices.num_nodes;
  facts.max_epochs = 1;
  const std::vector<const Rule*> applied = apply_rules(facts, Stage::settings);
  const std::string refused = codes_of(applied, Ruling::refuse);
  if (!refused.empty()) return "no" + refused;
  const std::string inferred = codes_of(applied, Ruling::infer);
  return (inferred.empty() ? "yes" : resolved_backend(facts)) + inferred +
         codes_of(applied, Ruling::warn);
}

/// Precisions whose cells are equal share a row.
std::vector<Row> combination_rows() {
  std::vector<Row> rows;
  for (const std::string_view backend : kBackends) {
    const std::size_t first = rows.size();
    for (const std::string_view precision : kPrecisions) {
      Row row = {backend.empty() ? "(absent)" : std::string(backend), std::string(precision)};
      for (const Devices& devices : kDevices) row.push_back(cell(backend, precision, devices));
      const auto same = std::find_if(
          rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(), [&row](const Row& other) {
            return std::equal(row.begin() + 2, row.end(), other.begin() + 2);
          });
      if (same == rows.end()) {
        rows.push_back(std::move(row));
      } else {
        (*same)[1] += ", " + row[1];
      }
    }
  }
  return rows;
}

Row combination_titles() {
  Row titles = {"backend", "precision"};
  for (const Devices& devices : kDevices) titles.emplace_back(devices.title);
  return titles;
}

/// The first rule of each code, by id.
std::vector<const Rule*> rules_by_id() {
  std::vector<const Rule*> result;
  for (const Rule& rule : rules()) {
    const bool is_known = std::any_of(result.begin(), result.end(), [&rule](const Rule* other) {
      return other->code == rule.code;
    });
    if (!is_known) result.push_back(&rule);
  }
  std::sort(result.begin(), result.end(), [](const Rule* a, const Rule* b) {
    return diag::info(a->code).id < diag::info(b->code).id;
  });
  return result;
}

void append_aligned(const std::vector<Row>& rows, std::string& out) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
}

std::string markdown_row(const Row& row) {
  std::string line = "|";
  for (const std::string& text : row) line += " " + text + " |";
  return line + "\n";
}

std::string markdown_rule(std::size_t columns) {
  std::string line = "|";
  for (std::size_t i = 0; i < columns; ++i) line += "---|";
  return line + "\n";
}

std::string wrapped(std::string_view text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (column > 0 && column + 1 + end > width) {
      out += '\n';
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

std::string indented(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += "  " + std::string(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

const Rule* rule_of(diag::Code code) {
  const auto all = rules();
  const auto found =
      std::find_if(all.begin(), all.end(), [code](const Rule& rule) { return rule.code == code; });
  return found == all.end() ? nullptr : &*found;
}

std::string_view severity_text(diag::Severity severity) {
  switch (severity) {
    case diag::Severity::note:
      return "note";
    case diag::Severity::warning:
      return "warning";
    case diag::Severity::error:
      return "error";
  }
  return "";
}

}  // namespace

std::string matrix_text() {
  std::vector<Row> rows = {combination_titles()};
  for (Row& row : combination_rows()) rows.push_back(std::move(row));
  std::string out;
  append_aligned(rows, out);
  out += "\n" + wrapped(kLegend, 100) + "\n";

  std::vector<Row> list = {{"code", "verdict", "when"}};
  for (const Rule* rule : rules_by_id()) {
    const diag::CodeInfo& info = diag::info(rule->code);
    list.push_back(
        {std::string(info.id), std::string(to_text(rule->ruling)), std::string(info.summary)});
  }
  append_aligned(list, out);
  return out + "\n`runner --explain CODE` tells why, and what to do.\n";
}

std::string matrix_markdown() {
  std::string out =
      "# What is allowed\n\n"
      "<!-- Generated: runner --matrix --format markdown > docs/matrix.md -->\n\n"
      "Each file is judged by one table of rules before anything starts; `runner --explain CODE` "
      "prints a rule.\nNothing that a file says is changed: what can't work is refused, and what "
      "a file leaves open is inferred and\nshown in the plan.\n\n"
      "## Backends, precisions, devices\n\n";
  out += std::string(kLegend) + "\n\n";
  const Row titles = combination_titles();
  out += markdown_row(titles) + markdown_rule(titles.size());
  for (const Row& row : combination_rows()) out += markdown_row(row);

  out += "\n## Rules\n\n" + markdown_row({"code", "verdict", "when", "why", "what to do"}) +
         markdown_rule(5);
  for (const Rule* rule : rules_by_id()) {
    const diag::CodeInfo& info = diag::info(rule->code);
    out += markdown_row({std::string(info.id), std::string(to_text(rule->ruling)),
                         std::string(info.summary), std::string(info.explanation),
                         std::string(rule->fix)});
  }
  return out;
}

std::string explain(diag::Code code) {
  constexpr std::size_t kWidth = 80;
  const diag::CodeInfo& info = diag::info(code);
  std::string out = std::string(info.id) + " " + std::string(info.name) + ": " +
                    std::string(info.summary) + "\n" + std::string(severity_text(info.severity));
  if (info.severity == diag::Severity::error) {
    out += ", exit status " + std::to_string(static_cast<int>(info.exit));
  }
  out += "\n\n" + wrapped(info.explanation, kWidth);
  if (const Rule* rule = rule_of(code)) {
    out += "\nverdict: " + std::string(to_text(rule->ruling)) + "\n";
    out += wrapped("fix: " + std::string(rule->fix), kWidth);
    out += "\nexample:\n" + indented(rule->example);
  }
  return out;
}

}  // namespace runner::check
