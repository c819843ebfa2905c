#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runner/config/load.h"
#include "runner/diag/render.h"
#include "tests/fakes/fake_environment.h"
#include "tests/fakes/fake_files.h"

namespace runner::config {

/// The experiment that most tests start from.
inline const std::string kBase =
    "name = \"t\"\n"
    "seed = 1\n"
    "[model]\n"
    "name = \"mlp\"\n"
    "[dataset]\n"
    "name = \"digits\"\n"
    "batch_size = 32\n"
    "[trainer]\n"
    "max_epochs = 1\n"
    "[optimizer]\n"
    "name = \"sgd\"\n"
    "lr = 0.1\n";

/// Files and environment in memory, and what loading one of the files gives.
struct Loading {
  host::FakeFiles files;
  host::FakeEnvironment environment;
  diag::Sources sources;
  diag::Sink sink;
  std::optional<Experiment> experiment;

  explicit Loading(std::string text = kBase) { files.set("t.toml", std::move(text)); }

  Loading& load(std::initializer_list<const char*> overrides = {}) {
    std::vector<Override> list;
    int position = 1;
    for (const char* text : overrides) list.push_back({.text = text, .position = ++position});
    experiment = config::load("t.toml", list, files, environment, sources, sink);
    return *this;
  }
  /// "t.toml:3:1 C001 message" of each diagnostic, in order.
  [[nodiscard]] std::vector<std::string> found() const {
    std::vector<std::string> lines;
    for (const diag::Diagnostic& d : sink.sorted()) {
      lines.push_back(diag::place(d.at) + " " + std::string(diag::info(d.code).id) + " " +
                      d.message);
    }
    return lines;
  }
  [[nodiscard]] std::string help(std::size_t index = 0) const {
    return sink.sorted().at(index).help;
  }
};

}  // namespace runner::config
