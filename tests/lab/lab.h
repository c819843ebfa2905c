// Runs of several launchers, on hosts that tests/lab/with_lab makes.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/e2e/process.h"
#include "tests/fakes/temp_folder.h"

namespace runner::lab {

using Arguments = std::vector<std::string>;

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// How often `part` comes in `text`.
inline int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Whether `condition` comes true in so many seconds.
inline bool comes_true(const std::function<bool()>& condition, double seconds = 60) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return condition();
}

/// A program that runs beside the test, which ends it at the latest.
class Running {
 public:
  explicit Running(e2e::Call call) {
    // Looks the program up in PATH.
    call.arguments.insert(call.arguments.begin(), "/usr/bin/env");
    auto started = std::make_shared<std::promise<pid_t>>();
    call.meanwhile = [started](pid_t pid) { started->set_value(pid); };
    end_ = std::async(std::launch::async, [call = std::move(call)] { return e2e::run(call); });
    pid_ = started->get_future().get();
  }
  Running(Running&&) = default;
  Running& operator=(Running&&) = delete;
  ~Running() {
    if (end_.valid() && !ended()) kill(pid_, SIGKILL);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool ended() const {
    return end_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  /// What it came to.
  [[nodiscard]] e2e::Result result() { return end_.get(); }

 private:
  std::future<e2e::Result> end_;
  pid_t pid_ = 0;
};

/// Seconds of training on two processors.
inline const std::string kShort =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [16]\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 8\n"
    "[trainer]\nbackend = \"ddp\"\nthreads = 1\nmax_steps = 20\n"
    "[optimizer]\nname = \"adamw\"\nlr = 1e-3\n";

/// Longer than any test: to be stopped.
inline const std::string kLong =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [16]\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 8\n"
    "[trainer]\nbackend = \"ddp\"\nthreads = 1\nmax_epochs = 100000\n"
    "[optimizer]\nname = \"adamw\"\nlr = 1e-3\n";

/// A folder with an experiment t.toml, in which runs are made; all hosts see it.
class Bench {
 public:
  explicit Bench(const std::string& experiment = kShort) { write("t.toml", experiment); }

  void write(const std::string& name, const std::string& text) const {
    e2e::write_file(folder_.path() / name, text);
  }
  [[nodiscard]] std::filesystem::path path() const { return folder_.path(); }

  /// A program that runs in the folder.
  [[nodiscard]] Running start(const Arguments& arguments, double timeout = 120) const {
    return Running({.arguments = arguments, .folder = folder_.path(), .timeout = timeout});
  }
  [[nodiscard]] e2e::Result run(const Arguments& arguments, double timeout = 120) const {
    return start(arguments, timeout).result();
  }

  /// The run folders of the experiment, oldest first.
  [[nodiscard]] std::vector<std::filesystem::path> runs() const {
    return e2e::entries(folder_.path() / "runs/t");
  }
  [[nodiscard]] std::filesystem::path only_run() const {
    REQUIRE(runs().size() == 1);
    return runs().front();
  }
  /// Whether the newest run has trained for a while.
  [[nodiscard]] bool trains() const {
    return !runs().empty() && count(e2e::read_file(runs().back() / "metrics.csv"), "\n") > 3;
  }

 private:
  TempFolder folder_;
};

inline nlohmann::json manifest(const std::filesystem::path& run) {
  return nlohmann::json::parse(e2e::read_file(run / "manifest.json"));
}

inline std::string weights_hash(const std::filesystem::path& run) {
  return manifest(run).at("weights_xxh3_128").get<std::string>();
}

/// The weights of the short experiment after a run of so many processes that one launcher starts.
inline std::string weights_on_one_machine(int processes) {
  const Bench bench;
  const e2e::Result result = bench.run(
      {e2e::runner_path(), "t.toml", "trainer.num_processes=" + std::to_string(processes)});
  REQUIRE_MESSAGE(result.status == 0, result.err);
  return weights_hash(bench.only_run());
}

/// Processes whose command line holds the text.
inline std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> pids;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (has(e2e::read_file(entry.path() / "cmdline"), text)) pids.push_back(std::stoi(name));
  }
  return pids;
}

/// The variable as the process got it at its start; "(not set)" otherwise.
inline std::string variable_of(pid_t pid, const std::string& name) {
  const std::string all =
      std::string(1, '\0') + e2e::read_file("/proc/" + std::to_string(pid) + "/environ");
  const std::string mark = std::string(1, '\0') + name + "=";
  const std::size_t at = all.find(mark);
  if (at == std::string::npos) return "(not set)";
  return all.c_str() + at + mark.size();
}

}  // namespace runner::lab
