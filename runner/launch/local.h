// launch: Plan -> running processes.
//
// The launcher starts `runner-worker`, passes signals on, waits, and brings back the exit status
// and, after a failure, the worker's own record of it. A worker never outlives its launcher: the
// kernel ends it when the launcher dies, SIGKILL included.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runner/plan/plan.h"

namespace runner::launch {

/// What a worker wrote about its failure.
struct Failure {
  std::string message;
  std::string help;
};

struct Outcome {
  int exit_status = 0;             ///< of `runner`: diag::Exit, or 128 + n after signal n
  std::optional<Failure> failure;  ///< set unless exit_status is 0 or a signal's
};

/// Writes the plan into its run folder (plan.json, test-plan.json for an evaluation), runs the
/// worker to its end and reports. The worker is its own process group, so a Ctrl-C of the terminal
/// reaches it once, through here. Throws diag::Error (machine) when the worker can't be started.
[[nodiscard]] Outcome run_local(const plan::Plan& plan, const std::filesystem::path& worker);

/// Writes `text` to `path` by way of a temporary file beside it, so that no reader sees half of it.
/// Throws diag::Error (machine).
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace runner::launch
