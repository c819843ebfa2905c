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

/// metrics.csv of a run: columns fixed at the start, one row a call, values that a row doesn't have
/// left empty. RFC 4180 (CRLF, quotes where needed) as Python's csv module writes it; floats in the
/// shortest form that reads back as the same number; control characters of names and texts escaped,
/// so that a row is a line. Rows are buffered; a run that resumes cuts the file to the length that
/// its checkpoint remembers, so that no step is there twice.
///
///   MetricsCsv csv = MetricsCsv::create(path, {"epoch", "step", "train_loss", "val_loss", "lr"});
///   const std::vector<Cell> row = {{"epoch", epoch}, {"step", step}, {"train_loss", loss}};
///   csv.append(row);
///   csv.sync();
///   checkpoint.csv_length = csv.byte_length();
class MetricsCsv {
 public:
  /// Makes the file with its header. Throws diag::Error(Exit::failed) when it exists (the history
  /// of another run is never overwritten) or can't be written.
  [[nodiscard]] static MetricsCsv create(const std::filesystem::path& path,
                                         std::vector<std::string> columns);

  /// Opens the file of an earlier start and cuts it to `byte_length`. Throws
  /// diag::Error(Exit::incompatible) when its header isn't that of `columns`, and
  /// diag::Error(Exit::failed), the file untouched, when it is shorter or has no row's end there.
  [[nodiscard]] static MetricsCsv resume(const std::filesystem::path& path,
                                         std::vector<std::string> columns,
                                         std::int64_t byte_length);

  MetricsCsv(MetricsCsv&&) = default;
  MetricsCsv& operator=(MetricsCsv&&) = delete;
  /// Flushes; an error is lost here, so flush() or sync() first.
  ~MetricsCsv();

  /// Adds a row. Throws std::logic_error for a column that the file doesn't have, and what flush()
  /// throws when the buffer is full.
  void append(std::span<const Cell> cells);

  /// Hands all rows to the kernel. Throws diag::Error(Exit::failed) when the disk doesn't take
  /// them; what it didn't take stays buffered.
  void flush();
  /// flush(), and on the disk when it returns.
  void sync();

  /// Length of the file once everything is flushed.
  [[nodiscard]] std::int64_t byte_length() const { return byte_length_; }
  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }

 private:
  MetricsCsv(std::filesystem::path path, std::vector<std::string> columns, host::UniqueFd fd,
             std::int64_t byte_length);

  std::filesystem::path path_;
  std::vector<std::string> columns_;
  std::vector<const Cell*> row_;  ///< scratch: this row's cell for each column
  host::UniqueFd fd_;
  std::string buffer_;
  std::int64_t byte_length_ = 0;
};

/// `text` as a CSV cell: escaped, and quoted if it holds a comma or a quote.
[[nodiscard]] std::string csv_cell(std::string_view text);

}  // namespace runner::report
