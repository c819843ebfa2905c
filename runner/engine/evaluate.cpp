#include "runner/engine/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace runner::engine {

std::optional<double> find_figure(const Figures& figures, std::string_view name) {
  for (const auto& [figure, value] : figures) {
    if (figure == name) return value;
  }
  return std::nullopt;
}

Evaluator::Evaluator(const datasets::Samples& samples, const datasets::Spec& spec,
                     const LoaderOptions& loading, Loss loss, Options options)
    : samples_(samples),
      spec_(spec),
      loading_(loading),
      loss_(std::move(loss)),
      options_(std::move(options)),
      mean_loss_(options_.device) {
  for (const std::string& name : options_.metrics) {
    metrics_.push_back(make_metric(name, options_.binary, options_.device));
  }
  restart();
}

void Evaluator::restart() {
  feed_.reset();
  loader_ = std::make_unique<Loader>(samples_, spec_, loading_);
  feed_ = std::make_unique<Feed>(*loader_, options_.device, options_.dtype);
}

std::optional<Figures> Evaluator::run(Strategy& strategy, report::Progress& progress,
                                      const Group& group, const std::function<bool()>& stops) {
  const at::NoGradGuard no_grad;
  strategy.sync();
  mean_loss_.reset();
  for (const auto& metric : metrics_) metric->reset();

  progress.begin_validation(loader_->batches());
  for (std::int64_t i = 0; i < loader_->batches(); ++i) {
    if (stops()) {
      restart();  // the next run begins with the first batch again
      return std::nullopt;
    }
    const Batch batch = feed_->next();
    if (batch.samples > 0) {
      const at::Tensor outputs = strategy.predict(batch.inputs);
      mean_loss_.add(loss_(outputs, batch.targets), batch.samples);
      for (const auto& metric : metrics_) metric->add(outputs, batch.targets);
    }
    progress.validation_step();
  }

  mean_loss_.combine(group);
  for (const auto& metric : metrics_) metric->combine(group);
  Figures figures{{options_.prefix + "loss", mean_loss_.mean()}};
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    figures.emplace_back(options_.prefix + options_.metrics[i], metrics_[i]->value());
  }
  return figures;
}

}  // namespace runner::engine
