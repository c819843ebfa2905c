#pragma once

#include <span>
#include <string>
#include <string_view>

namespace runner::cli {

struct Options;

/// One row of the table of commands; without a flag, the one that `runner FILE` means.
struct Command {
  std::string flag;  ///< "check" for --check
  bool takes_argument = false;
  std::string usage;                             ///< what follows the flag in the help
  std::string doc;                               ///< one line
  int (*run)(const Options& options) = nullptr;  ///< returns the exit status
};

[[nodiscard]] std::span<const Command> commands();

int check_command(const Options& options);
int plan_command(const Options& options);
int print_config_command(const Options& options);
int summary_command(const Options& options);
int list_command(const Options& options);
int describe_command(const Options& options);
int matrix_command(const Options& options);
int explain_command(const Options& options);
int run_command(const Options& options);
int resume_command(const Options& options);
int test_command(const Options& options);
int help_command(const Options& options);
int version_command(const Options& options);

}  // namespace runner::cli
