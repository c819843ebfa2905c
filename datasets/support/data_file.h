#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace runner::datasets {

/// A regular file read front to back, gunzipped on the way when it is gzipped. Offsets count the
/// bytes after gunzip. Every failure is a diag::Error that names the file.
class DataFile {
 public:
  /// Throws (machine) when the file is missing, unreadable or not a regular file; `help` says how
  /// to get it.
  explicit DataFile(std::filesystem::path path, const std::string& help = {});
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  /// Fills `out`; throws (failed) when the file ends before or the gzip stream is damaged. `what`
  /// names the bytes in the message: "labels".
  void read(std::span<std::uint8_t> out, std::string_view what);
  /// Reads up to out.size() bytes; fewer only at the end of the file.
  std::size_t read_some(std::span<std::uint8_t> out);
  /// Reads `bytes` bytes and forgets them.
  void skip(std::int64_t bytes, std::string_view what);
  /// Throws (failed) unless the file ends here; verifies the checksum of a gzipped one.
  void expect_end();
  /// Throws (failed) when the file can't hold `bytes` more bytes, before anything is allocated:
  /// a plain file must hold exactly these, a gzipped one can't inflate by more than 1032 times.
  void expect_room(std::int64_t bytes, std::string_view what) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::int64_t offset() const { return offset_; }
  /// Throws diag::Error (failed): "'FILE', offset N: MESSAGE".
  [[noreturn]] void fail(std::int64_t offset, const std::string& message,
                         const std::string& help = {}) const;

 private:
  struct Stream;
  std::filesystem::path path_;
  std::int64_t size_ = 0;  ///< on disk
  std::int64_t offset_ = 0;
  std::unique_ptr<Stream> stream_;
};

/// A root as an experiment writes it: absolute, or relative to the experiment's folder.
[[nodiscard]] std::filesystem::path resolve(const std::filesystem::path& base,
                                            const std::string& path);
/// `folder/name`, or `folder/name.gz` when only that exists.
[[nodiscard]] std::filesystem::path plain_or_gzipped(const std::filesystem::path& folder,
                                                     std::string_view name);
/// Text from a file as a message can show it: control bytes and invalid UTF-8 escaped, cut after
/// some 40 bytes.
[[nodiscard]] std::string shown(std::string_view text);

}  // namespace runner::datasets
