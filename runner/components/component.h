// components: the named parts of training whose options a file sets and whose arithmetic needs no
// LibTorch or lives in the engine: optimizers, schedulers, losses. One file a kind; a row here and,
// for an optimizer or a loss, its kernel in the engine under the same name (a test holds the two
// lists equal).
#pragma once

#include <any>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/catalog.h"

namespace runner::components {

template <class O, class E, std::size_t N>
E entry(std::string_view name, std::string_view doc, const std::array<registry::Row<O>, N>& rows) {
  E result;
  result.name = name;
  result.doc = doc;
  result.options = &registry::table_of<O>(rows);
  result.defaults = O{};
  return result;
}

// ---- optimizers: formulas and defaults are PyTorch's
// ---------------------------------------------

struct Sgd {
  double lr = 1e-2;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
};
struct RmsProp {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};

struct Optimizer : registry::Entry {
  /// Tensors of a weight's size that the optimizer keeps for each weight.
  std::function<int(const std::any& options)> state_tensors;
  std::function<double(const std::any& options)> lr;
};
using Optimizers = registry::Catalog<Optimizer>;
[[nodiscard]] const Optimizers& optimizers();

// ---- schedulers: pure functions of the progress, so there is nothing to save
// -----------------------

/// Where training stands when a learning rate is asked for: the step about to be taken.
struct Progress {
  std::int64_t step = 0;         ///< optimizer steps taken so far
  std::int64_t epoch = 0;        ///< epochs finished so far
  std::int64_t total_steps = 0;  ///< 0 when the run is only bounded by time
  std::int64_t steps_per_epoch = 1;
};

struct Scheduler : registry::Entry {
  /// The learning rate of the step about to be taken; empty for "plateau", whose state is
  /// Plateau's.
  std::function<double(const std::any& options, const Progress& progress, double base_lr)> lr;
  bool needs_total_steps = false;  ///< can't be used when only max_time bounds the run
};
using Schedulers = registry::Catalog<Scheduler>;
[[nodiscard]] const Schedulers& schedulers();

struct NoSchedule {};
struct StepSchedule {
  std::int64_t step_size = 30;
  double gamma = 0.1;
  std::string interval = "epoch";
};
struct MultiStep {
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
  std::string interval = "epoch";
};
struct Cosine {
  double min_lr = 0;
  std::optional<std::int64_t> period = {};
  std::string interval = "step";
};
struct LinearWarmup {
  std::int64_t steps = 0;
  double start_factor = 0;
};
struct OneCycle {
  double max_lr = 0.1;
  double warmup_fraction = 0.3;
  double div_factor = 25;
  double final_div_factor = 1e4;
  std::string anneal = "cosine";
};
struct PlateauOptions {
  std::optional<std::string> monitor = {};
  std::optional<std::string> mode = {};
  double factor = 0.1;
  std::int64_t patience = 10;
  double threshold = 1e-4;
  std::int64_t cooldown = 0;
  double min_lr = 0;
};

/// ReduceLROnPlateau with PyTorch's semantics (relative threshold); the only scheduler with a
/// state, which checkpoints carry.
class Plateau {
 public:
  struct State {
    double lr = 0;
    double best = 0;
    std::int64_t bad_checks = 0;
    std::int64_t cooldown_left = 0;
    bool started = false;
  };
  Plateau(PlateauOptions options, bool maximise, double base_lr);
  /// Takes the monitored value after a validation; returns the learning rate from now on.
  double observe(double value);
  [[nodiscard]] double lr() const { return state_.lr; }
  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  PlateauOptions options_;
  bool maximise_;
  State state_;
};

// ---- losses
// ----------------------------------------------------------------------------------------

struct CrossEntropy {
  double label_smoothing = 0;
};
struct Mse {};
struct L1 {};
struct Bce {};

struct Loss : registry::Entry {
  bool needs_classes = false;  ///< takes class numbers; else real values
  bool needs_binary = false;   ///< values must be 0 or 1
};
using Losses = registry::Catalog<Loss>;
[[nodiscard]] const Losses& losses();

// ---- metrics
// ---------------------------------------------------------------------------------------

/// A metric that validation reports: "accuracy", "top<k>", "mae", "r2".
struct MetricName {
  enum class Kind { loss, accuracy, top_k, mae, r2 } kind;
  std::int64_t k = 1;
};
/// Of a metric's own name, without "val_" or "train_"; nothing if there is no such metric.
[[nodiscard]] std::optional<MetricName> parse_metric(std::string_view name);
/// True for metrics that grow as the model gets better.
[[nodiscard]] bool higher_is_better(MetricName::Kind kind);

/// EarlyStopping with Lightning's semantics: stops after `patience` checks in a row that don't
/// improve on the best by more than min_delta. Its state is carried by checkpoints.
class EarlyStopper {
 public:
  struct State {
    double best = 0;
    std::int64_t bad_checks = 0;
    bool started = false;
  };
  EarlyStopper(std::int64_t patience, double min_delta, bool maximise)
      : patience_(patience), min_delta_(min_delta), maximise_(maximise) {}
  /// Takes the monitored value after a validation; true when training should stop. A value that is
  /// not finite counts as no improvement.
  bool observe(double value);
  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  std::int64_t patience_;
  double min_delta_;
  bool maximise_;
  State state_;
};

}  // namespace runner::components
