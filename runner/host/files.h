#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace runner::host {

/// What the front needs of the file system: small text files in, and a look at folders.
class Files {
 public:
  virtual ~Files() = default;

  /// The whole content of a regular file of at most `limit_bytes`. Never blocks: a FIFO, a device,
  /// a socket and a directory are refused, as is a file that is missing, unreadable or longer,
  /// all by a diag::Error(Exit::invalid) that names the file.
  [[nodiscard]] virtual std::string read_file(const std::filesystem::path& path,
                                              std::int64_t limit_bytes) const = 0;
  /// False also when the path can't be looked at.
  [[nodiscard]] virtual bool exists(const std::filesystem::path& path) const = 0;
  [[nodiscard]] virtual bool is_directory(const std::filesystem::path& path) const = 0;
  /// Bytes that an ordinary user may still write on the file system of `path`, or of its nearest
  /// existing parent. Throws diag::Error(Exit::machine) when the file system can't be asked.
  [[nodiscard]] virtual std::int64_t free_bytes(const std::filesystem::path& path) const = 0;
};

/// The file system of this machine.
[[nodiscard]] const Files& system_files();

}  // namespace runner::host
