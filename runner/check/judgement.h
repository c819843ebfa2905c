// A judgement in the making: what the passes of check.h hand to each other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runner/check/check.h"
#include "runner/check/rules.h"

namespace runner::check {

class Judgement {
 public:
  Judgement(config::Experiment& e, const MachineView& m, const datasets::Context& c, diag::Sink& s)
      : experiment(e), machine(m), context(c), sink_(s) {}

  config::Experiment& experiment;
  const MachineView& machine;
  const datasets::Context& context;
  Facts facts;
  Verdict verdict;

  /// Reports at the key's place, with a note at each of `others` that is written.
  void report(diag::Code code, std::string message, std::string_view key, std::string help,
              std::initializer_list<std::string_view> others = {});
  /// Reports a value that is wrong by itself; rules stay silent about its key from now on.
  void bad_value(diag::Code code, std::string message, std::string_view key, std::string help);
  /// As bad_value, at an element of a list.
  void bad_element(diag::Code code, std::string message, std::string_view key, std::size_t index,
                   std::string help);
  /// Gives a key that nobody wrote its value, and says so in the plan.
  void infer(std::string_view key, const registry::Value& value, std::string reason,
             std::string code = {});
  /// Says something in the plan.
  void remark(std::string_view key, std::string text);
  /// Reports what the rules of a stage refuse and warn of, and takes over what they infer.
  void apply(Stage stage);

 private:
  /// The first key of a rule that is written, or its first one; and the others.
  struct Place {
    std::string_view key;
    std::vector<std::string_view> others;
  };
  [[nodiscard]] Place place_of(const Rule& rule) const;
  void report_at(diag::Code code, std::string message, std::string_view key, diag::Span at,
                 std::string help);
  [[nodiscard]] std::vector<diag::Note> notes(std::span<const std::string_view> keys) const;

  diag::Sink& sink_;
  std::vector<std::string_view> unknown_;  ///< keys whose value was wrong
};

}  // namespace runner::check
