#include <algorithm>

#include "registry/suggest.h"
#include "runner/check/passes.h"
#include "runner/check/text.h"

namespace runner::check {

namespace {

constexpr std::string_view kTrain = "train_";
constexpr std::string_view kVal = "val_";

bool has_validation(const datasets::Spec& data) {
  return !data.complete || data.validation_size > 0;
}

/// The columns of metrics.csv that can be monitored.
std::vector<std::string> columns(const Judgement& j) {
  std::vector<std::string> names = {"train_loss"};
  if (!has_validation(j.verdict.data)) return names;
  names.emplace_back("val_loss");
  for (const std::string& metric : j.verdict.metrics) names.push_back("val_" + metric);
  return names;
}

/// "val_accuracy" -> accuracy.
std::optional<components::MetricName> metric_of(std::string_view column) {
  for (const std::string_view prefix : {kTrain, kVal}) {
    if (column.starts_with(prefix)) return components::parse_metric(column.substr(prefix.size()));
  }
  return {};
}

bool is_larger_better(std::string_view column) {
  const auto metric = metric_of(column);
  return metric && components::higher_is_better(metric->kind);
}

std::string_view mode_text(bool maximise) { return maximise ? "max" : "min"; }

std::string unknown_help(const Judgement& j, const std::string& name,
                         const std::vector<std::string_view>& names) {
  if (const std::string_view near = registry::nearest(name, names); !near.empty()) {
    return "did you mean '" + std::string(near) + "'?";
  }
  const auto metric = metric_of(name);
  if (name.starts_with(kVal) && !has_validation(j.verdict.data)) {
    return "the dataset has no validation samples; use \"train_loss\"";
  }
  if (name.starts_with(kVal) && metric && metric->kind != components::MetricName::Kind::loss) {
    return "add \"" + name.substr(kVal.size()) + "\" to trainer.metrics";
  }
  return "use one of those";
}

/// True if the run writes the column.
bool judge_column(Judgement& j, std::string_view key, const std::string& name) {
  const std::vector<std::string> known = columns(j);
  if (std::find(known.begin(), known.end(), name) != known.end()) return true;
  const std::vector<std::string_view> names(known.begin(), known.end());
  j.report(diag::Code::unknown_monitor,
           std::string(key) + " is '" + name + "', and this run writes " + joined(names), key,
           unknown_help(j, name, names), {"trainer.metrics"});
  return false;
}

void judge_mode(Judgement& j, std::string_view key, const std::string& mode,
                const std::string& column) {
  const std::string_view natural = mode_text(is_larger_better(column));
  if (mode == natural) return;
  j.report(diag::Code::mode_against_metric,
           std::string(key) + " = '" + mode + "' looks for the worst " + column, key,
           "use mode = \"" + std::string(natural) + "\", or leave it out");
}

/// A section with a `monitor` and a `mode`, each written or inferred.
struct Monitor {
  std::string_view section;
  std::optional<std::string> column, mode;
};

/// Checks what is written and infers the rest; returns the column, or nothing if it is unknown.
std::optional<std::string> judge_monitor(Judgement& j, const Monitor& monitor,
                                         const std::string& fallback, const std::string& why) {
  const std::string column_key = std::string(monitor.section) + ".monitor";
  const std::string mode_key = std::string(monitor.section) + ".mode";
  const std::string column = monitor.column.value_or(fallback);
  if (!monitor.column) {
    j.infer(column_key, column, why);
  } else if (!judge_column(j, column_key, column)) {
    return {};
  }
  if (monitor.mode) {
    judge_mode(j, mode_key, *monitor.mode, column);
  } else {
    const bool larger = is_larger_better(column);
    j.infer(mode_key, std::string(mode_text(larger)),
            (larger ? "a larger " : "a smaller ") + column + " is better");
  }
  return column;
}

}  // namespace

void judge_monitors(Judgement& j) {
  // What the dataset couldn't tell was reported; nothing is known of the columns then.
  if (j.verdict.loss.empty()) return;
  const config::Experiment& e = j.experiment;
  const bool validates = has_validation(j.verdict.data);
  const auto chosen = judge_monitor(
      j, {.section = "checkpoint", .column = e.checkpoint.monitor, .mode = e.checkpoint.mode},
      validates ? "val_loss" : "train_loss",
      validates ? "the dataset has validation samples" : "the dataset has no validation samples");
  if (chosen) {
    j.verdict.monitor = chosen;
    j.verdict.monitor_max = e.checkpoint.mode == "max";
  }
  const std::string fallback = chosen.value_or(validates ? "val_loss" : "train_loss");
  const std::string why = "as checkpoint.monitor";
  if (e.early_stopping.patience) {
    judge_monitor(j,
                  {.section = "early_stopping",
                   .column = e.early_stopping.monitor,
                   .mode = e.early_stopping.mode},
                  fallback, why);
  }
  const auto* plateau = std::any_cast<components::PlateauOptions>(&e.scheduler.options);
  if (plateau != nullptr) {
    judge_monitor(j, {.section = "scheduler", .column = plateau->monitor, .mode = plateau->mode},
                  fallback, why);
  }
}

}  // namespace runner::check
