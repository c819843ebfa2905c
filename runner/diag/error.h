#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace runner::diag {

/// Exit statuses of both programs; a run ended by signal n exits 128 + n.
enum class Exit {
  ok = 0,
  failed = 1,        ///< the run failed
  invalid = 2,       ///< usage, or a file or value that is wrong by itself
  incompatible = 3,  ///< settings that can't work together
  machine = 4,       ///< the machine lacks what the plan needs
};

/// What every layer throws for a failure that a person can do something about. Caught once, in
/// main, which prints `what()` and `help()` and exits with `exit()`. Style: lower-case, no final
/// period, the file or key named, both values of a conflict named; help says what to do.
class Error : public std::runtime_error {
 public:
  Error(Exit exit, const std::string& message, std::string help = {})
      : std::runtime_error(message), exit_(exit), help_(std::move(help)) {}

  [[nodiscard]] Exit exit() const { return exit_; }
  [[nodiscard]] const std::string& help() const { return help_; }

 private:
  Exit exit_;
  std::string help_;
};

}  // namespace runner::diag
