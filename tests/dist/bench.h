// What the tests of runs of several ranks share: a folder with an experiment, the processes of its
// runs, and the weights that they leave.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runner/store/checkpoint.h"
#include "runner/store/safetensors.h"
#include "tests/e2e/process.h"
#include "tests/fakes/temp_folder.h"

namespace runner::dist {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;
using Arguments = std::vector<std::string>;

/// A backend that trains with several ranks on the CPUs of one machine.
struct Backend {
  std::string name;
  Arguments overrides;  ///< what asks for it, beside trainer.num_processes
};
inline const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {{"ddp", {"trainer.backend=ddp"}}};
  return all;
}

/// Few repetitions unless RUNNER_LONG_TESTS asks for as many as the figures in the documentation
/// stand on.
inline int repetitions(int few, int many) {
  return std::getenv("RUNNER_LONG_TESTS") != nullptr ? many : few;
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Polls until `condition` holds; false if it doesn't within the time.
inline bool wait_for(const std::function<bool()>& condition, double seconds = 30) {
  const auto start = Clock::now();
  while (!condition()) {
    if (seconds_since(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

/// One seed for all random moments; printed, so that a failure can be repeated.
inline std::mt19937& random_source() {
  static std::mt19937 source = [] {
    const char* given = std::getenv("RUNNER_TEST_SEED");
    const unsigned seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                                           : std::random_device{}();
    MESSAGE("RUNNER_TEST_SEED=" << seed);
    return std::mt19937(seed);
  }();
  return source;
}
inline int random_number(int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random_source());
}

// ---- processes

struct Worker {
  pid_t pid = 0;
  int rank = 0;
};

/// A variable of another process's environment at its start.
inline std::optional<std::string> variable_of(pid_t pid, const std::string& name) {
  const std::string all = '\0' + e2e::read_file("/proc/" + std::to_string(pid) + "/environ");
  const std::size_t at = all.find('\0' + name + '=');
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 2;
  return all.substr(begin, all.find('\0', begin) - begin);
}

/// The workers of runs that were started in this folder, by rank.
inline std::vector<Worker> workers_of(const fs::path& folder) {
  std::vector<Worker> result;
  for (const pid_t pid : e2e::workers_in(folder)) {
    const auto rank = variable_of(pid, "RANK");
    if (rank) result.push_back({pid, std::atoi(rank->c_str())});
  }
  std::sort(result.begin(), result.end(),
            [](const Worker& a, const Worker& b) { return a.rank < b.rank; });
  return result;
}

inline std::optional<pid_t> worker_of_rank(const fs::path& folder, int rank) {
  for (const Worker& w : workers_of(folder)) {
    if (w.rank == rank) return w.pid;
  }
  return {};
}

// ---- runs

/// A folder with the experiment t.toml, and the runs of it.
struct Bench {
  TempFolder folder;

  explicit Bench(const std::string& text) { e2e::write_file(folder.path() / "t.toml", text); }

  [[nodiscard]] e2e::Result run(Arguments arguments, std::function<void(pid_t)> meanwhile = {},
                                std::vector<std::string> environment = {}) const {
    arguments.insert(arguments.begin(), e2e::runner_path());
    return e2e::run({.arguments = std::move(arguments),
                     .environment = std::move(environment),
                     .folder = folder.path(),
                     .meanwhile = std::move(meanwhile)});
  }
  /// A whole run of t.toml by `ranks` processes, which must end well; gives its folder.
  [[nodiscard]] fs::path train(int ranks, const Backend& backend, Arguments overrides = {}) const {
    Arguments arguments = {"t.toml", "--quiet"};
    if (ranks > 1) {
      arguments.push_back("trainer.num_processes=" + std::to_string(ranks));
      arguments.insert(arguments.end(), backend.overrides.begin(), backend.overrides.end());
    }
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    const e2e::Result result = run(std::move(arguments));
    CAPTURE(result.out + result.err);
    REQUIRE(result.status == 0);
    return last_run();
  }
  /// The run folders, oldest first.
  [[nodiscard]] std::vector<fs::path> runs() const {
    return e2e::entries(folder.path() / "runs/t");
  }
  [[nodiscard]] fs::path last_run() const {
    REQUIRE(!runs().empty());
    return runs().back();
  }
  [[nodiscard]] std::vector<Worker> workers() const { return workers_of(folder.path()); }
  /// Waits until all ranks train; false if they never do.
  [[nodiscard]] bool wait_for_training(int ranks) const {
    return wait_for([&] {
      const auto all = runs();
      if (all.empty()) return false;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string log = rank == 0 ? "runner.log" : "rank-" + std::to_string(rank) + ".log";
        if (!has(e2e::read_file(all.back() / log), "' starts on ")) return false;
      }
      return true;
    });
  }
  [[nodiscard]] bool wait_for_checkpoint() const {
    return wait_for([&] {
      const auto all = runs();
      return !all.empty() && !store::CheckpointFolder(all.back() / "checkpoints").list().empty();
    });
  }
  [[nodiscard]] bool all_gone(double seconds) const {
    return wait_for([&] { return workers().empty(); }, seconds);
  }
};

inline Json manifest_of(const fs::path& run) {
  return Json::parse(e2e::read_file(run / "manifest.json"));
}
inline std::string weights_hash(const fs::path& run) {
  return manifest_of(run).at("weights_xxh3_128").get<std::string>();
}
inline std::string metrics_of(const fs::path& run) { return e2e::read_file(run / "metrics.csv"); }

// ---- weights

using Weights = std::map<std::string, std::vector<float>>;

/// The arrays of the newest checkpoint that hold 32-bit numbers.
inline Weights read_weights(const fs::path& run) {
  const store::CheckpointFolder folder(run / "checkpoints");
  const auto steps = folder.list();
  REQUIRE(!steps.empty());
  const store::SafetensorsFile file(folder.path(steps.front()) / "model.safetensors");
  Weights weights;
  for (const store::TensorView& tensor : file.tensors()) {
    if (tensor.dtype != store::DType::f32) continue;
    std::vector<float>& values = weights[tensor.name];
    values.resize(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  }
  REQUIRE(!weights.empty());
  return weights;
}

/// The largest difference of two weights, relative to the largest weight.
inline double difference(const Weights& a, const Weights& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  double apart = 0;
  for (const auto& [name, values] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    const std::vector<float>& others = b.at(name);
    REQUIRE(values.size() == others.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      REQUIRE(std::isfinite(values[i]));
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      apart = std::max(apart, std::abs(static_cast<double>(values[i]) - others[i]));
    }
  }
  REQUIRE(largest > 0);
  return apart / largest;
}

inline std::string set(const std::string& key, std::int64_t value) {
  return key + "=" + std::to_string(value);
}

}  // namespace runner::dist
