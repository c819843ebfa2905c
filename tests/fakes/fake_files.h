#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "runner/diag/error.h"
#include "runner/host/files.h"
#include "runner/host/text.h"

namespace runner::host {

/// Files in memory: path -> content. A folder exists if a file lies in it.
class FakeFiles final : public Files {
 public:
  FakeFiles() = default;
  FakeFiles(std::initializer_list<std::pair<const std::string, std::string>> files)
      : files_(files) {}

  [[nodiscard]] std::string read_file(const std::filesystem::path& path,
                                      std::int64_t limit_bytes) const override {
    const auto fail = [&](const std::string& reason) {
      throw diag::Error(diag::Exit::invalid, "can't read " + quote(path.native()) + ": " + reason);
    };
    if (is_directory(path)) fail("it is a directory");
    const auto found = files_.find(normal(path));
    if (found == files_.end()) fail("no such file");
    if (static_cast<std::int64_t>(found->second.size()) > limit_bytes) {
      fail("it is longer than " + std::to_string(limit_bytes) + " bytes");
    }
    return found->second;
  }

  [[nodiscard]] bool exists(const std::filesystem::path& path) const override {
    return files_.count(normal(path)) > 0 || is_directory(path);
  }

  [[nodiscard]] bool is_directory(const std::filesystem::path& path) const override {
    const std::string prefix = normal(path) + "/";
    return std::any_of(files_.begin(), files_.end(),
                       [&](const auto& file) { return file.first.starts_with(prefix); });
  }

  [[nodiscard]] std::int64_t free_bytes(const std::filesystem::path&) const override {
    return free_space;
  }

  void set(const std::string& path, std::string content) { files_[path] = std::move(content); }

  std::int64_t free_space = std::int64_t{1} << 40;

 private:
  static std::string normal(const std::filesystem::path& path) {
    return path.lexically_normal().native();
  }

  std::map<std::string, std::string> files_;
};

}  // namespace runner::host
