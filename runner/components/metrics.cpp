#include <charconv>
#include <cmath>

#include "runner/components/component.h"

namespace runner::components {

namespace {

/// The k of "top<k>": decimal digits without a leading zero.
std::optional<std::int64_t> parse_top(std::string_view name) {
  constexpr std::string_view kTop = "top";
  if (!name.starts_with(kTop)) return {};
  const std::string_view digits = name.substr(kTop.size());
  if (digits.empty() || digits.front() < '1' || digits.front() > '9') return {};
  std::int64_t k = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
  if (error != std::errc{} || end != digits.data() + digits.size()) return {};
  return k;
}

}  // namespace

std::optional<MetricName> parse_metric(std::string_view name) {
  using Kind = MetricName::Kind;
  if (name == "loss") return MetricName{.kind = Kind::loss};
  if (name == "accuracy") return MetricName{.kind = Kind::accuracy};
  if (name == "mae") return MetricName{.kind = Kind::mae};
  if (name == "r2") return MetricName{.kind = Kind::r2};
  if (const auto k = parse_top(name)) return MetricName{.kind = Kind::top_k, .k = *k};
  return {};
}

bool higher_is_better(MetricName::Kind kind) {
  switch (kind) {
    case MetricName::Kind::accuracy:
    case MetricName::Kind::top_k:
    case MetricName::Kind::r2:
      return true;
    case MetricName::Kind::loss:
    case MetricName::Kind::mae:
      return false;
  }
  return false;
}

bool EarlyStopper::observe(double value) {
  const bool improved =
      std::isfinite(value) && (!state_.started || (maximise_ ? value - min_delta_ > state_.best
                                                             : value + min_delta_ < state_.best));
  if (improved) {
    state_ = {.best = value, .bad_checks = 0, .started = true};
    return false;
  }
  ++state_.bad_checks;
  return state_.bad_checks >= patience_;
}

}  // namespace runner::components
