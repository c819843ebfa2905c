#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "runner/diag/error.h"
#include "runner/store/digest.h"

namespace runner::store {

/// The version of MANIFEST.json and of the folder's layout that this build writes, and the newest
/// that it reads.
inline constexpr int kFormatVersion = 1;

/// MANIFEST.json, a checkpoint's last file: what the checkpoint is of, and what its files must be.
struct Manifest {
  int format_version = kFormatVersion;
  std::int64_t step = 0;            ///< optimiser steps done
  std::int64_t epoch = 0;           ///< the epoch of the last batch, counted from 0
  std::int64_t batch_in_epoch = 0;  ///< micro-batches of that epoch done
  bool epoch_complete = false;      ///< that epoch's training is over
  int world_size = 1;               ///< ranks that trained
  std::string config_digest = {};   ///< of the resolved experiment
  std::map<std::string, double> metrics = {};
  std::map<std::string, std::string> extra = {};  ///< whatever else the engine needs to go on
  std::map<std::string, Digest> files = {};       ///< by name, without the manifest; set by save()

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// A manifest of a format that this build doesn't read. Unlike damage it is no reason to fall back
/// to an older checkpoint.
class UnknownFormat : public diag::Error {
 public:
  using diag::Error::Error;
};

/// A file name without a folder, fit to stand in a manifest: not empty, not "." or "..", without
/// '/' or NUL.
[[nodiscard]] bool is_plain_name(std::string_view name);

/// The text of MANIFEST.json. Its last line but one holds the XXH3-128 of the text itself, taken
/// with zeros in the hash's place, so that no byte of it can change unnoticed.
[[nodiscard]] std::string manifest_text(const Manifest& manifest);

/// The reverse. `path` is for messages. Throws diag::Error(Exit::failed) for a text that was
/// changed, UnknownFormat for one of another version.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace runner::store
