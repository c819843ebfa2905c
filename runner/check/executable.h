#pragma once

#include <optional>
#include <string>

#include "runner/check/check.h"

namespace runner::check {

/// What of a verdict this version can't run yet, in one line; nothing if it can. Judging covers
/// more than running, so that files can be written and checked ahead.
[[nodiscard]] std::optional<std::string> not_yet_executable(const Verdict& verdict);

}  // namespace runner::check
