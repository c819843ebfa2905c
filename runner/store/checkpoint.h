// Checkpoints: folders that are complete or absent, and that are known to be what was written.
//
//   <dir>/step-0000000400/   model.safetensors  state.json  MANIFEST.json
//         step-0000000450/   ...
//         best -> step-0000000400      last -> step-0000000450     (for people; never trusted)
//         .tmp-...                     (being written, or left by a writer that was killed)
//
// save() writes every file into a fresh .tmp- folder and syncs it, the manifest last; syncs the
// folder; renames it; syncs <dir>. A crash at any point, power loss included, leaves the earlier
// checkpoints as they were and the new one whole or absent. Removal is a rename to .tmp- first, for
// the same reason. One process at a time writes here: hold the run's RunLock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runner/store/file.h"
#include "runner/store/manifest.h"
#include "runner/store/safetensors.h"

namespace runner::store {

struct SafetensorsContent {
  std::vector<TensorView> tensors;
  Metadata metadata = {};
};

/// One file of a checkpoint.
struct Blob {
  std::string name;  ///< plain, no folder
  std::variant<SafetensorsContent, std::string> content;
};

struct RetentionPolicy {
  enum class Mode { min, max };

  int keep_last = 2;        ///< how many of the newest whole checkpoints stay; at least 1
  int top_k = 0;            ///< how many of the best by `metric` stay besides
  std::string metric = {};  ///< checkpoints without it, or with NaN, are never among the best
  Mode mode = Mode::min;
  std::set<std::int64_t> protected_steps = {};
};

enum class Link { best, last };

class CheckpointFolder {
 public:
  /// Nothing is made before the first save.
  explicit CheckpointFolder(std::filesystem::path dir, FileOps& ops = system_file_ops());

  [[nodiscard]] std::filesystem::path path(std::int64_t step) const;

  /// Writes the checkpoint of `manifest.step`, replacing one of that step in a single rename, and
  /// returns the manifest with its `files`. From the return on it survives a loss of power. Throws
  /// FileError that names the path, and for a full disk the needed and the free bytes; nothing half
  /// is left behind then and earlier checkpoints are untouched, so that calling again is safe: the
  /// next attempt writes new files.
  Manifest save(Manifest manifest, std::span<const Blob> blobs);

  /// The steps that have a folder, newest first, unverified. Throws FileError if `dir` is there but
  /// can't be read.
  [[nodiscard]] std::vector<std::int64_t> list() const;

  /// Reads every byte. Throws diag::Error(Exit::failed) that names the file that is missing, has
  /// another size or another hash, with the actual and the expected one; UnknownFormat for a
  /// checkpoint of another format version.
  [[nodiscard]] Manifest verify(std::int64_t step) const;

  /// The newest checkpoint that verifies; nullopt if there is none at all. Each that was passed
  /// over adds its reason to `skipped` (may be null). Throws diag::Error(Exit::failed) with all
  /// reasons if there are checkpoints but none is valid: never a silent fresh start. UnknownFormat
  /// isn't passed over.
  [[nodiscard]] std::optional<Manifest> newest_valid(std::vector<std::string>* skipped) const;

  /// Removes every whole checkpoint (manifest valid, sizes right) that neither `policy` nor the
  /// link `best` keeps, and returns the removed steps, newest first. Damaged ones aren't counted
  /// and stay as they are. Throws FileError, and std::invalid_argument for a policy that would keep
  /// none.
  std::vector<std::int64_t> retain(const RetentionPolicy& policy);

  /// Points `best` or `last` to the checkpoint of `step`, atomically.
  void link(Link link, std::int64_t step);
  /// The step a link points to, if it is one of ours and has a folder. Not verified.
  [[nodiscard]] std::optional<std::int64_t> linked(Link link) const;

  /// Removes what killed writers left, and puts back what one had moved aside; live writers'
  /// folders stay. Returns the names. To be called at the start of a run, under its RunLock.
  std::vector<std::string> clean_leftovers();

 private:
  class Scratch;

  [[nodiscard]] Manifest read_manifest(std::int64_t step) const;
  [[nodiscard]] bool is_whole(const Manifest& manifest) const;
  [[nodiscard]] std::vector<Manifest> whole_checkpoints() const;
  void write_all(const std::filesystem::path& folder, Manifest& manifest,
                 std::span<const Blob> blobs);
  void publish(Scratch& scratch, std::int64_t step);
  void replace(Scratch& scratch, std::int64_t step);
  void move_aside_and_publish(Scratch& scratch, std::int64_t step);

  std::filesystem::path dir_;
  FileOps& ops_;
};

}  // namespace runner::store
