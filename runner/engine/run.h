// engine: what runner-worker does with a plan.
#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>

#include "runner/host/clock.h"
#include "runner/plan/plan.h"

namespace runner::engine {

/// Trains or tests as the plan says, in its run folder, printing progress and a summary. Returns
/// the exit status: 0, or 128 + n after signal n. Throws diag::Error and what LibTorch throws.
/// `start`: when the process began, on `clock`.
int run_plan(const plan::Plan& plan, const std::atomic<int>& signal, host::Clock& clock,
             host::Seconds start);

/// A failure as it is printed, whatever was thrown.
struct FailureRecord {
  std::string message;
  std::string help;
  int exit = 1;
  bool of_exchange = false;  ///< most likely the consequence of another rank's end
};
/// Of the exception being handled; to be called in a catch block. Without LibTorch's stack traces,
/// and with its own words for memory that ran out.
[[nodiscard]] FailureRecord describe_failure();

}  // namespace runner::engine
