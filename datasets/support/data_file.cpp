#include "datasets/support/data_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "runner/diag/error.h"

namespace runner::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxInflation = 1032;  // the limit of the deflate format

fs::file_status status_of(const fs::path& path, const std::string& help) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    throw diag::Error(diag::Exit::machine, "'" + path.string() + "' does not exist", help);
  }
  if (error) {
    throw diag::Error(diag::Exit::machine,
                      "can't look at '" + path.string() + "': " + error.message(), help);
  }
  return status;
}

/// Length of the valid UTF-8 sequence at the front of `text`, 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool surrogate = first == 0xED && byte(1) > 0x9F;
  const bool too_big = first == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || too_big ? 0 : length;
}

}  // namespace

struct DataFile::Stream {
  gzFile file = nullptr;
  ~Stream() {
    if (file != nullptr) gzclose(file);
  }
};

DataFile::DataFile(fs::path path, const std::string& help)
    : path_(std::move(path)), stream_(std::make_unique<Stream>()) {
  // A FIFO would block for ever in open().
  if (status_of(path_, help).type() != fs::file_type::regular) {
    throw diag::Error(diag::Exit::machine, "'" + path_.string() + "' is not a regular file", help);
  }
  errno = 0;
  stream_->file = gzopen(path_.c_str(), "rb");
  if (stream_->file == nullptr) {
    const std::string reason = errno == 0 ? "out of memory" : std::strerror(errno);
    throw diag::Error(diag::Exit::machine, "can't open '" + path_.string() + "': " + reason, help);
  }
  gzbuffer(stream_->file, 1U << 18U);
  size_ = static_cast<std::int64_t>(fs::file_size(path_));
}

DataFile::~DataFile() = default;

void DataFile::fail(std::int64_t offset, const std::string& message,
                    const std::string& help) const {
  throw diag::Error(diag::Exit::failed,
                    "'" + path_.string() + "', offset " + std::to_string(offset) + ": " + message,
                    help);
}

std::size_t DataFile::read_some(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto wanted = std::min<std::size_t>(out.size() - done, 1U << 30U);
    const int got = gzread(stream_->file, out.data() + done, static_cast<unsigned>(wanted));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
      offset_ += got;
      continue;
    }
    int code = Z_OK;
    std::string reason = gzerror(stream_->file, &code);
    if (code == Z_BUF_ERROR) fail(offset_, "the gzip data ends too early; the file is truncated");
    if (code == Z_ERRNO) fail(offset_, std::string("can't read: ") + std::strerror(errno));
    if (code != Z_OK && code != Z_STREAM_END) {
      // zlib puts the path in front, which fail() does too.
      const std::string prefix = path_.string() + ": ";
      if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
      fail(offset_, "the gzip data is damaged here or later: " + reason);
    }
    break;
  }
  return done;
}

void DataFile::read(std::span<std::uint8_t> out, std::string_view what) {
  const std::int64_t start = offset_;
  const std::size_t got = read_some(out);
  if (got == out.size()) return;
  fail(start, "expected " + std::to_string(out.size()) + " bytes of " + std::string(what) +
                  ", found " + std::to_string(got) + "; the file is truncated");
}

void DataFile::skip(std::int64_t bytes, std::string_view what) {
  std::array<std::uint8_t, 1U << 16U> scratch;
  while (bytes > 0) {
    const auto part = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(scratch.size()));
    read(std::span(scratch).first(static_cast<std::size_t>(part)), what);
    bytes -= part;
  }
}

void DataFile::expect_end() {
  const std::int64_t end = offset_;
  std::uint8_t byte = 0;
  if (read_some({&byte, 1}) != 0) fail(end, "expected the end of the file, found more bytes");
}

void DataFile::expect_room(std::int64_t bytes, std::string_view what) const {
  const std::string expected =
      "expected " + std::to_string(bytes) + " bytes of " + std::string(what) + ", found ";
  if (gzdirect(stream_->file) != 0) {
    const std::int64_t left = size_ - offset_;
    if (left == bytes) return;
    fail(offset_, expected + std::to_string(left) +
                      (left < bytes ? "; the file is truncated" : "; the file is too long"));
  }
  if (bytes / kMaxInflation <= size_) return;
  fail(offset_, expected + "a gzipped file of " + std::to_string(size_) +
                    " bytes, which can't hold them; the file is truncated");
}

fs::path resolve(const fs::path& base, const std::string& path) {
  return (base / path).lexically_normal();
}

fs::path plain_or_gzipped(const fs::path& folder, std::string_view name) {
  fs::path plain = folder / name;
  std::error_code ignored;
  if (fs::exists(plain, ignored)) return plain;
  fs::path gzipped = plain;
  gzipped += ".gz";
  return fs::exists(gzipped, ignored) ? gzipped : plain;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (i >= kLongest) return out + "…";
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x20 || byte == 0x7F ? 0 : utf8_length(text.substr(i));
    if (length == 0) {
      out += "\\x";
      out += kHex[byte >> 4U];
      out += kHex[byte & 15U];
    }
    out += text.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return out;
}

}  // namespace runner::datasets
