#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "runner/check/check.h"
#include "runner/diag/render.h"

namespace runner::check {

using Keys = std::vector<std::pair<std::string, registry::Value>>;

/// The experiment that most tests start from: 1437 samples to train, 360 to validate.
inline Keys base() {
  return {{"name", "t"},
          {"model.name", "mlp"},
          {"dataset.name", "digits"},
          {"dataset.batch_size", 32},
          {"trainer.max_epochs", 1},
          {"optimizer.name", "sgd"},
          {"optimizer.lr", 0.1}};
}

/// `changes` over the base; a change to nothing drops the key.
inline Keys base_with(const Keys& changes) {
  Keys keys = base();
  for (const auto& [key, value] : changes) {
    std::erase_if(keys, [&key = key](const auto& pair) { return pair.first == key; });
    if (value.has_value()) keys.emplace_back(key, value);
  }
  return keys;
}

/// An experiment of dotted keys, judged. Each key lies on a line of its own in "t.toml": its text
/// is "key = value".
class Judged {
 public:
  explicit Judged(const Keys& keys, const MachineView& machine = {}) {
    std::string text;
    for (const auto& [key, value] : keys) text += key + " = " + registry::to_toml(value) + "\n";
    const diag::SourceFile* file = sources_.add("t.toml", text);
    registry::Value::Table values;
    std::map<std::string, config::Origin> origins;
    std::uint32_t line = 0;
    for (const auto& [key, value] : keys) {
      const diag::Span at{.file = file, .line = ++line, .column = 1, .length = 1};
      const config::Origin origin{
          .kind = config::Origin::Kind::file, .value = at, .key = at, .overridden = {}};
      origins[key] = origin;
      put(values, key, value);
      const std::size_t dot = key.find('.');
      if (dot != std::string::npos) origins.emplace(key.substr(0, dot), origin);
    }
    experiment = config::decode(values, std::move(origins), sink);
    REQUIRE(sink.all().empty());
    verdict = judge(experiment, machine, {}, sink);
  }

  /// "trainer.gpus G001 message" of each diagnostic, in order; the key is that of its line.
  [[nodiscard]] std::vector<std::string> found() const {
    std::vector<std::string> lines;
    for (const diag::Diagnostic& d : sink.all()) {
      lines.push_back(place(d.at) + " " + std::string(diag::info(d.code).id) + " " + d.message);
    }
    return lines;
  }
  /// "key = value: reason [code]" of an inferred key, or "key: reason" of a remark; "" if none.
  [[nodiscard]] std::string inferred(std::string_view key) const {
    for (const Inference& i : verdict.inferred) {
      if (i.key != key) continue;
      return (i.value.empty() ? "" : i.value + ": ") + i.reason +
             (i.code.empty() ? "" : " [" + i.code + "]");
    }
    return {};
  }
  [[nodiscard]] std::string help() const { return sink.all().at(0).help; }
  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> texts;
    for (const diag::Note& note : sink.all().at(0).notes) {
      texts.push_back(place(note.at) + " " + note.message);
    }
    return texts;
  }

  diag::Sink sink;
  config::Experiment experiment;
  Verdict verdict;

 private:
  static std::string place(const diag::Span& at) {
    if (at.file == nullptr) return "-";
    const std::string_view line = at.file->line(at.line);
    return std::string(line.substr(0, line.find(' ')));
  }
  static void put(registry::Value::Table& values, const std::string& key,
                  const registry::Value& value) {
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos) {
      values.emplace_back(key, value);
      return;
    }
    const std::string section = key.substr(0, dot);
    for (auto& [name, table] : values) {
      if (name != section) continue;
      std::get<registry::Value::Table>(table.data).emplace_back(key.substr(dot + 1), value);
      return;
    }
    values.emplace_back(section, registry::Value::Table{{key.substr(dot + 1), value}});
  }

  diag::Sources sources_;
};

}  // namespace runner::check
