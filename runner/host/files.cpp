#include "runner/host/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "runner/diag/error.h"
#include "runner/host/text.h"
#include "runner/host/unique_fd.h"

namespace runner::host {

namespace {

using diag::Error;
using diag::Exit;

[[noreturn]] void fail_to_read(const std::filesystem::path& path, const std::string& reason) {
  throw Error(Exit::invalid, "can't read " + quote(path.native()) + ": " + reason);
}

std::string reason_of(int error) {
  switch (error) {
    case ENOENT:
      return "no such file";
    case EACCES:
      return "permission denied";
    case ELOOP:
      return "too many symbolic links";
    case ENXIO:
      return "it is not a regular file";  // what open() says of a socket
    default:
      return std::system_category().message(error);
  }
}

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "it is a directory";
  if (S_ISFIFO(mode)) return "it is a FIFO, not a regular file";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "it is a device, not a regular file";
  return "it is not a regular file";
}

ssize_t read_some(int fd, char* data, std::size_t size) {
  ssize_t got = -1;
  do {
    got = ::read(fd, data, size);
  } while (got < 0 && errno == EINTR);
  return got;
}

class PosixFiles final : public Files {
 public:
  std::string read_file(const std::filesystem::path& path,
                        std::int64_t limit_bytes) const override {
    if (path.native().find('\0') != std::string::npos) {
      fail_to_read(path, "the name holds a NUL byte");
    }
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (!fd) fail_to_read(path, reason_of(errno));
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) fail_to_read(path, reason_of(errno));
    if (!S_ISREG(status.st_mode)) fail_to_read(path, kind_of(status.st_mode));
    if (status.st_size > limit_bytes) fail_too_long(path, limit_bytes);
    return read_all(path, fd.get(), status.st_size, limit_bytes);
  }

  bool exists(const std::filesystem::path& path) const override {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  }

  bool is_directory(const std::filesystem::path& path) const override {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
  }

  std::int64_t free_bytes(const std::filesystem::path& path) const override {
    std::error_code error;
    std::filesystem::path place = std::filesystem::absolute(path, error);
    while (!exists(place) && place.has_relative_path()) place = place.parent_path();
    struct statvfs status {};
    if (::statvfs(place.c_str(), &status) != 0) {
      throw Error(Exit::machine, "can't ask for the free space of " + quote(path.native()) + ": " +
                                     reason_of(errno));
    }
    return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
  }

 private:
  [[noreturn]] static void fail_too_long(const std::filesystem::path& path, std::int64_t limit) {
    fail_to_read(path, "it is longer than " + std::to_string(limit) + " bytes");
  }

  /// Reads to the end, not to st_size: files in /proc say 0, and a file may grow under our hands.
  static std::string read_all(const std::filesystem::path& path, int fd, std::int64_t size_hint,
                              std::int64_t limit) {
    std::string content;
    std::size_t used = 0;
    for (;;) {
      if (used == content.size()) {
        const std::size_t wanted = used == 0 ? static_cast<std::size_t>(size_hint) + 1 : used * 2;
        content.resize(
            std::clamp<std::size_t>(wanted, 4096, static_cast<std::size_t>(limit) + 4096));
      }
      const ssize_t got = read_some(fd, content.data() + used, content.size() - used);
      if (got < 0) fail_to_read(path, reason_of(errno));
      if (got == 0) break;
      used += static_cast<std::size_t>(got);
      if (static_cast<std::int64_t>(used) > limit) fail_too_long(path, limit);
    }
    content.resize(used);
    return content;
  }
};

}  // namespace

const Files& system_files() {
  static const PosixFiles files;
  return files;
}

}  // namespace runner::host
