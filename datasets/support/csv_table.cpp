#include "datasets/support/csv_table.h"

#include <algorithm>
#include <span>
#include <unordered_set>

#include "datasets/support/data_file.h"
#include "runner/diag/error.h"

namespace runner::datasets {
namespace {

constexpr std::size_t kLongestText = std::size_t{1} << 31U;

std::vector<char> read_text(const std::filesystem::path& path) {
  constexpr std::size_t kStep = std::size_t{1} << 20U;
  DataFile file(path, "set dataset.path to a CSV file; it is relative to the experiment's folder");
  std::vector<char> text;
  for (;;) {
    const std::size_t begin = text.size();
    text.resize(begin + std::max(kStep, begin / 2));
    const std::span<char> free = std::span(text).subspan(begin);
    const std::size_t got =
        file.read_some({reinterpret_cast<std::uint8_t*>(free.data()), free.size()});
    if (begin + got > kLongestText) {
      file.fail(static_cast<std::int64_t>(kLongestText), "expected at most 2 GiB of text");
    }
    if (got == free.size()) continue;
    text.resize(begin + got);
    return text;
  }
}

/// Cuts the text into cells, taking the quotes out in place.
class Scanner {
 public:
  enum class End { cell, row, text };

  Scanner(std::vector<char>& text, char separator)
      : at_(text.data()), end_(text.data() + text.size()), separator_(separator) {
    if (std::string_view(at_, text.size()).starts_with("\xEF\xBB\xBF")) at_ += 3;
  }

  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] bool at_end() const { return at_ == end_; }
  /// True, and past it, at a line with nothing in it.
  bool skip_blank_line() { return take_line_end(); }
  /// The next cell, or false for a quote that has no end or is followed by text.
  bool next(std::string_view& cell, End& end) {
    const bool quoted = at_ != end_ && *at_ == '"';
    if (quoted ? !quoted_cell(cell) : !plain_cell(cell)) return false;
    if (at_ == end_) {
      end = End::text;
      return true;
    }
    if (*at_ == separator_) {
      ++at_;
      end = End::cell;
      return true;
    }
    end = End::row;
    return take_line_end();
  }

 private:
  [[nodiscard]] bool at_line_end() const {
    return *at_ == '\n' || (*at_ == '\r' && at_ + 1 != end_ && at_[1] == '\n');
  }
  bool take_line_end() {
    if (at_ == end_ || !at_line_end()) return false;
    at_ += *at_ == '\r' ? 2 : 1;
    ++line_;
    return true;
  }
  bool plain_cell(std::string_view& cell) {
    const char* const begin = at_;
    while (at_ != end_ && *at_ != separator_ && !at_line_end()) ++at_;
    cell = {begin, static_cast<std::size_t>(at_ - begin)};
    return true;
  }
  bool quoted_cell(std::string_view& cell) {
    char* const begin = ++at_;
    char* out = begin;
    for (; at_ != end_; ++at_) {
      if (*at_ == '"') {
        if (at_ + 1 == end_ || at_[1] != '"') break;
        ++at_;
      }
      if (*at_ == '\n') ++line_;
      *out++ = *at_;
    }
    if (at_ == end_) return false;
    ++at_;
    cell = {begin, static_cast<std::size_t>(out - begin)};
    return at_ == end_ || *at_ == separator_ || at_line_end();
  }

  char* at_;
  char* end_;
  char separator_;
  std::int64_t line_ = 1;
};

}  // namespace

CsvTable::CsvTable(const std::filesystem::path& path, char separator)
    : path_(path), text_(read_text(path)) {
  parse(separator);
}

void CsvTable::parse(char separator) {
  Scanner scanner(text_, separator);
  bool in_header = true;
  while (!scanner.at_end()) {
    if (scanner.skip_blank_line()) continue;
    const std::int64_t line = scanner.line();
    std::vector<std::string_view>& row = in_header ? columns_ : cells_;
    const std::size_t before = row.size();
    for (Scanner::End end = Scanner::End::cell; end == Scanner::End::cell;) {
      const std::int64_t cell_line = scanner.line();
      std::string_view cell;
      if (!scanner.next(cell, end)) {
        fail_line(cell_line, "a quoted cell is not closed, or text follows its closing quote");
      }
      row.push_back(cell);
    }
    if (in_header) {
      in_header = false;
      check_columns();
      continue;
    }
    if (row.size() - before != columns_.size()) {
      fail_line(line, "row " + std::to_string(lines_.size() + 1) + " has " +
                          std::to_string(row.size() - before) + " cells, the header has " +
                          std::to_string(columns_.size()) + " columns");
    }
    lines_.push_back(line);
  }
  if (in_header) reject("expected a header line with the names of the columns, found nothing");
  if (lines_.empty()) reject("expected rows after the header, found none");
}

void CsvTable::check_columns() const {
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].empty()) reject("column " + std::to_string(i + 1) + " has no name");
    if (!seen.insert(columns_[i]).second) {
      reject("two columns have the name '" + shown(columns_[i]) + "'");
    }
  }
}

void CsvTable::fail_line(std::int64_t line, const std::string& message) const {
  throw diag::Error(diag::Exit::failed,
                    "'" + path_.string() + "', line " + std::to_string(line) + ": " + message);
}

void CsvTable::fail(std::size_t row, std::size_t column, const std::string& message,
                    const std::string& help) const {
  throw diag::Error(diag::Exit::failed,
                    "'" + path_.string() + "', row " + std::to_string(row + 1) + " (line " +
                        std::to_string(lines_[row]) + "), column '" + shown(columns_[column]) +
                        "': " + message,
                    help);
}

void CsvTable::reject(const std::string& message, const std::string& help) const {
  throw diag::Error(diag::Exit::invalid, "'" + path_.string() + "': " + message, help);
}

}  // namespace runner::datasets
