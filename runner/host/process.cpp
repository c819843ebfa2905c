#include "runner/host/process.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <string_view>
#include <system_error>

#include "runner/diag/error.h"

namespace runner::host {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSmallFile = 64 << 10;
constexpr std::int64_t kPackedRefsLimit = 16 << 20;

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

/// The file's text without trailing white space; nullopt when it can't be read.
std::optional<std::string> read(const Files& files, const fs::path& path,
                                std::int64_t limit = kSmallFile) {
  try {
    return trimmed(files.read_file(path, limit));
  } catch (const diag::Error&) {
    return std::nullopt;
  }
}

std::optional<std::string> as_commit(const std::optional<std::string>& text) {
  if (!text || (text->size() != 40 && text->size() != 64)) return std::nullopt;  // SHA-1, SHA-256
  const bool hex = std::all_of(text->begin(), text->end(),
                               [](unsigned char c) { return std::isxdigit(c) != 0; });
  return hex ? text : std::nullopt;
}

/// What follows `prefix` in the file at `path`: git's one-line pointer files.
std::optional<std::string> pointer(const Files& files, const fs::path& path,
                                   std::string_view prefix) {
  const std::optional<std::string> text = read(files, path);
  if (!text || !text->starts_with(prefix)) return std::nullopt;
  return text->substr(prefix.size());
}

/// The .git folder of the work tree around `folder`; a linked work tree has a file in its place.
std::optional<fs::path> git_folder(const fs::path& folder, const Files& files) {
  std::error_code error;
  fs::path place = fs::absolute(folder, error).lexically_normal();
  for (;; place = place.parent_path()) {
    const fs::path git = place / ".git";
    if (files.is_directory(git)) return git;
    if (const auto target = pointer(files, git, "gitdir: ")) return place / *target;
    if (!place.has_relative_path()) return std::nullopt;
  }
}

std::optional<std::string> packed_ref(const Files& files, const fs::path& path,
                                      const std::string& ref) {
  const std::optional<std::string> text = read(files, path, kPackedRefsLimit);
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.compare(space + 1, std::string::npos, ref) != 0)
      continue;
    return as_commit(line.substr(0, space));
  }
  return std::nullopt;
}

}  // namespace

fs::path self_exe_folder() {
  std::error_code error;
  const fs::path exe = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    throw diag::Error(diag::Exit::machine,
                      "can't find the program's own folder: /proc/self/exe: " + error.message(),
                      "mount /proc");
  }
  return exe.parent_path();
}

fs::path data_folder(const fs::path& exe_folder, const Files& files) {
  const fs::path installed = (exe_folder / ".." / "share" / "runner").lexically_normal();
  return files.is_directory(installed) ? installed : fs::path(RUNNER_SOURCE_DIR);
}

fs::path data_folder() { return data_folder(self_exe_folder(), system_files()); }

std::optional<std::string> git_commit(const fs::path& folder, const Files& files) {
  const std::optional<fs::path> git = git_folder(folder, files);
  if (!git) return std::nullopt;
  const std::optional<std::string> ref = pointer(files, *git / "HEAD", "ref: ");
  if (!ref) return as_commit(read(files, *git / "HEAD"));
  if (!ref->starts_with("refs/") || ref->find("..") != std::string::npos) return std::nullopt;

  // A linked work tree shares its branches with the main one, whose folder `commondir` names.
  fs::path common = *git;
  if (const auto other = read(files, *git / "commondir")) common = *git / *other;
  if (auto commit = as_commit(read(files, common / *ref))) return commit;
  return packed_ref(files, common / "packed-refs", *ref);
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string boot_id(const Files& files) {
  return read(files, "/proc/sys/kernel/random/boot_id").value_or("");
}

}  // namespace runner::host
