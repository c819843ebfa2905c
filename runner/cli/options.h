#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/config/load.h"
#include "runner/launch/topology.h"

namespace runner::cli {

/// The command line, taken apart. Flags, files and overrides may come in any order.
struct Options {
  std::string command = "run";  ///< "run", "check", "plan", …: a name of the command table
  std::string argument;  ///< of the command's flag: the run of --resume, the code of --explain
  std::vector<std::string> files;
  std::vector<config::Override> overrides;
  std::string format = "text";
  bool here = false;
  std::optional<std::int64_t> gpus_available;
  bool quiet = false;
  launch::ByHand by_hand;    ///< --node-rank, --master-addr, --master-port
  std::string command_line;  ///< as typed, quoted for a shell where needed
};

/// Throws diag::Error (invalid) for flags that don't exist or don't go together.
[[nodiscard]] Options parse_command_line(int argc, const char* const* argv);

/// What `--help` prints.
[[nodiscard]] std::string help_text();

}  // namespace runner::cli
