#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runner/host/unique_fd.h"

namespace runner::report {

/// One value of a row; a float is written with fewer digits than the same number as a double.
struct Cell {
  std::string_view column;
  std::variant<std::int64_t, float, double, std::string_view> value;
};

/// metrics.csv of a run: columns fixed at the start, one row a step, values that a row doesn't have
/// left empty: what comes for the step of the last row joins that row. RFC 4180 (CRLF, quotes where
/// needed) as Python's csv module writes it; floats in the shortest form that reads back as the
/// same number; control characters of names and texts escaped, so that a row is a line. Rows are
/// buffered. A checkpoint remembers where the last row starts and what it held then, since it may
/// have got more by the time that a run resumes from there.
///
///   MetricsCsv csv = MetricsCsv::create(path, {"epoch", "step", "train_loss", "val_loss", "lr"});
///   const std::vector<Cell> row = {{"epoch", epoch}, {"step", step}, {"train_loss", loss}};
///   csv.append(row);
///   csv.sync();
///   checkpoint.csv_length = csv.last_row_start();
///   checkpoint.csv_row = csv.last_row();
class MetricsCsv {
 public:
  /// Makes the file with its header. Throws diag::Error(Exit::failed) when it exists (the history
  /// of another run is never overwritten) or can't be written.
  [[nodiscard]] static MetricsCsv create(const std::filesystem::path& path,
                                         std::vector<std::string> columns);

  /// Opens the file of an earlier start, cuts it to `byte_length` and puts `last_row` (its cells,
  /// or none) behind that. Throws diag::Error(Exit::incompatible) when its header isn't that of
  /// `columns`, and diag::Error(Exit::failed), the file untouched, when it is shorter or has no
  /// row's end there.
  [[nodiscard]] static MetricsCsv resume(const std::filesystem::path& path,
                                         std::vector<std::string> columns, std::int64_t byte_length,
                                         std::vector<std::string> last_row = {});

  MetricsCsv(MetricsCsv&&) = default;
  MetricsCsv& operator=(MetricsCsv&&) = delete;
  /// Flushes; an error is lost here, so flush() or sync() first.
  ~MetricsCsv();

  /// Adds a row, or to the last one if that is of the same "step"; a newer value replaces an older.
  /// Throws std::logic_error for a column that the file doesn't have, and what flush() throws when
  /// the buffer is full.
  void append(std::span<const Cell> cells);

  /// Hands all rows to the kernel. Throws diag::Error(Exit::failed) when the disk doesn't take
  /// them; what it didn't take stays buffered.
  void flush();
  /// flush(), and on the disk when it returns.
  void sync();

  /// Length of the file once everything is flushed.
  [[nodiscard]] std::int64_t byte_length() const { return byte_length_; }
  /// Length up to the last row, which further values for its step may still change.
  [[nodiscard]] std::int64_t last_row_start() const { return last_row_start_; }
  /// The last row's cells as they are in the file; empty before the first row.
  [[nodiscard]] const std::vector<std::string>& last_row() const { return last_row_; }
  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }

 private:
  MetricsCsv(std::filesystem::path path, std::vector<std::string> columns, host::UniqueFd fd,
             std::int64_t byte_length);

  void place(std::span<const Cell> cells);
  [[nodiscard]] bool joins_last_row() const;
  /// Takes the last row's line away; true if it was on the disk.
  bool cut_last_row();
  void put_last_row();

  std::filesystem::path path_;
  std::vector<std::string> columns_;
  std::vector<const Cell*> row_;  ///< scratch: this row's cell for each column
  host::UniqueFd fd_;
  std::string buffer_;  ///< the end of the file that is not on the disk yet
  std::int64_t byte_length_ = 0;
  std::int64_t last_row_start_ = 0;
  std::vector<std::string> last_row_;
};

/// `text` as a CSV cell: escaped, and quoted if it holds a comma or a quote.
[[nodiscard]] std::string csv_cell(std::string_view text);

}  // namespace runner::report
