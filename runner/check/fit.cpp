#include <algorithm>

#include "registry/suggest.h"
#include "runner/check/passes.h"
#include "runner/check/text.h"

namespace runner::check {

namespace {

using components::MetricName;
using datasets::TargetKind;
using registry::Value;

// ---- dataset -----------------------------------------------------------------------------------

/// Where a dataset's error points: at the option that says where its files are, if one is written.
std::string_view files_key(const config::Experiment& e) {
  for (const std::string_view key : {"dataset.path", "dataset.root"}) {
    if (e.is_set(key)) return key;
  }
  return "dataset.name";
}

void need_training_samples(Judgement& j) {
  if (!j.verdict.data.complete || j.verdict.data.train_size > 0) return;
  j.report(diag::Code::nothing_to_train,
           "nothing to train: dataset '" + j.experiment.dataset.name + "' has no training samples",
           files_key(j.experiment), "give the dataset training samples");
}

/// False if there is no spec to go on with.
bool describe_data(Judgement& j) {
  const config::Experiment& e = j.experiment;
  const auto& dataset = static_cast<const datasets::Dataset&>(*e.dataset.entry);
  try {
    j.verdict.data = dataset.describe(e.dataset.options, j.context);
    need_training_samples(j);
    return true;
  } catch (const diag::Error& error) {
    const bool is_options = error.exit() == diag::Exit::invalid;
    j.report(is_options ? diag::Code::dataset_options : diag::Code::dataset_files,
             "dataset '" + e.dataset.name + "': " + error.what(), files_key(e), error.help());
    j.verdict.data.complete = false;
    return false;
  }
}

std::string target_text(const datasets::Spec& data) {
  if (data.target == TargetKind::classes) {
    return data.classes > 0 ? counted(data.classes, "class") : "classes";
  }
  const std::string kind = data.binary ? " of 0 or 1" : "";
  return data.target_values == 1 ? "a value" + kind : counted(data.target_values, "value") + kind;
}

// ---- loss --------------------------------------------------------------------------------------

std::string_view natural_loss(const datasets::Spec& data) {
  if (data.target == TargetKind::classes) return "cross_entropy";
  return data.binary ? "bce" : "mse";
}

bool takes(const components::Loss& loss, const datasets::Spec& data) {
  if (loss.needs_classes) return data.target == TargetKind::classes;
  if (loss.needs_binary) {
    // Whether values are 0 or 1 is unknown without the data.
    return data.target == TargetKind::values && (data.binary || !data.complete);
  }
  return data.target == TargetKind::values;
}

void judge_loss(Judgement& j) {
  const datasets::Spec& data = j.verdict.data;
  const std::string_view natural = natural_loss(data);
  if (j.experiment.loss.name.empty()) {
    j.infer("loss.name", std::string(natural),
            "the targets of '" + j.experiment.dataset.name + "' are " + target_text(data));
  } else if (const auto* loss = components::losses().find(j.experiment.loss.name);
             loss != nullptr && !takes(*loss, data)) {
    j.report(diag::Code::wrong_loss,
             "loss '" + j.experiment.loss.name + "' doesn't fit dataset '" +
                 j.experiment.dataset.name + "', whose targets are " + target_text(data),
             "loss.name", "use loss.name = \"" + std::string(natural) + "\", or leave [loss] out",
             {"dataset.name"});
  }
  j.verdict.loss = j.experiment.loss.name;
}

// ---- model -------------------------------------------------------------------------------------

/// The name of a batch normalisation that sees a single value a sample and feature; "" if none.
std::string one_value_layer(const graph::Graph& graph) {
  for (const graph::Layer& layer : graph.layers()) {
    const auto* norm = std::get_if<graph::BatchNorm>(&layer.op);
    if (norm != nullptr && graph::element_count(layer.output) == norm->features) return layer.name;
  }
  return {};
}

void note_layers(Facts& f, const graph::Graph& graph) {
  f.layers = static_cast<std::int64_t>(graph.layers().size()) - 1;
  f.one_value_layer = one_value_layer(graph);
  for (const graph::Layer& layer : graph.layers()) {
    if (!std::holds_alternative<graph::BatchNorm>(layer.op)) continue;
    f.batch_norm_layer = layer.name;
    return;
  }
}

void build_model(Judgement& j) {
  const datasets::Spec& data = j.verdict.data;
  const auto& model = static_cast<const models::Model&>(*j.experiment.model.entry);
  const std::int64_t outputs =
      data.target == TargetKind::classes ? data.classes : data.target_values;
  if (!data.complete || outputs < 1) return;
  try {
    j.verdict.graph =
        model.build(j.experiment.model.options, {.input = data.input, .outputs = outputs});
    note_layers(j.facts, *j.verdict.graph);
  } catch (const graph::ShapeError& error) {
    const std::string key = error.path().empty() ? "model.name" : "model." + error.path();
    j.report(diag::Code::shape_misfit, error.what(), key, error.help(), {"dataset.name"});
  }
}

// ---- metrics -----------------------------------------------------------------------------------

/// Why a metric can't be computed for the data; "" if it can.
std::string metric_misfit(const MetricName& metric, const datasets::Spec& data) {
  const bool classes = data.target == TargetKind::classes;
  switch (metric.kind) {
    case MetricName::Kind::accuracy:
      return classes || data.binary || !data.complete ? "" : "needs classes";
    case MetricName::Kind::top_k:
      if (!classes) return "needs classes";
      return data.classes > 0 && metric.k > data.classes
                 ? "looks at " + std::to_string(metric.k) + " classes"
                 : "";
    case MetricName::Kind::mae:
    case MetricName::Kind::r2:
      return classes ? "needs values" : "";
    case MetricName::Kind::loss:
      break;
  }
  return {};
}

std::string_view natural_metric(const datasets::Spec& data) {
  return data.target == TargetKind::classes || data.binary ? "accuracy" : "mae";
}

void bad_metric(Judgement& j, std::size_t index, std::string message, std::string help) {
  j.bad_element(diag::Code::bad_value,
                "element " + std::to_string(index) + " of metrics: " + std::move(message),
                "trainer.metrics", index, std::move(help));
}

void unknown_metric(Judgement& j, std::size_t index, const std::string& name) {
  static constexpr std::string_view kNames[] = {"accuracy", "top5", "mae", "r2"};
  std::string_view near = registry::nearest(name, kNames);
  if (name == "acc") near = "accuracy";
  for (const std::string_view prefix : {"val_", "train_"}) {
    const std::string bare = name.substr(std::min(name.size(), prefix.size()));
    if (name.starts_with(prefix) && components::parse_metric(bare)) {
      bad_metric(j, index, "'" + name + "' is a column, not a metric", "write \"" + bare + "\"");
      return;
    }
  }
  bad_metric(j, index, "there is no metric '" + name + "'",
             (near.empty() ? "" : "did you mean '" + std::string(near) + "'? ") +
                 std::string("there are accuracy, top<k> (\"top5\"), mae and r2"));
}

void judge_metric(Judgement& j, std::size_t index) {
  const std::vector<std::string>& names = j.experiment.trainer.metrics;
  const std::string& name = names[index];
  const auto metric = components::parse_metric(name);
  const auto here = names.begin() + static_cast<std::ptrdiff_t>(index);
  if (!metric) {
    unknown_metric(j, index, name);
  } else if (metric->kind == MetricName::Kind::loss) {
    bad_metric(j, index, "the loss is always reported", "leave \"loss\" out");
  } else if (std::find(names.begin(), here, name) != here) {
    bad_metric(j, index, "'" + name + "' is named twice", "name each metric once");
  } else if (const std::string why = metric_misfit(*metric, j.verdict.data); !why.empty()) {
    j.report(diag::Code::wrong_metric,
             "metric '" + name + "' " + why + ", and the targets of dataset '" +
                 j.experiment.dataset.name + "' are " + target_text(j.verdict.data),
             "trainer.metrics[" + std::to_string(index) + "]",
             "use \"" + std::string(natural_metric(j.verdict.data)) + "\", or leave metrics out",
             {"dataset.name"});
  }
}

void judge_metrics(Judgement& j) {
  const std::vector<std::string>& names = j.experiment.trainer.metrics;
  if (names.empty()) {
    const std::string natural(natural_metric(j.verdict.data));
    j.infer(
        "trainer.metrics", Value::Array{natural},
        "the targets of '" + j.experiment.dataset.name + "' are " + target_text(j.verdict.data));
  } else {
    for (std::size_t i = 0; i < names.size(); ++i) judge_metric(j, i);
  }
  j.verdict.metrics = j.experiment.trainer.metrics;
}

}  // namespace

void judge_fit(Judgement& j) {
  if (j.experiment.dataset.entry == nullptr || !describe_data(j)) return;
  judge_loss(j);
  if (j.experiment.model.entry != nullptr) build_model(j);
  judge_metrics(j);
}

}  // namespace runner::check
