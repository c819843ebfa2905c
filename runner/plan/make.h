#pragma once

#include "runner/check/check.h"
#include "runner/config/experiment.h"
#include "runner/plan/plan.h"

namespace runner::plan {

/// The plan of a judged experiment without errors; a total function. Run folder, resume point and
/// the like are the launcher's to fill in.
[[nodiscard]] Plan make(const config::Experiment& experiment, const check::Verdict& verdict,
                        Mode mode);

/// The plan as a person reads it before the first step, in at most `width` columns.
[[nodiscard]] std::string print(const Plan& plan, int width);

}  // namespace runner::plan
