#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>

#include "runner/cli/commands.h"
#include "runner/cli/judged.h"
#include "runner/cli/options.h"
#include "runner/diag/error.h"

namespace {

int run(int argc, const char* const* argv) {
  const runner::cli::Options options = runner::cli::parse_command_line(argc, argv);
  for (const runner::cli::Command& command : runner::cli::commands()) {
    if (command.flag == (options.command == "run" ? "" : options.command))
      return command.run(options);
  }
  return static_cast<int>(runner::diag::Exit::invalid);
}

}  // namespace

// The one place that turns exceptions into a message and an exit status.
int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  std::signal(SIGPIPE, SIG_IGN);  // `runner --list | head` ends quietly
  try {
    const int status = run(argc, argv);
    std::cout.flush();
    if (!std::cout && errno != EPIPE) {
      throw runner::diag::Error(runner::diag::Exit::failed,
                                std::string("can't write the output: ") + std::strerror(errno));
    }
    return status;
  } catch (const runner::diag::Error& error) {
    runner::cli::print_error(error.what(), error.help());
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    runner::cli::print_error(std::string("internal error: ") + error.what(),
                             "this is a bug in runner");
    return static_cast<int>(runner::diag::Exit::failed);
  }
}
