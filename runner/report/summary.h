#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/report/terminal.h"

namespace runner::report {

enum class Align { left, right };

struct Column {
  std::string header;
  Align align = Align::left;
};

/// Text in aligned columns. Cells are escaped; what is wider than the room wraps within its column,
/// at spaces where there are some, so that nothing is lost.
///
///   Table table({{"layer"}, {"parameters", Align::right}});
///   table.add_row({"conv1", "1,664"});
///   std::cout << table.render(terminal_width(STDOUT_FILENO));
class Table {
 public:
  /// Without any header text, no header is printed.
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void set_title(std::string_view title);
  /// Missing cells are empty. Throws std::logic_error when there are more cells than columns.
  void add_row(std::vector<std::string> cells);
  /// A line across the table, before the next row.
  void add_rule();

  /// Lines ending in newlines, none wider than `width` columns (0: no limit) as long as each column
  /// gets one, without white space at their ends. `utf8` draws rules with "─" in the place of "-".
  [[nodiscard]] std::string render(int width = 0, bool utf8 = false) const;

 private:
  struct Row {
    std::vector<std::string> cells = {};
    bool is_rule = false;
  };

  [[nodiscard]] std::vector<int> column_widths(int width) const;
  void render_row(std::string& out, const std::vector<std::string>& cells,
                  const std::vector<int>& widths) const;

  std::string title_;
  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

/// What is said at the end of a run. What is absent or empty isn't printed.
struct RunSummary {
  std::string name = {};
  std::string stopped =
      {};  ///< why: "all 10 epochs done", "val_loss has not improved for 3 epochs"
  std::optional<std::int64_t> best_epoch = {};
  std::string best_metric = {};  ///< "val_accuracy"; "" when nothing was monitored
  double best_value = 0;
  std::int64_t epochs = 0;  ///< begun
  std::int64_t steps = 0;
  std::int64_t samples = 0;  ///< seen in training, over all processes
  Seconds time{0};
  std::vector<std::pair<std::string, double>> metrics = {};      ///< of the last epoch
  std::vector<std::pair<std::string, std::string>> places = {};  ///< {"checkpoint", path}
};

/// The short table at the end of a run.
[[nodiscard]] std::string render_summary(const RunSummary& summary, int width = 0,
                                         bool utf8 = false);

}  // namespace runner::report
