#include <charconv>
#include <cmath>

#include "runner/components/component.h"

namespace runner::components {

namespace {

constexpr auto kCrossEntropy = registry::rows<CrossEntropy>({
    {.name = "label_smoothing",
     .member = &CrossEntropy::label_smoothing,
     .doc = "share of the target spread evenly over all classes",
     .range = registry::from_to_below(0, 1)},
});
static_assert(registry::covers<CrossEntropy>(kCrossEntropy));
constexpr auto kMse = std::array<registry::Row<Mse>, 0>{};
constexpr auto kL1 = std::array<registry::Row<L1>, 0>{};
constexpr auto kBce = std::array<registry::Row<Bce>, 0>{};

Losses build() {
  Losses all;
  Loss cross_entropy = entry<CrossEntropy, Loss>(
      "cross_entropy", "softmax cross-entropy against class numbers", kCrossEntropy);
  cross_entropy.needs_classes = true;
  all.add(std::move(cross_entropy));
  all.add(entry<Mse, Loss>("mse", "mean squared error", kMse));
  all.add(entry<L1, Loss>("l1", "mean absolute error", kL1));
  Loss bce = entry<Bce, Loss>("bce", "binary cross-entropy of logits against 0 and 1", kBce);
  bce.needs_binary = true;
  all.add(std::move(bce));
  return all;
}

}  // namespace

const Losses& losses() {
  static const Losses all = build();
  return all;
}

std::optional<MetricName> parse_metric(std::string_view name) {
  using Kind = MetricName::Kind;
  if (name == "loss") return MetricName{Kind::loss, 1};
  if (name == "accuracy") return MetricName{Kind::accuracy, 1};
  if (name == "mae") return MetricName{Kind::mae, 1};
  if (name == "r2") return MetricName{Kind::r2, 1};
  constexpr std::string_view kTop = "top";
  if (!name.starts_with(kTop)) return {};
  const std::string_view digits = name.substr(kTop.size());
  std::int64_t k = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
  if (error != std::errc() || end != digits.data() + digits.size() || k < 1 ||
      digits.front() == '0')
    return {};
  return MetricName{Kind::top_k, k};
}

bool higher_is_better(MetricName::Kind kind) {
  using Kind = MetricName::Kind;
  return kind == Kind::accuracy || kind == Kind::top_k || kind == Kind::r2;
}

bool EarlyStopper::observe(double value) {
  const double gain = maximise_ ? value - state_.best : state_.best - value;
  if (std::isfinite(value) && (!state_.started || gain > min_delta_)) {
    state_.best = value;
    state_.started = true;
    state_.bad_checks = 0;
    return false;
  }
  ++state_.bad_checks;
  return state_.bad_checks >= patience_;
}

}  // namespace runner::components
