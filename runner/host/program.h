// host: another program, run to its end.
#pragma once

#include <string>
#include <vector>

namespace runner::host {

struct ProgramEnd {
  int status = 0;      ///< exit status, or 128 + n after signal n
  std::string output;  ///< what it wrote to its standard output
};

/// Runs `command` (a path and its arguments) with this process's environment; its error output goes
/// nowhere. Throws diag::Error (machine) when it can't be started.
[[nodiscard]] ProgramEnd run_program(const std::vector<std::string>& command);

}  // namespace runner::host
