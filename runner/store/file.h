// Writing files so that a crash, a full disk or a dying disk can't leave half of one unnoticed.
//
// FileOps are the system calls that change the file system, virtual so that tests can fail or stop
// at any of them. FileWriter is the one way in which this folder writes a file:
//
//   FileWriter out(ops, folder / "model.safetensors");
//   out.write(bytes);                      // as often as needed
//   const Digest digest = out.finish();    // on disk from here on; hashed on the way
//   must(ops.sync_folder(folder), "sync", folder);   // ... and so is its name
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/diag/error.h"
#include "runner/store/digest.h"

namespace runner::store {

/// The system calls that change the file system. Each returns what the kernel says: 0 or more when
/// it worked, else -errno; none throws. Calls may be made from any thread.
class FileOps {
 public:
  virtual ~FileOps() = default;

  /// Makes a new file and opens it for writing; -EEXIST if the name is taken, by a link too.
  virtual int create(const std::filesystem::path& path) = 0;
  /// May write less than asked, as write(2).
  virtual ssize_t write(int fd, std::span<const std::byte> bytes) = 0;
  virtual int sync(int fd) = 0;
  virtual int close(int fd) = 0;
  virtual int make_folder(const std::filesystem::path& path) = 0;
  /// Makes the names in a folder durable. 0 on file systems that have no such thing.
  virtual int sync_folder(const std::filesystem::path& path) = 0;
  /// Replaces `to` if it is there.
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Swaps two names in one step; -EINVAL or -ENOSYS on file systems that can't.
  virtual int exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  virtual int symlink(const std::filesystem::path& target, const std::filesystem::path& link) = 0;
  virtual int unlink(const std::filesystem::path& path) = 0;
  virtual int remove_folder(const std::filesystem::path& path) = 0;
  /// Bytes that an ordinary user may still write on the file system of `path`.
  virtual std::int64_t free_bytes(const std::filesystem::path& path) = 0;
};

/// The machine's file system.
[[nodiscard]] FileOps& system_file_ops();

/// A system call that failed.
class FileError : public diag::Error {
 public:
  FileError(int error_number, const std::string& message, std::string help = {})
      : diag::Error(diag::Exit::failed, message, std::move(help)), error_number_(error_number) {}

  [[nodiscard]] int error_number() const { return error_number_; }
  /// The disk or the user's quota is full.
  [[nodiscard]] bool no_space() const;

 private:
  int error_number_;
};

/// Passes `result` through if it is 0 or more, else throws FileError "cannot <attempted> '<path>':
/// <reason>".
std::int64_t must(std::int64_t result, std::string_view attempted,
                  const std::filesystem::path& path);

/// Makes `path` and what is missing above it, each name durable. Throws FileError, also when
/// something that isn't a folder is in the way.
void make_folders(FileOps& ops, const std::filesystem::path& path);

/// Removes `path` and all below it, never following a link; goes on after a failure. Returns 0,
/// also if there is nothing, or the first failure as -errno.
int remove_all(FileOps& ops, const std::filesystem::path& path);

/// Writes one new file: through a buffer if the pieces are small, without a copy if they are large.
/// Failures throw FileError, and none is tried again: after a failed write or sync the kernel may
/// have dropped the data, so the only way on is another file.
class FileWriter {
 public:
  FileWriter(FileOps& ops, std::filesystem::path path);
  /// Closes a file that wasn't finished; it stays, unsynced, for its owner to remove.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Flushes, syncs and closes. No call may follow.
  Digest finish();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  void write_through(std::span<const std::byte> bytes);

  FileOps& ops_;
  std::filesystem::path path_;
  int fd_;
  Hasher hasher_;
  std::vector<std::byte> buffer_;
};

}  // namespace runner::store
