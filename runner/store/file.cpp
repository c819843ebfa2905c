#include "runner/store/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>
#include <utility>

#include "runner/host/text.h"
#include "runner/host/unique_fd.h"

namespace runner::store {

namespace fs = std::filesystem;

namespace {

// Hashed and written piece by piece: a piece is still in the cache when the kernel copies it.
constexpr std::size_t kPiece = std::size_t{1} << 20;

int status(int result) { return result < 0 ? -errno : result; }

class SystemFileOps final : public FileOps {
 public:
  int create(const fs::path& path) override {
    return status(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  }

  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    return written < 0 ? -errno : written;
  }

  int sync(int fd) override { return status(::fsync(fd)); }
  int close(int fd) override { return status(::close(fd)); }
  int make_folder(const fs::path& path) override { return status(::mkdir(path.c_str(), 0777)); }

  int sync_folder(const fs::path& path) override {
    const host::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return -errno;
    const int result = status(::fsync(fd.get()));
    return result == -EINVAL ? 0 : result;
  }

  int rename(const fs::path& from, const fs::path& to) override {
    return status(std::rename(from.c_str(), to.c_str()));
  }

  int exchange(const fs::path& a, const fs::path& b) override {
    return status(::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
  }

  int symlink(const fs::path& target, const fs::path& link) override {
    return status(::symlink(target.c_str(), link.c_str()));
  }

  int unlink(const fs::path& path) override { return status(::unlink(path.c_str())); }
  int remove_folder(const fs::path& path) override { return status(::rmdir(path.c_str())); }

  std::int64_t free_bytes(const fs::path& path) override {
    struct statvfs info {};
    if (::statvfs(path.c_str(), &info) != 0) return -errno;
    std::int64_t bytes = 0;
    const bool overflow = __builtin_mul_overflow(info.f_bavail, info.f_frsize, &bytes);
    return overflow ? std::numeric_limits<std::int64_t>::max() : bytes;
  }
};

}  // namespace

FileOps& system_file_ops() {
  static SystemFileOps ops;
  return ops;
}

bool FileError::no_space() const { return error_number_ == ENOSPC || error_number_ == EDQUOT; }

std::int64_t must(std::int64_t result, std::string_view attempted, const fs::path& path) {
  if (result >= 0) return result;
  const int error = static_cast<int>(-result);
  throw FileError(error, "cannot " + std::string(attempted) + " " + host::quote(path.native()) +
                             ": " + std::generic_category().message(error));
}

void make_folders(FileOps& ops, const fs::path& path) {
  if (path.empty()) return;
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  if (!path.has_filename()) return make_folders(ops, path.parent_path());  // "a/b/"
  make_folders(ops, path.parent_path());
  const int made = ops.make_folder(path);
  // Somebody else may have made it in the meantime; anything but a folder is in the way.
  if (made == -EEXIST && fs::is_directory(path, error)) return;
  must(made, "make the folder", path);
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  must(ops.sync_folder(parent), "sync the folder", parent);
}

int remove_all(FileOps& ops, const fs::path& path) {
  std::error_code error;
  const fs::file_status found = fs::symlink_status(path, error);
  if (found.type() == fs::file_type::not_found) return 0;
  if (error) return -error.value();
  if (found.type() != fs::file_type::directory) return std::min(ops.unlink(path), 0);

  int first_failure = 0;
  const auto note = [&](int result) {
    if (result < 0 && first_failure == 0) first_failure = result;
  };
  // Names first, then removals: what readdir gives while names vanish differs by file system.
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) note(-error.value());
  for (const fs::path& entry : entries) note(remove_all(ops, entry));
  note(ops.remove_folder(path));
  return first_failure;
}

FileWriter::FileWriter(FileOps& ops, fs::path path)
    : ops_(ops),
      path_(std::move(path)),
      fd_(static_cast<int>(must(ops_.create(path_), "create", path_))) {}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ops_.close(fd_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() >= kPiece) flush();
  if (bytes.size() >= kPiece) return write_through(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void FileWriter::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void FileWriter::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    std::span<const std::byte> piece = bytes.first(std::min(bytes.size(), kPiece));
    hasher_.update(piece);
    bytes = bytes.subspan(piece.size());
    while (!piece.empty()) {
      const ssize_t written = ops_.write(fd_, piece);
      if (written == -EINTR) continue;
      // A regular file never takes 0 bytes of many; a broken file system must not make us spin.
      must(written == 0 ? -EIO : written, "write", path_);
      piece = piece.subspan(static_cast<std::size_t>(written));
    }
  }
}

Digest FileWriter::finish() {
  flush();
  int synced = -EINTR;
  while (synced == -EINTR) synced = ops_.sync(fd_);
  must(synced, "sync", path_);
  // The descriptor is gone whatever close says, EINTR included, and the data is already on disk.
  const int closed = ops_.close(std::exchange(fd_, -1));
  must(closed == -EINTR ? 0 : closed, "close", path_);
  return hasher_.digest();
}

}  // namespace runner::store
