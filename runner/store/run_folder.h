#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "runner/host/unique_fd.h"
#include "runner/store/file.h"

namespace runner::store {

/// The folder of one run: <root>/<name>/<YYYY-MM-DD_HH-MM-SS>.
class RunFolder {
 public:
  /// Makes a folder that wasn't there before; `time` is given in local time, and -2, -3, ... is
  /// added while the name is taken, so that two runs of one second get one each. Throws
  /// diag::Error(Exit::invalid) for a name that is empty, begins with a dot or holds a slash or a
  /// control character, diag::Error(Exit::machine) if the folder can't be made.
  static RunFolder create(const std::filesystem::path& root, const std::string& name,
                          std::chrono::system_clock::time_point time,
                          FileOps& ops = system_file_ops());

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
};

/// Checks that a folder at `path` could take `needed_bytes`, by making a file in it, or in the
/// nearest folder above that exists, and asking for the free space. Leaves nothing behind. Throws
/// diag::Error(Exit::machine) that names the path and, for space, both numbers.
void probe(const std::filesystem::path& path, std::int64_t needed_bytes,
           FileOps& ops = system_file_ops());

/// Holds a run folder for this process, from construction to destruction. The kernel drops the lock
/// of a process that has died, so a stale one is simply taken over. Programs that this one starts
/// don't inherit it; forks that don't exec do.
class RunLock {
 public:
  /// Doesn't wait. Throws diag::Error(Exit::failed) that names the holder's pid and host if the
  /// folder is held, by this process too; diag::Error(Exit::machine) if it can't be locked.
  explicit RunLock(const std::filesystem::path& folder);

 private:
  host::UniqueFd fd_;
};

}  // namespace runner::store
