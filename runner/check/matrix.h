// The compatibility matrix as people read it; generated from the rules, never written by hand.
#pragma once

#include <string>

#include "runner/diag/diagnostic.h"

namespace runner::check {

/// What `runner --matrix` prints: backend x precision x devices, then the rules.
[[nodiscard]] std::string matrix_text();
/// The same as docs/matrix.md.
[[nodiscard]] std::string matrix_markdown();
/// What `runner --explain CODE` prints: summary, reason and, for a rule, fix and example.
[[nodiscard]] std::string explain(diag::Code code);

}  // namespace runner::check
