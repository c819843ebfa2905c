#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "runner/check/check.h"
#include "runner/cli/options.h"
#include "runner/config/load.h"
#include "runner/diag/diagnostic.h"
#include "runner/launch/topology.h"
#include "runner/plan/plan.h"

namespace runner::cli {

/// Room that a run folder needs beside its checkpoints: logs, metrics.csv, the plan.
inline constexpr std::int64_t kLogBytes = std::int64_t{1} << 20;

/// What an experiment is judged for.
struct Surroundings {
  bool here = false;  ///< this machine: its GPUs, memory, disk and the dataset's files
  std::optional<std::int64_t> gpus_available;  ///< else a machine with so many GPUs, if given
  std::filesystem::path base =
      std::filesystem::current_path();  ///< of the datasets' relative paths
  launch::ByHand by_hand = {};  ///< what, beside the environment, tells who started this process
};

/// What the command line says: --here, --gpus-available N, or neither, which leaves the machine
/// open.
[[nodiscard]] Surroundings surroundings(const Options& options);

/// One experiment file, read and judged. Spans point into `sources`, so it doesn't move.
struct Judged {
  diag::Sources sources;
  diag::Sink sink;
  std::optional<config::Experiment> experiment;  ///< nothing when the file couldn't be read
  std::optional<check::Verdict> verdict;  ///< nothing when the experiment has errors of its own
  datasets::Context context;              ///< where the dataset's files lie

  Judged() = default;
  Judged(const Judged&) = delete;
  Judged& operator=(const Judged&) = delete;
};

/// Reads, decodes and judges; everything wrong with the file lies in `judged.sink`. Throws
/// diag::Error when it judges for this machine and the variables of a launcher make no sense.
void judge_file(const std::filesystem::path& file, std::span<const config::Override> overrides,
                const Surroundings& surroundings, Judged& judged);

/// The plan of a file without errors.
[[nodiscard]] plan::Plan make_plan(const Judged& judged, plan::Mode mode, const Options& options);

/// Prints an error as main does: "error: message", "  help: …", "  log: …", to stderr; without the
/// lines that have nothing to say.
void print_error(std::string_view message, std::string_view help, std::string_view log = {});

/// True if stderr (or stdout) is a terminal that takes colours.
[[nodiscard]] bool color(int fd);

}  // namespace runner::cli
