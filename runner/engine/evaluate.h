// engine: loss and metrics over a whole part of a dataset.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/engine/feed.h"
#include "runner/engine/loader.h"
#include "runner/engine/loss.h"
#include "runner/engine/strategy.h"
#include "runner/report/progress.h"

namespace runner::engine {

/// Named figures in the order in which they are reported.
using Figures = std::vector<std::pair<std::string, double>>;

/// The figure of that name, if there is one.
[[nodiscard]] std::optional<double> find_figure(const Figures& figures, std::string_view name);

/// Evaluates a model on the same samples again and again.
class Evaluator {
 public:
  struct Options {
    std::string prefix;                ///< "val_"
    std::vector<std::string> metrics;  ///< "accuracy", …
    bool binary = false;
    at::Device device;
    at::ScalarType dtype;
  };
  Evaluator(const datasets::Samples& samples, const datasets::Spec& spec,
            const LoaderOptions& loading, Loss loss, Options options);

  /// `<prefix>loss` and each metric over all batches of all ranks, each sample counted once.
  /// `stops` is called before each batch; once it says so, the result is nothing. Collective.
  [[nodiscard]] std::optional<Figures> run(Strategy& strategy, report::Progress& progress,
                                           const Group& group, const std::function<bool()>& stops);

 private:
  void restart();

  const datasets::Samples& samples_;
  const datasets::Spec spec_;
  const LoaderOptions loading_;
  Loss loss_;
  Options options_;
  MeanAccumulator mean_loss_;
  std::vector<std::unique_ptr<Metric>> metrics_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Feed> feed_;
};

}  // namespace runner::engine
