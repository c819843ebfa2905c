#include "runner/store/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "runner/host/text.h"
#include "runner/host/unique_fd.h"
#include "runner/store/process_id.h"

namespace runner::store {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kManifestName = "MANIFEST.json";
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTempPrefix = ".tmp-";
constexpr std::string_view kAsidePrefix = ".aside-";
constexpr std::size_t kReadBytes = std::size_t{1} << 20;
// A manifest has some 100 bytes a file; more than this is something else under its name.
constexpr std::uint64_t kLargestManifest = std::uint64_t{64} << 20;

/// Ten digits, so that names sort as steps do up to ten thousand million.
std::string step_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 10) digits.insert(0, 10 - digits.size(), '0');
  return std::string(kStepPrefix) + digits;
}

std::optional<std::int64_t> step_from_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  // "step-5" would be a second name of step-0000000005.
  if (step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::string_view link_name(Link link) { return link == Link::best ? "best" : "last"; }

/// "<prefix><step>-<process>.<serial>": never used twice, so that a failed attempt's files are
/// never written again.
std::string scratch_name(std::string_view prefix, std::int64_t step) {
  static std::atomic<std::uint64_t> serial{0};
  return std::string(prefix) + std::to_string(step) + "-" + ProcessId::self().str() + "." +
         std::to_string(serial++);
}

/// What a writer left under a scratch name.
struct Leftover {
  std::string name;
  bool aside = false;  ///< a whole checkpoint on its way out, else something unfinished or given up
  std::int64_t step = 0;
  ProcessId writer;
};

/// The reverse of scratch_name(); nullopt for names that aren't ours.
std::optional<Leftover> parse_scratch_name(const std::string& name) {
  Leftover out{.name = name, .aside = name.starts_with(kAsidePrefix), .writer = {}};
  if (!out.aside && !name.starts_with(kTempPrefix)) return std::nullopt;
  std::string_view rest = std::string_view(name).substr(0, name.rfind('.'));
  rest.remove_prefix(std::min(rest.size(), (out.aside ? kAsidePrefix : kTempPrefix).size()));
  const char* end = rest.data() + rest.size();
  const auto [dash, error] = std::from_chars(rest.data(), end, out.step);
  if (error != std::errc{} || dash == end || *dash != '-') return std::nullopt;
  const std::optional<ProcessId> writer =
      ProcessId::parse(rest.substr(static_cast<std::size_t>(dash - rest.data()) + 1));
  if (!writer) return std::nullopt;
  out.writer = *writer;
  return out;
}

/// Names in `folder`; none if there is no such folder.
std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    out.push_back(it->path().filename().native());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    must(-error.value(), "read the folder", folder);
  }
  std::ranges::sort(out);
  return out;
}

std::vector<Leftover> dead_writers_leftovers(const fs::path& folder) {
  std::vector<Leftover> out;
  for (const std::string& name : entries(folder)) {
    std::optional<Leftover> left = parse_scratch_name(name);
    if (left && !left->writer.alive()) out.push_back(std::move(*left));
  }
  return out;
}

bool is_taken(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

void check_blobs(std::span<const Blob> blobs) {
  std::set<std::string_view> names{kManifestName};
  for (const Blob& blob : blobs) {
    if (!is_plain_name(blob.name)) {
      throw std::invalid_argument("not a plain file name: " + host::quote(blob.name));
    }
    if (!names.insert(blob.name).second) {
      throw std::invalid_argument("file name used twice: " + host::quote(blob.name));
    }
  }
}

std::uint64_t size_of(const Blob& blob) {
  if (const auto* text = std::get_if<std::string>(&blob.content)) return text->size();
  const auto& content = std::get<SafetensorsContent>(blob.content);
  return safetensors_size(content.tensors, content.metadata);
}

Digest write_blob(FileOps& ops, const fs::path& path, const Blob& blob) {
  FileWriter out(ops, path);
  if (const auto* text = std::get_if<std::string>(&blob.content)) {
    out.write(*text);
  } else {
    const auto& content = std::get<SafetensorsContent>(blob.content);
    write_safetensors(out, content.tensors, content.metadata);
  }
  return out.finish();
}

[[noreturn]] void damaged(const fs::path& checkpoint, const std::string& why) {
  throw diag::Error(diag::Exit::failed,
                    "checkpoint " + host::quote(checkpoint.native()) + " is damaged: " + why);
}

/// A checkpoint's file, opened for reading, its size known.
struct OpenFile {
  host::UniqueFd fd;
  std::uint64_t size = 0;
};

OpenFile open_file(const fs::path& checkpoint, const std::string& name) {
  const fs::path path = checkpoint / name;
  OpenFile file;
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd) {
    const int error = errno;
    if (error == ENOENT) damaged(checkpoint, host::quote(name) + " is missing");
    damaged(checkpoint,
            host::quote(name) + " can't be opened: " + std::generic_category().message(error));
  }
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    damaged(checkpoint, host::quote(name) + " is not a regular file");
  }
  file.size = static_cast<std::uint64_t>(info.st_size);
  return file;
}

/// Calls `take` with piece after piece of the file, to its end.
template <class Take>
void read_all(const OpenFile& file, const fs::path& checkpoint, const std::string& name,
              Take&& take) {
  ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::clamp<std::uint64_t>(file.size, 1, kReadBytes)));
  while (true) {
    const ssize_t count = ::read(file.fd.get(), buffer.data(), buffer.size());
    if (count == 0) return;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      damaged(checkpoint,
              host::quote(name) + " can't be read: " + std::generic_category().message(errno));
    }
    take(std::span<const std::byte>(buffer).first(static_cast<std::size_t>(count)));
  }
}

void check_size(const fs::path& checkpoint, const std::string& name, std::uint64_t actual,
                std::uint64_t expected) {
  if (actual == expected) return;
  damaged(checkpoint, host::quote(name) + " has " + std::to_string(actual) + " bytes, expected " +
                          std::to_string(expected));
}

void verify_file(const fs::path& checkpoint, const std::string& name, const Digest& expected) {
  const OpenFile file = open_file(checkpoint, name);
  check_size(checkpoint, name, file.size, expected.size);
  Hasher hasher;
  read_all(file, checkpoint, name, [&](std::span<const std::byte> piece) { hasher.update(piece); });
  const Digest actual = hasher.digest();
  check_size(checkpoint, name, actual.size, expected.size);
  if (actual.xxh3_128 == expected.xxh3_128) return;
  damaged(checkpoint, host::quote(name) + " has XXH3-128 " + actual.xxh3_128 + ", expected " +
                          expected.xxh3_128);
}

/// The steps of the `policy.top_k` best, the newer one of equals.
std::vector<std::int64_t> best_steps(std::span<const Manifest> newest_first,
                                     const RetentionPolicy& policy) {
  std::vector<std::pair<double, std::int64_t>> scored;  // smaller is better
  for (const Manifest& manifest : newest_first) {
    const auto metric = manifest.metrics.find(policy.metric);
    if (metric == manifest.metrics.end() || std::isnan(metric->second)) continue;
    const bool min = policy.mode == RetentionPolicy::Mode::min;
    scored.emplace_back(min ? metric->second : -metric->second, manifest.step);
  }
  std::ranges::stable_sort(scored, {}, [](const auto& entry) { return entry.first; });
  std::vector<std::int64_t> steps;
  for (const auto& [score, step] : scored) {
    if (std::ssize(steps) == policy.top_k) break;
    steps.push_back(step);
  }
  return steps;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "\n  " + line;
  return out;
}

}  // namespace

/// A name in the folder that only this process uses; what lies there at the end is removed.
class CheckpointFolder::Scratch {
 public:
  Scratch(FileOps& ops, fs::path path) : ops_(ops), path_(std::move(path)) {}
  ~Scratch() { remove(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }
  /// What lies there stays.
  void keep() { kept_ = true; }
  /// As well as it goes: a leftover is cleaned up by the next run.
  void remove() {
    if (!kept_) remove_all(ops_, path_);
    kept_ = true;
  }

 private:
  FileOps& ops_;
  fs::path path_;
  bool kept_ = false;
};

CheckpointFolder::CheckpointFolder(fs::path dir, FileOps& ops) : dir_(std::move(dir)), ops_(ops) {}

fs::path CheckpointFolder::path(std::int64_t step) const { return dir_ / step_name(step); }

// ---- saving

Manifest CheckpointFolder::save(Manifest manifest, std::span<const Blob> blobs) {
  if (manifest.step < 0) throw std::invalid_argument("a checkpoint of a negative step");
  check_blobs(blobs);
  Scratch scratch(ops_, dir_ / scratch_name(kTempPrefix, manifest.step));
  try {
    make_folders(ops_, dir_);
    must(ops_.make_folder(scratch.path()), "make the folder", scratch.path());
    write_all(scratch.path(), manifest, blobs);
    publish(scratch, manifest.step);
  } catch (const FileError& error) {
    if (!error.no_space()) throw;
    scratch.remove();  // first, so that the free bytes are those that a next attempt would find
    std::uint64_t needed = 0;
    for (const Blob& blob : blobs) needed += size_of(blob);
    const std::int64_t free = ops_.free_bytes(dir_);
    throw FileError(error.error_number(),
                    "cannot save the checkpoint of step " + std::to_string(manifest.step) + ": " +
                        error.what() + "; it needs " + std::to_string(needed) + " bytes, " +
                        (free < 0 ? "unknown" : std::to_string(free)) + " are free",
                    "free some space, or keep fewer checkpoints");
  }
  return manifest;
}

void CheckpointFolder::write_all(const fs::path& folder, Manifest& manifest,
                                 std::span<const Blob> blobs) {
  manifest.files.clear();
  for (const Blob& blob : blobs) {
    manifest.files[blob.name] = write_blob(ops_, folder / blob.name, blob);
  }
  FileWriter out(ops_, folder / kManifestName);
  out.write(manifest_text(manifest));
  out.finish();
  must(ops_.sync_folder(folder), "sync the folder", folder);
}

void CheckpointFolder::publish(Scratch& scratch, std::int64_t step) {
  const fs::path target = path(step);
  if (is_taken(target)) return replace(scratch, step);
  must(ops_.rename(scratch.path(), target), "rename to", target);
  scratch.keep();
  must(ops_.sync_folder(dir_), "sync the folder", dir_);
}

/// Swaps the new checkpoint with the one that has its name, which may be the only whole one: at no
/// moment is there none.
void CheckpointFolder::replace(Scratch& scratch, std::int64_t step) {
  const fs::path target = path(step);
  const int exchanged = ops_.exchange(scratch.path(), target);
  if (exchanged == -EINVAL || exchanged == -ENOSYS || exchanged == -ENOTSUP) {
    return move_aside_and_publish(scratch, step);
  }
  must(exchanged, "rename to", target);
  const int synced = ops_.sync_folder(dir_);
  // The scratch name now holds the old one. It must stay until the new one is known to be on disk.
  if (synced < 0) scratch.keep();
  must(synced, "sync the folder", dir_);
}

/// For file systems without an exchange. A crash between the two renames leaves the old one under a
/// name that clean_leftovers() puts back.
void CheckpointFolder::move_aside_and_publish(Scratch& scratch, std::int64_t step) {
  const fs::path target = path(step);
  Scratch aside(ops_, dir_ / scratch_name(kAsidePrefix, step));
  must(ops_.rename(target, aside.path()), "rename", target);
  const int renamed = ops_.rename(scratch.path(), target);
  if (renamed < 0) {
    aside.keep();
    ops_.rename(aside.path(), target);
    must(renamed, "rename to", target);
  }
  scratch.keep();
  const int synced = ops_.sync_folder(dir_);
  if (synced < 0) aside.keep();
  must(synced, "sync the folder", dir_);
}

// ---- reading

std::vector<std::int64_t> CheckpointFolder::list() const {
  std::vector<std::int64_t> steps;
  for (const std::string& name : entries(dir_)) {
    if (const std::optional<std::int64_t> step = step_from_name(name)) steps.push_back(*step);
  }
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

Manifest CheckpointFolder::read_manifest(std::int64_t step) const {
  const fs::path checkpoint = path(step);
  const std::string name(kManifestName);
  const OpenFile file = open_file(checkpoint, name);
  if (file.size > kLargestManifest) {
    damaged(checkpoint, host::quote(name) + " has " + std::to_string(file.size) +
                            " bytes, at most " + std::to_string(kLargestManifest) + " are allowed");
  }
  std::string text;
  read_all(file, checkpoint, name, [&](std::span<const std::byte> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  Manifest manifest = parse_manifest(text, checkpoint / name);
  if (manifest.step != step) {
    damaged(checkpoint, host::quote(name) + " is of step " + std::to_string(manifest.step) +
                            ", expected " + std::to_string(step));
  }
  return manifest;
}

Manifest CheckpointFolder::verify(std::int64_t step) const {
  Manifest manifest = read_manifest(step);
  for (const auto& [name, digest] : manifest.files) verify_file(path(step), name, digest);
  return manifest;
}

std::optional<Manifest> CheckpointFolder::newest_valid(std::vector<std::string>* skipped) const {
  std::vector<std::string> reasons;
  for (const std::int64_t step : list()) {
    try {
      Manifest manifest = verify(step);
      if (skipped != nullptr) skipped->insert(skipped->end(), reasons.begin(), reasons.end());
      return manifest;
    } catch (const UnknownFormat&) {
      throw;
    } catch (const diag::Error& error) {
      reasons.emplace_back(error.what());
    }
  }
  if (reasons.empty()) return std::nullopt;
  if (skipped != nullptr) skipped->insert(skipped->end(), reasons.begin(), reasons.end());
  throw diag::Error(
      diag::Exit::failed,
      "no checkpoint in " + host::quote(dir_.native()) + " is valid:" + joined(reasons),
      "restore one from a copy, or start a new run");
}

// ---- retention

bool CheckpointFolder::is_whole(const Manifest& manifest) const {
  return std::ranges::all_of(manifest.files, [&](const auto& file) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path(manifest.step) / file.first, error);
    return !error && size == file.second.size;
  });
}

std::vector<Manifest> CheckpointFolder::whole_checkpoints() const {
  std::vector<Manifest> out;
  for (const std::int64_t step : list()) {
    try {
      Manifest manifest = read_manifest(step);
      if (is_whole(manifest)) out.push_back(std::move(manifest));
    } catch (const diag::Error&) {
      // Not whole; verify() says why to whoever asks for it.
    }
  }
  return out;
}

std::vector<std::int64_t> CheckpointFolder::retain(const RetentionPolicy& policy) {
  if (policy.keep_last < 1 || policy.top_k < 0) {
    throw std::invalid_argument("a retention policy keeps at least the last checkpoint");
  }
  const std::vector<Manifest> newest_first = whole_checkpoints();
  std::set<std::int64_t> kept = policy.protected_steps;
  const std::size_t last =
      std::min(newest_first.size(), static_cast<std::size_t>(policy.keep_last));
  for (std::size_t i = 0; i < last; ++i) kept.insert(newest_first[i].step);
  for (const std::int64_t step : best_steps(newest_first, policy)) kept.insert(step);
  if (const std::optional<std::int64_t> best = linked(Link::best)) kept.insert(*best);

  std::vector<std::int64_t> removed;
  std::vector<fs::path> graves;
  for (const Manifest& manifest : newest_first) {
    if (kept.contains(manifest.step)) continue;
    const fs::path grave = dir_ / scratch_name(kTempPrefix, manifest.step);
    must(ops_.rename(path(manifest.step), grave), "remove", path(manifest.step));
    graves.push_back(grave);
    removed.push_back(manifest.step);
  }
  if (removed.empty()) return removed;
  // Their names are gone for good before their files are: none comes back by halves.
  must(ops_.sync_folder(dir_), "sync the folder", dir_);
  for (const fs::path& grave : graves) must(remove_all(ops_, grave), "remove", grave);
  return removed;
}

void CheckpointFolder::link(Link link, std::int64_t step) {
  Scratch scratch(ops_, dir_ / scratch_name(kTempPrefix, step));
  const fs::path target = dir_ / link_name(link);
  must(ops_.symlink(step_name(step), scratch.path()), "make the link", scratch.path());
  must(ops_.rename(scratch.path(), target), "rename to", target);
  scratch.keep();
  must(ops_.sync_folder(dir_), "sync the folder", dir_);
}

std::optional<std::int64_t> CheckpointFolder::linked(Link link) const {
  std::error_code error;
  const fs::path target = fs::read_symlink(dir_ / link_name(link), error);
  if (error) return std::nullopt;
  const std::optional<std::int64_t> step = step_from_name(target.native());
  if (!step || !fs::is_directory(path(*step), error)) return std::nullopt;
  return step;
}

std::vector<std::string> CheckpointFolder::clean_leftovers() {
  std::vector<Leftover> leftovers = dead_writers_leftovers(dir_);
  if (leftovers.empty()) return {};
  // A writer killed after its last rename may have left both the old and the new one: the new name
  // must be on disk before the old files go.
  must(ops_.sync_folder(dir_), "sync the folder", dir_);
  std::vector<std::string> cleaned;
  for (const Leftover& left : leftovers) {
    const bool was_moved_away = left.aside && !is_taken(path(left.step));
    const int result = was_moved_away ? ops_.rename(dir_ / left.name, path(left.step))
                                      : remove_all(ops_, dir_ / left.name);
    if (result == 0) cleaned.push_back(left.name);
  }
  must(ops_.sync_folder(dir_), "sync the folder", dir_);
  return cleaned;
}

}  // namespace runner::store
