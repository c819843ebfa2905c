#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "runner/config/experiment.h"
#include "runner/diag/diagnostic.h"
#include "runner/host/environment.h"
#include "runner/host/files.h"

namespace runner::config {

/// One argument that isn't a flag or a file.
struct Override {
  std::string text;  ///< "optimizer.lr=3e-4", "trainer.metrics+=top5", "-model.dropout"
  int position = 0;  ///< among the arguments that aren't flags, from 1
};

/// True for what looks like an override: key=value, key+=value or -key.path. A file name with '='
/// in it is written with a slash ("./a=b.toml").
[[nodiscard]] bool is_override(std::string_view argument);

/// Reads the file, what it extends, the overrides and the environment; reports all that is wrong.
/// Nothing when the file can't be read or isn't TOML; otherwise an experiment, which is to be used
/// only if the sink has no errors.
[[nodiscard]] std::optional<Experiment> load(const std::filesystem::path& file,
                                             std::span<const Override> overrides,
                                             const host::Files& files,
                                             const host::Environment& environment,
                                             diag::Sources& sources, diag::Sink& sink);

/// The resolved experiment as valid TOML, each value with a comment that says where it came from;
/// reading it back gives the same run.
[[nodiscard]] std::string print_config(const Experiment& experiment);

/// Where a key's value came from and which places lost against it; throws diag::Error (invalid) for
/// a key that doesn't exist.
[[nodiscard]] std::string explain_key(const Experiment& experiment, std::string_view key);

}  // namespace runner::config
