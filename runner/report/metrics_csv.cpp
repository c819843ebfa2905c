#include "runner/report/metrics_csv.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>

#include "runner/diag/error.h"
#include "runner/report/terminal.h"

namespace runner::report {

namespace {

using diag::Error;
using diag::Exit;

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kKey = "step";
constexpr std::size_t kBufferBytes = 64 << 10;

[[noreturn]] void fail(const std::filesystem::path& path, const char* what,
                       const std::string& why) {
  throw Error(Exit::failed,
              std::string("can't ") + what + " " + host::quote(path.native()) + ": " + why);
}

[[noreturn]] void fail_errno(const std::filesystem::path& path, const char* what) {
  fail(path, what, std::system_category().message(errno));
}

std::string header_line(const std::vector<std::string>& columns) {
  std::string line;
  for (const std::string& column : columns) {
    if (!line.empty()) line += ',';
    line += csv_cell(column);
  }
  return line.append(kLineEnd);
}

template <class Number>
std::string number_text(Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(number)) return "nan";  // to_chars has a "-nan" too
  }
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return {buffer.data(), end};
}

std::string value_text(const Cell& cell) {
  return std::visit(
      [](const auto& value) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
          return number_text(value);
        } else {
          return csv_cell(value);
        }
      },
      cell.value);
}

void cut_file(const std::filesystem::path& path, int fd, std::int64_t length) {
  if (::ftruncate(fd, length) != 0) fail_errno(path, "truncate");
  if (::lseek(fd, length, SEEK_SET) < 0) fail_errno(path, "truncate");
}

/// `length` bytes from `offset`; fewer at the file's end.
std::string read_at(const std::filesystem::path& path, int fd, std::size_t length,
                    std::int64_t offset) {
  std::string text(length, '\0');
  std::size_t used = 0;
  while (used < length) {
    const ssize_t got =
        ::pread(fd, text.data() + used, length - used, offset + static_cast<std::int64_t>(used));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path, "read");
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

std::int64_t size_of_regular_file(const std::filesystem::path& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno(path, "open");
  if (!S_ISREG(status.st_mode)) fail(path, "open", "it is not a regular file");
  return status.st_size;
}

}  // namespace

std::string csv_cell(std::string_view text) {
  std::string cell = escape_text(text);
  if (cell.find_first_of(",\"") == std::string::npos) return cell;
  for (std::size_t i = cell.find('"'); i != std::string::npos; i = cell.find('"', i + 2)) {
    cell.insert(i, 1, '"');
  }
  return '"' + cell + '"';
}

MetricsCsv::MetricsCsv(std::filesystem::path path, std::vector<std::string> columns,
                       host::UniqueFd fd, std::int64_t byte_length)
    : path_(std::move(path)),
      columns_(std::move(columns)),
      row_(columns_.size()),
      fd_(std::move(fd)),
      byte_length_(byte_length),
      last_row_start_(byte_length) {}

MetricsCsv MetricsCsv::create(const std::filesystem::path& path, std::vector<std::string> columns) {
  host::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail_errno(path, "create");
  MetricsCsv csv(path, std::move(columns), std::move(fd), 0);
  csv.buffer_ = header_line(csv.columns_);
  csv.byte_length_ = csv.last_row_start_ = std::ssize(csv.buffer_);
  csv.flush();
  return csv;
}

MetricsCsv MetricsCsv::resume(const std::filesystem::path& path, std::vector<std::string> columns,
                              std::int64_t byte_length, std::vector<std::string> last_row) {
  host::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail_errno(path, "open");
  const std::int64_t size = size_of_regular_file(path, fd.get());

  const std::string wanted = header_line(columns);
  const std::string there = read_at(path, fd.get(), std::max<std::size_t>(wanted.size(), 4096), 0);
  if (!there.starts_with(wanted)) {
    const std::string header = there.substr(0, there.find(kLineEnd));
    throw Error(Exit::incompatible,
                "the columns of " + host::quote(path.native()) + " are " + host::quote(header) +
                    ", but this run has " +
                    host::quote(wanted.substr(0, wanted.size() - kLineEnd.size())),
                "resume with the configuration that the run was started with, or start a new run");
  }
  if (size < byte_length || byte_length < std::ssize(wanted)) {
    fail(path, "resume",
         "it has " + std::to_string(size) + " bytes, the checkpoint says " +
             std::to_string(byte_length));
  }
  const auto end_size = std::ssize(kLineEnd);
  if (read_at(path, fd.get(), kLineEnd.size(), byte_length - end_size) != kLineEnd) {
    fail(path, "resume",
         "no row ends at byte " + std::to_string(byte_length) +
             ", the length that the checkpoint says");
  }
  if (!last_row.empty() && last_row.size() != columns.size()) {
    fail(path, "resume",
         "it has " + std::to_string(columns.size()) + " columns, the checkpoint's last row " +
             std::to_string(last_row.size()));
  }
  cut_file(path, fd.get(), byte_length);
  MetricsCsv csv(path, std::move(columns), std::move(fd), byte_length);
  csv.last_row_ = std::move(last_row);
  if (!csv.last_row_.empty()) csv.put_last_row();
  csv.flush();
  return csv;
}

MetricsCsv::~MetricsCsv() {
  if (!fd_) return;
  try {
    flush();
  } catch (
      const diag::Error&) {  // NOLINT(bugprone-empty-catch): documented; a destructor can't tell
  }
}

void MetricsCsv::append(std::span<const Cell> cells) {
  place(cells);
  bool was_on_disk = false;
  if (joins_last_row()) {
    was_on_disk = cut_last_row();
  } else {
    last_row_start_ = byte_length_;
    last_row_.assign(columns_.size(), "");
  }
  for (std::size_t i = 0; i < row_.size(); ++i) {
    if (row_[i] != nullptr) last_row_[i] = value_text(*row_[i]);
  }
  put_last_row();
  if (was_on_disk || buffer_.size() >= kBufferBytes) flush();
}

void MetricsCsv::place(std::span<const Cell> cells) {
  std::fill(row_.begin(), row_.end(), nullptr);
  for (const Cell& cell : cells) {
    const auto column = std::find(columns_.begin(), columns_.end(), cell.column);
    if (column == columns_.end()) {
      throw std::logic_error("metrics.csv has no column '" + std::string(cell.column) + "'");
    }
    row_[static_cast<std::size_t>(column - columns_.begin())] = &cell;
  }
}

bool MetricsCsv::joins_last_row() const {
  const auto key = std::find(columns_.begin(), columns_.end(), kKey);
  if (key == columns_.end() || last_row_.empty()) return false;
  const auto i = static_cast<std::size_t>(key - columns_.begin());
  return row_[i] != nullptr && last_row_[i] == value_text(*row_[i]);
}

bool MetricsCsv::cut_last_row() {
  const std::int64_t on_disk = byte_length_ - std::ssize(buffer_);
  const bool cuts_file = last_row_start_ < on_disk;
  if (cuts_file) {
    cut_file(path_, fd_.get(), last_row_start_);
    buffer_.clear();
  } else {
    buffer_.resize(static_cast<std::size_t>(last_row_start_ - on_disk));
  }
  byte_length_ = last_row_start_;
  return cuts_file;
}

void MetricsCsv::put_last_row() {
  const std::size_t before = buffer_.size();
  for (std::size_t i = 0; i < last_row_.size(); ++i) {
    if (i > 0) buffer_ += ',';
    buffer_ += last_row_[i];
  }
  buffer_ += kLineEnd;
  byte_length_ += static_cast<std::int64_t>(buffer_.size() - before);
}

void MetricsCsv::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      buffer_.erase(0, done);
      errno = error;
      fail_errno(path_, "write");
    }
    done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
}

void MetricsCsv::sync() {
  flush();
  if (::fsync(fd_.get()) != 0) fail_errno(path_, "sync");
}

}  // namespace runner::report
