#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace runner::datasets {

/// A CSV file with a header line, as RFC 4180 writes it: cells may be quoted, "" is a quote inside
/// one, and a quoted cell may span lines. CRLF and LF, a byte order mark and blank lines are fine.
/// Gzipped files are gunzipped. All cells are views into one buffer.
class CsvTable {
 public:
  /// Throws diag::Error: (machine) for a missing file; (failed) for a broken quote, a row of
  /// another length than the header, or above 2 GiB of text; (invalid) for an empty or repeated
  /// column name or no rows.
  CsvTable(const std::filesystem::path& path, char separator);
  CsvTable(const CsvTable&) = delete;
  CsvTable& operator=(const CsvTable&) = delete;

  [[nodiscard]] const std::vector<std::string_view>& columns() const { return columns_; }
  [[nodiscard]] std::size_t row_count() const { return lines_.size(); }
  [[nodiscard]] std::string_view cell(std::size_t row, std::size_t column) const {
    return cells_[row * columns_.size() + column];
  }
  /// Throws diag::Error (failed): "'FILE', row 2 (line 3), column 'age': MESSAGE".
  [[noreturn]] void fail(std::size_t row, std::size_t column, const std::string& message,
                         const std::string& help = {}) const;
  /// Throws diag::Error (invalid): "'FILE': MESSAGE".
  [[noreturn]] void reject(const std::string& message, const std::string& help = {}) const;

 private:
  void parse(char separator);
  void check_columns() const;
  [[noreturn]] void fail_line(std::int64_t line, const std::string& message) const;

  std::filesystem::path path_;
  std::vector<char> text_;
  std::vector<std::string_view> columns_;
  std::vector<std::string_view> cells_;  // row-major
  std::vector<std::int64_t> lines_;      // where each row begins, from 1
};

}  // namespace runner::datasets
