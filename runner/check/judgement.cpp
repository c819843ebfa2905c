#include "runner/check/judgement.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace runner::check {

using registry::Value;

namespace {

/// The value that an infer rule gives to its key.
Value value_of(const Rule& rule) {
  if (rule.value == "true" || rule.value == "false") return rule.value == "true";
  if (rule.value.size() >= 2 && rule.value.front() == '"') {
    return std::string(rule.value.substr(1, rule.value.size() - 2));
  }
  throw std::logic_error("rule infers '" + std::string(rule.value) + "'");
}

}  // namespace

std::vector<diag::Note> Judgement::notes(std::span<const std::string_view> keys) const {
  std::vector<diag::Note> result;
  for (const std::string_view key : keys) {
    if (key.empty() || !experiment.is_set(key)) continue;
    const config::Setting* setting = experiment.setting(key);
    if (setting == nullptr) continue;
    result.push_back({.message = std::string(key) + " is " + registry::to_toml(setting->value),
                      .at = experiment.at(key)});
  }
  return result;
}

void Judgement::report(diag::Code code, std::string message, std::string_view key, std::string help,
                       std::initializer_list<std::string_view> others) {
  sink_.report({.code = code,
                .message = std::move(message),
                .at = experiment.at(key),
                .notes = notes({others.begin(), others.size()}),
                .help = std::move(help),
                .key = std::string(key)});
}

void Judgement::report_at(diag::Code code, std::string message, std::string_view key, diag::Span at,
                          std::string help) {
  unknown_.push_back(key);
  sink_.report({.code = code,
                .message = std::move(message),
                .at = at,
                .notes = {},
                .help = std::move(help),
                .key = std::string(key)});
}

void Judgement::bad_value(diag::Code code, std::string message, std::string_view key,
                          std::string help) {
  report_at(code, std::move(message), key, experiment.at(key), std::move(help));
}

void Judgement::bad_element(diag::Code code, std::string message, std::string_view key,
                            std::size_t index, std::string help) {
  const std::string element = std::string(key) + "[" + std::to_string(index) + "]";
  report_at(code, std::move(message), key, experiment.at(element), std::move(help));
}

void Judgement::infer(std::string_view key, const Value& value, std::string reason,
                      std::string code) {
  config::infer(experiment, key, value);
  verdict.inferred.push_back({.key = std::string(key),
                              .value = registry::to_toml(value),
                              .reason = std::move(reason),
                              .code = std::move(code)});
}

void Judgement::remark(std::string_view key, std::string text) {
  verdict.inferred.push_back(
      {.key = std::string(key), .value = {}, .reason = std::move(text), .code = {}});
}

Judgement::Place Judgement::place_of(const Rule& rule) const {
  const auto written = std::find_if(rule.keys.begin(), rule.keys.end(), [this](auto key) {
    return !key.empty() && experiment.is_set(key);
  });
  Place place{.key = written == rule.keys.end() ? rule.keys.front() : *written, .others = {}};
  std::copy_if(rule.keys.begin(), rule.keys.end(), std::back_inserter(place.others),
               [&place](std::string_view key) { return key != place.key; });
  return place;
}

void Judgement::apply(Stage stage) {
  for (const Rule* rule : apply_rules(facts, stage, unknown_)) {
    if (rule->ruling == Ruling::infer) {
      infer(rule->keys.front(), value_of(*rule), rule->message(facts),
            std::string(diag::info(rule->code).id));
      continue;
    }
    const auto [key, others] = place_of(*rule);
    sink_.report({.code = rule->code,
                  .message = rule->message(facts),
                  .at = experiment.at(key),
                  .notes = notes(others),
                  .help = std::string(rule->fix),
                  .key = std::string(key)});
  }
}

}  // namespace runner::check
