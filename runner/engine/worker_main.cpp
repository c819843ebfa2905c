// runner-worker PLAN.json: one rank of a run. Started by runner, not by people.
#include <c10/util/Logging.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runner/diag/error.h"
#include "runner/engine/questions.h"
#include "runner/engine/run.h"
#include "runner/engine/signals.h"
#include "runner/host/clock.h"
#include "runner/host/process.h"
#include "runner/plan/plan.h"
#include "runner/report/log.h"

namespace {

using runner::engine::FailureRecord;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw runner::diag::Error(runner::diag::Exit::failed, "cannot read '" + path + "'");
  return text;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// To the launcher, which prints it; to people if there is no launcher.
void report_failure(const FailureRecord& failure) {
  runner::report::log::close_console();
  runner::report::log::error(failure.message);
  const std::string path = variable("RUNNER_FAILURE_FILE");
  if (path.empty()) {
    std::cerr << "error: " << failure.message << '\n';
    if (!failure.help.empty()) std::cerr << "help: " << failure.help << '\n';
    return;
  }
  nlohmann::json record = {{"message", failure.message},
                           {"help", failure.help},
                           {"exit", failure.exit},
                           {"rank", std::atoi(variable("RANK").c_str())},
                           {"host", runner::host::host_name()},
                           {"kind", failure.of_exchange ? "collective" : "own"}};
  std::ofstream(path) << record.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                      << '\n';
}

/// A library that gives up in a thread of its own (NCCL's watchdog) ends the process; its reason
/// must not be lost.
[[noreturn]] void report_and_end() {
  FailureRecord failure{.message = "the worker was ended from within", .help = ""};
  if (std::current_exception()) failure = runner::engine::describe_failure();
  report_failure(failure);
  runner::report::log::flush();
  std::_Exit(failure.exit);
}

}  // namespace

int main(int argc, char** argv) {
  runner::host::Clock& clock = runner::host::system_clock();
  const runner::host::Seconds start = clock.now();
  const std::atomic<int>& signal = runner::engine::catch_signals();
  if (const std::string parent = variable("RUNNER_PARENT_PID"); !parent.empty()) {
    runner::engine::die_with_parent(std::atoi(parent.c_str()));
  }
  // c10d warns of what isn't a user's to mend, such as a host whose address has no name.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto answer = runner::engine::answer(arguments)) std::_Exit(*answer);
  if (arguments.size() != 1) {
    std::cerr << "usage: runner-worker PLAN.json   (runner starts it)\n";
    return static_cast<int>(runner::diag::Exit::invalid);
  }
  std::set_terminate(report_and_end);
  int status = 0;
  try {
    status = runner::engine::run_plan(runner::plan::from_json(read_file(arguments.front())), signal,
                                      clock, start);
  } catch (...) {
    const FailureRecord failure = runner::engine::describe_failure();
    report_failure(failure);
    status = failure.exit;
  }
  // Without LibTorch's destructors: they take long, do nothing of use, and could wait for a device.
  runner::report::log::flush();
  std::cout.flush();
  std::_Exit(status);
}
