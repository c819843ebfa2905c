#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runner/store/file.h"

namespace runner::store {

/// A real folder on a disk that can fail or lose power. It counts the calls, lets the n-th fail or
/// be the last, and knows what a power loss may take: the data of files written since their last
/// sync, and the names that changed since their folder's last sync.
class FaultyFileOps final : public FileOps {
 public:
  enum class PowerLoss { none, everything_unsynced, at_random };

  /// `graveyard` is a folder outside of what is tested, for files that a power loss may bring back.
  explicit FaultyFileOps(std::filesystem::path graveyard) : graveyard_(std::move(graveyard)) {
    std::filesystem::create_directories(graveyard_);
  }
  ~FaultyFileOps() override {
    for (const auto& [fd, inode] : open_) ::close(fd);
  }

  void fail_call(int n, int error) { fail_at_ = n, error_ = error; }
  void fail_kind(std::string kind, int error) { fail_kind_ = std::move(kind), error_ = error; }
  /// The n-th call, `performed` or not, ends in `die`, which must end the process: destructors make
  /// calls too, so that an exception won't do.
  void crash_at(int n, bool performed, std::function<void()> die) {
    crash_at_ = n, crash_performed_ = performed, die_ = std::move(die);
  }
  void forbid_exchange() { exchange_allowed_ = false; }
  /// Every second write is interrupted, the others take at most `bytes`.
  void write_at_most(std::size_t bytes) { most_written_ = bytes; }

  [[nodiscard]] int calls() const { return calls_; }
  /// "create a" and so on: the calls in order, but for those that a test made fail.
  [[nodiscard]] const std::vector<std::string>& log() const { return log_; }

  /// Makes the folder below `root` what a reboot would find.
  void lose_power(const std::filesystem::path& root, PowerLoss kind, std::mt19937& random) {
    if (kind == PowerLoss::none) return;
    for (const std::filesystem::path& tree : {root, graveyard_}) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(tree)) {
        if (!entry.is_regular_file() || entry.is_symlink()) continue;
        if (unsynced_.contains(inode_of(entry.path()))) spoil(entry.path(), kind, random);
      }
    }
    std::size_t survivors = 0;
    if (kind == PowerLoss::at_random && !changes_.empty()) {
      survivors = random() % (changes_.size() + 1);  // a journal keeps the order
    }
    while (changes_.size() > survivors) {
      changes_.back().undo();
      changes_.pop_back();
    }
  }

  int create(const std::filesystem::path& path) override {
    return call("create", path, [&] {
      const int fd = system_file_ops().create(path);
      if (fd < 0) return fd;
      open_[fd] = inode_of(path);
      unsynced_.insert(open_[fd]);
      changed(path, [path] { std::filesystem::remove(path); });
      return fd;
    });
  }

  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    return call("write", {}, [&]() -> ssize_t {
      if (most_written_ > 0) {
        interrupt_ = !interrupt_;
        if (interrupt_) return -EINTR;
        bytes = bytes.first(std::min(bytes.size(), most_written_));
      }
      unsynced_.insert(open_.at(fd));
      return system_file_ops().write(fd, bytes);
    });
  }

  int sync(int fd) override {
    return call("sync", {}, [&] {
      unsynced_.erase(open_.at(fd));
      return 0;
    });
  }

  int close(int fd) override {
    open_.erase(fd);
    system_file_ops().close(fd);  // the descriptor is gone even if close fails
    return call("close", {}, [] { return 0; });
  }

  int make_folder(const std::filesystem::path& path) override {
    return call("make_folder", path, [&] {
      const int made = system_file_ops().make_folder(path);
      if (made >= 0) changed(path, [path] { std::filesystem::remove_all(path); });
      return made;
    });
  }

  int sync_folder(const std::filesystem::path& path) override {
    return call("sync_folder", path, [&] {
      std::erase_if(changes_, [&](const Change& change) { return change.folder == path; });
      return std::filesystem::is_directory(path) ? 0 : -ENOENT;
    });
  }

  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return call("rename", to, [&] {
      const std::filesystem::path buried = bury(to);
      const int renamed = system_file_ops().rename(from, to);
      if (renamed < 0) {
        unbury(buried, to);
        return renamed;
      }
      changed(to, [=] {
        std::filesystem::rename(to, from);
        unbury(buried, to);
      });
      return renamed;
    });
  }

  int exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    return call("exchange", b, [&] {
      if (!exchange_allowed_) return -EINVAL;
      const int exchanged = system_file_ops().exchange(a, b);
      if (exchanged >= 0) changed(b, [=] { system_file_ops().exchange(a, b); });
      return exchanged;
    });
  }

  int symlink(const std::filesystem::path& target, const std::filesystem::path& link) override {
    return call("symlink", link, [&] {
      const int made = system_file_ops().symlink(target, link);
      if (made >= 0) changed(link, [link] { std::filesystem::remove(link); });
      return made;
    });
  }

  int unlink(const std::filesystem::path& path) override {
    return call("unlink", path, [&] {
      const std::filesystem::path buried = bury(path, /*folders=*/false);
      if (buried.empty()) return system_file_ops().unlink(path);
      changed(path, [=] { unbury(buried, path); });
      return 0;
    });
  }

  int remove_folder(const std::filesystem::path& path) override {
    return call("remove_folder", path, [&] {
      const int removed = system_file_ops().remove_folder(path);
      if (removed >= 0) changed(path, [path] { std::filesystem::create_directory(path); });
      return removed;
    });
  }

  std::int64_t free_bytes(const std::filesystem::path&) override { return 1234; }

 private:
  struct Change {
    std::filesystem::path folder;
    std::function<void()> undo;
  };

  template <class Perform>
  auto call(const std::string& kind, const std::filesystem::path& path, Perform&& perform)
      -> decltype(perform()) {
    ++calls_;
    const bool last = calls_ == crash_at_;
    if (last && !crash_performed_) die_();
    if (calls_ == fail_at_ || kind == fail_kind_) return -error_;
    const auto result = perform();
    log_.push_back(kind + (path.empty() ? "" : " " + path.filename().native()));
    if (last) die_();
    return result;
  }

  void changed(const std::filesystem::path& path, std::function<void()> undo) {
    changes_.push_back({.folder = path.parent_path(), .undo = std::move(undo)});
  }

  /// Moves what is at `path` out of the way; empty if there is nothing.
  std::filesystem::path bury(const std::filesystem::path& path, bool folders = true) {
    const auto type = std::filesystem::symlink_status(path).type();
    if (type == std::filesystem::file_type::not_found) return {};
    if (type == std::filesystem::file_type::directory && !folders) return {};
    // A full folder is in the way of a rename as it is on a real disk.
    if (type == std::filesystem::file_type::directory && !std::filesystem::is_empty(path))
      return {};
    const std::filesystem::path grave = graveyard_ / std::to_string(buried_++);
    std::filesystem::rename(path, grave);
    return grave;
  }

  static void unbury(const std::filesystem::path& grave, const std::filesystem::path& path) {
    if (!grave.empty()) std::filesystem::rename(grave, path);
  }

  static ino_t inode_of(const std::filesystem::path& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  /// What a disk may show of data that never reached it: nothing, a part, zeros, or all of it.
  static void spoil(const std::filesystem::path& path, PowerLoss kind, std::mt19937& random) {
    const std::uintmax_t size = std::filesystem::file_size(path);
    switch (kind == PowerLoss::at_random ? random() % 4 : 0) {
      case 0:
        std::filesystem::resize_file(path, 0);
        break;
      case 1:
        std::filesystem::resize_file(path, size == 0 ? 0 : random() % size);
        break;
      case 2:
        std::filesystem::resize_file(path, 0);
        std::filesystem::resize_file(path, size);
        break;
      default:
        break;
    }
  }

  std::filesystem::path graveyard_;
  std::map<int, ino_t> open_;
  std::set<ino_t> unsynced_;
  std::vector<Change> changes_;
  std::vector<std::string> log_;
  std::function<void()> die_;
  std::string fail_kind_;
  std::size_t most_written_ = 0;
  int calls_ = 0;
  int fail_at_ = 0;
  int crash_at_ = 0;
  int error_ = 0;
  int buried_ = 0;
  bool crash_performed_ = false;
  bool exchange_allowed_ = true;
  bool interrupt_ = false;
};

}  // namespace runner::store
