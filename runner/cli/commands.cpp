#include "runner/cli/commands.h"

#include <array>

namespace runner::cli {

std::span<const Command> commands() {
  static const std::array<Command, 13> kCommands = {{
      {"", false, "", "check, plan and train", run_command},
      {"check", false, "FILE …",
       "say everything that is wrong with experiment files; trains nothing", check_command},
      {"plan", false, "FILE", "what would happen: devices, batches, steps, memory, inferred values",
       plan_command},
      {"print-config", false, "FILE", "every value, and where it came from, as TOML",
       print_config_command},
      {"summary", false, "FILE", "the model's layers, shapes, parameters and FLOPs",
       summary_command},
      {"resume", true, "RUN", "go on with a stopped run, exactly; overrides are applied and listed",
       resume_command},
      {"test", true, "RUN", "evaluate a run's best checkpoint on the test samples", test_command},
      {"list", false, "[models …]", "what is registered", list_command},
      {"describe", true, "KIND/NAME", "the options of a model, a dataset, … or of a section",
       describe_command},
      {"matrix", false, "", "which settings work together", matrix_command},
      {"explain", true, "CODE",
       "what a diagnostic means; or, with a file, where a key's value came from", explain_command},
      {"help", false, "", "this text", help_command},
      {"version", false, "", "the version", version_command},
  }};
  return kCommands;
}

}  // namespace runner::cli
