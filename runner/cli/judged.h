#pragma once

#include <filesystem>
#include <optional>

#include "runner/check/check.h"
#include "runner/cli/options.h"
#include "runner/config/load.h"
#include "runner/diag/diagnostic.h"
#include "runner/plan/plan.h"

namespace runner::cli {

/// One experiment file, read and judged. Spans point into `sources`, so it doesn't move.
struct Judged {
  diag::Sources sources;
  diag::Sink sink;
  std::optional<config::Experiment> experiment;  ///< nothing when the file couldn't be read
  std::optional<check::Verdict> verdict;  ///< nothing when the experiment has errors of its own

  Judged() = default;
  Judged(const Judged&) = delete;
  Judged& operator=(const Judged&) = delete;
};

/// Reads, decodes and judges; everything wrong lies in `judged.sink`.
void judge_file(const std::filesystem::path& file, std::span<const config::Override> overrides,
                const check::MachineView& machine, Judged& judged);

/// What the command line says of the machine: --here looks at this one, --gpus-available describes
/// one, neither leaves it open.
[[nodiscard]] check::MachineView machine_view(const Options& options);
/// This machine, its GPUs, mask and the disk under `root`.
[[nodiscard]] check::MachineView this_machine(const std::filesystem::path& root);

/// Working directory and shipped data, for datasets.
[[nodiscard]] datasets::Context dataset_context();

/// The plan of a file without errors.
[[nodiscard]] plan::Plan make_plan(const Judged& judged, plan::Mode mode, const Options& options);

/// Prints an error as main does: "error: message", "  help: …", to stderr.
void print_error(std::string_view message, std::string_view help);

/// True if stderr (or stdout) is a terminal that takes colours.
[[nodiscard]] bool color(int fd);

}  // namespace runner::cli
