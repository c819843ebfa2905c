#include "runner/engine/trainer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>

#include "registry/value.h"
#include "runner/components/component.h"
#include "runner/config/fault.h"
#include "runner/diag/error.h"
#include "runner/engine/agreement.h"
#include "runner/engine/by_device.h"
#include "runner/engine/loss_log.h"
#include "runner/engine/optimizer.h"
#include "runner/engine/seed.h"
#include "runner/engine/strategy.h"
#include "runner/report/log.h"
#include "runner/report/metrics_csv.h"
#include "runner/report/terminal.h"

namespace runner::engine {

namespace {

using report::Cell;

constexpr char kCpuGenerator[] = "cpu";
constexpr char kDeviceGenerator[] = "device";
constexpr char kCsv[] = "metrics.csv";

std::int64_t keep_all_or(std::int64_t keep) {
  return keep < 0 ? std::numeric_limits<int>::max() : keep;
}

bool maximises(const std::optional<std::string>& mode, std::string_view figure) {
  return mode ? *mode == "max" : larger_is_better(figure);
}

/// Scales all gradients down to a common 2-norm of at most `largest`, without waiting for the
/// device.
void clip(const std::vector<at::Tensor>& gradients, double largest) {
  const at::NoGradGuard no_grad;
  const auto parts = by_device(gradients);
  std::vector<at::Tensor> norms;
  if (parts.size() == 1) {
    norms = at::_foreach_norm(gradients, 2);
  } else {
    // One by one, so that the sum doesn't depend on which device holds which.
    for (const at::Tensor& gradient : gradients) {
      norms.push_back(gradient.norm(2).to(parts.front().first));
    }
  }
  const at::Tensor norm = at::stack(norms).norm(2);
  const at::Tensor factor = at::clamp_max(largest / (norm + 1e-6), 1.0);
  for (const auto& [device, part] : parts) at::_foreach_mul_(part, factor.to(device));
}

std::vector<report::Metric> as_metrics(const Figures& figures) {
  std::vector<report::Metric> metrics;
  for (const auto& [name, value] : figures) metrics.push_back({name, value});
  return metrics;
}

std::string all_done(std::int64_t count, std::string_view unit) {
  return (count == 1 ? "" : "all ") + report::format_count(count, unit) + " done";
}

const at::Generator& cpu_generator() { return at::detail::getDefaultCPUGenerator(); }

at::Tensor generator_state(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}
void set_generator_state(at::Generator generator, const at::Tensor& state) {
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

double mean(const std::vector<TrainingState::Losses>& all) {
  double sum = 0;
  std::int64_t weight = 0;
  for (const TrainingState::Losses& losses : all) {
    sum += losses.sum;
    weight += losses.weight;
  }
  return weight == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(weight);
}

/// Fails as debug.fail asks.
void commit(const config::Fault& fault) {
  using How = config::Fault::How;
  switch (fault.how) {
    case How::raise:
      throw diag::Error(diag::Exit::failed, "failed on demand (debug.fail)",
                        "take debug.fail out of the experiment");
    case How::kill:
      raise(SIGKILL);
      break;
    case How::abort:
      std::abort();
    case How::exit:
      std::_Exit(0);
    case How::hang:
      while (true) pause();
    case How::stop:
      raise(SIGSTOP);
      break;
    case How::memory:
      throw std::bad_alloc();
  }
}

/// One run of fit(): the state of training and what happens to it.
class Fit {
 public:
  Fit(const Training& training, const std::optional<Snapshot>& resume);
  Outcome run();

 private:
  // The loop.
  void run_epoch();
  void train_step();
  void after_step();
  void end_epoch();
  void end_within_epoch();

  /// A sign of life, before this rank waits for another.
  void beat(host::Phase phase);
  void fail_on_demand() const;

  // A step's parts.
  [[nodiscard]] double learning_rate() const;
  [[nodiscard]] bool prepare_gradients();
  void drop_gradients();

  // Ends.
  [[nodiscard]] bool interrupted() const { return agreement_.signal() != 0; }
  [[nodiscard]] std::optional<std::string> reason_to_stop() const;
  [[nodiscard]] bool minimum_done() const;

  // Figures.
  [[nodiscard]] bool validates() const { return evaluator_.has_value(); }
  [[nodiscard]] std::optional<Figures> validate();
  void log_figures(const Figures& figures) const;
  void observe(const Figures& figures);
  /// Takes the monitored figure; true if this step is among the best to be kept.
  bool rank(const Figures& figures);
  /// Of this rank's samples so far.
  [[nodiscard]] double own_loss();
  /// Of all ranks' samples. Collective.
  [[nodiscard]] double epoch_loss();
  [[nodiscard]] std::vector<TrainingState::Losses> gather_losses();
  void append_row(const Figures& figures);
  [[nodiscard]] std::vector<std::string> columns() const;
  [[nodiscard]] report::MetricsCsv open_csv(bool resumed) const;

  // Checkpoints.
  void restore(const Snapshot& snapshot);
  void restore_generators(const Snapshot& snapshot);
  void report_changes();
  [[nodiscard]] std::int64_t move_within_epoch();
  void count_steps();
  [[nodiscard]] static std::string name_on(std::int64_t rank, const std::string& generator);
  [[nodiscard]] std::vector<NamedTensor> gather_generators();
  [[nodiscard]] std::vector<Strategy::NamedGenerator> generators() const;
  [[nodiscard]] WriterOptions writer_options() const;
  void save();
  void check_writer();
  [[nodiscard]] double elapsed() const {
    return (t_.clock.now() - start_).count() + elapsed_before_;
  }
  [[nodiscard]] LoaderOptions train_loading() const;
  [[nodiscard]] LoaderOptions validation_loading() const;

  const Training& t_;
  const config::Experiment& e_;
  const at::Device root_;
  const bool leads_;
  const bool shares_samples_;      ///< each rank has its share of a batch, not a batch of its own
  const std::int64_t batch_size_;  ///< of all ranks together, or of each if they don't share
  const std::int64_t batches_;     ///< of an epoch
  std::optional<std::int64_t> max_steps_;
  const std::string monitor_;  ///< of the checkpoints; empty: none
  const bool monitor_max_;

  Agreement agreement_;
  std::optional<config::Fault> fault_;
  std::unique_ptr<Precision> precision_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<at::Tensor> gradients_;  ///< scratch of a step
  const components::Scheduler* scheduler_ = nullptr;
  std::optional<components::Plateau> plateau_;
  std::string plateau_monitor_;
  std::optional<components::EarlyStopper> early_stopper_;
  std::string early_monitor_;
  bool early_stop_ = false;

  TrainingState state_;
  LossLog losses_;
  double base_lr_ = 0;
  double step_loss_ = 0;  ///< of the last step, if rows of steps are wanted
  bool skipped_ = false;  ///< the last step
  bool save_due_ = false;
  bool saved_ = false;                          ///< the state as it is
  std::map<std::string, double> step_figures_;  ///< monitored, at this very step
  std::map<std::string, double> last_figures_;  ///< the newest of each
  std::int64_t first_step_ = 0, first_sample_ = 0;
  std::optional<host::Seconds> first_step_time_;

  host::Seconds start_{0};
  double elapsed_before_ = 0;
  std::optional<report::MetricsCsv> csv_;
  std::optional<Evaluator> evaluator_;
  std::optional<Loader> loader_;
  std::optional<Feed> feed_;
  std::optional<CheckpointWriter> writer_;
};

Fit::Fit(const Training& training, const std::optional<Snapshot>& resume)
    : t_(training),
      e_(training.experiment),
      root_(training.devices.front()),
      leads_(training.group.leads()),
      shares_samples_(e_.data.sampler != "replicated"),
      batch_size_(e_.data.batch_size * replicas_of(training.plan) *
                  (shares_samples_ ? training.group.size() : 1)),
      batches_(training.plan.batches_per_epoch),
      max_steps_(training.plan.max_steps),
      monitor_(e_.checkpoint.monitor.value_or(training.plan.monitor.value_or(""))),
      monitor_max_(maximises(e_.checkpoint.mode, monitor_)),
      agreement_(training.group, training.signal, training.clock,
                 [this] {
                   return t_.plan.max_seconds &&
                          elapsed() >= static_cast<double>(*t_.plan.max_seconds);
                 }),
      precision_(make_precision(t_.plan.precision, root_)),
      losses_(root_) {
  const Loss loss = make_loss(e_.loss.name, e_.loss.options);
  strategy_ = make_strategy({t_.plan, e_, loss, *precision_, t_.group, t_.devices});
  if (e_.debug.fail) fault_ = config::parse_fault(*e_.debug.fail);
  base_lr_ =
      static_cast<const components::Optimizer*>(e_.optimizer.entry)->lr(e_.optimizer.options);
  if (e_.trainer.scale_lr) base_lr_ *= static_cast<double>(t_.group.size());
  state_.lr = base_lr_;

  scheduler_ = static_cast<const components::Scheduler*>(e_.scheduler.entry);
  if (e_.scheduler.name == "plateau") {
    const auto& options = std::any_cast<const components::PlateauOptions&>(e_.scheduler.options);
    plateau_monitor_ = options.monitor.value_or(monitor_);
    plateau_.emplace(options, maximises(options.mode, plateau_monitor_), base_lr_);
  }
  if (e_.early_stopping.patience) {
    early_monitor_ = e_.early_stopping.monitor.value_or(monitor_);
    early_stopper_.emplace(*e_.early_stopping.patience, e_.early_stopping.min_delta,
                           maximises(e_.early_stopping.mode, early_monitor_));
  }

  // Each rank drops other units.
  if (!leads_) at::manual_seed(stream_seed(e_.general.seed, t_.group.rank(), 0));
  state_.threads = at::get_num_threads();
  if (resume) restore(*resume);
  state_.batch_size = batch_size_;
  state_.losses.assign(static_cast<std::size_t>(t_.group.size()), {});
  strategy_->setup(t_.network, {state_.buckets});
  // After the strategy, which decides on the parameters' devices.
  optimizer_ = make_optimizer(e_.optimizer.name, e_.optimizer.options, t_.network.parameters());
  if (resume) optimizer_->load_state(state_.optimizer_steps, resume->optimizer);
  if (resume) restore_generators(*resume);

  loader_.emplace(t_.train, t_.spec, train_loading(), state_.epoch, state_.batch);
  feed_.emplace(*loader_, root_, precision_->dtype());
  if (t_.validation != nullptr && t_.plan.validation_batches > 0) {
    evaluator_.emplace(*t_.validation, t_.spec, validation_loading(), loss,
                       Evaluator::Options{.prefix = "val_",
                                          .metrics = t_.plan.metrics,
                                          .binary = t_.spec.binary,
                                          .device = root_,
                                          .dtype = precision_->dtype()});
  }
  if (!leads_) return;
  csv_.emplace(open_csv(resume.has_value()));
  writer_.emplace(writer_options(), t_.files);
}

LoaderOptions Fit::train_loading() const {
  LoaderOptions loading{.batch_size = batch_size_,
                        .batches = batches_,
                        .shuffle = e_.data.shuffle && e_.trainer.overfit_batches == 0,
                        .seed = e_.general.seed,
                        .threads = static_cast<int>(e_.data.num_threads),
                        .part = t_.group.rank(),
                        .parts = t_.group.size(),
                        .pinned = root_.is_cuda()};
  if (!shares_samples_) {
    loading.seed = static_cast<std::int64_t>(stream_seed(e_.general.seed, t_.group.rank(), 0));
    loading.part = 0;
    loading.parts = 1;
  }
  return loading;
}

LoaderOptions Fit::validation_loading() const {
  LoaderOptions loading = train_loading();
  loading.shuffle = false;
  // A run that overfits validates on the very batches that it trains on.
  if (e_.trainer.overfit_batches > 0) return loading;
  loading.batch_size =
      e_.data.eval_batch_size.value_or(e_.data.batch_size) * replicas_of(t_.plan) * t_.group.size();
  loading.part = t_.group.rank();
  loading.parts = t_.group.size();
  loading.batches = t_.plan.validation_batches;
  return loading;
}

// ---- the loop

Outcome Fit::run() {
  t_.progress.start({.epochs = t_.plan.max_epochs,
                     .steps_per_epoch = t_.plan.steps_per_epoch,
                     .max_steps = max_steps_,
                     .batch = t_.plan.effective_batch,
                     .first_step = state_.step});
  start_ = t_.clock.now();
  first_step_ = state_.step;
  first_sample_ = state_.samples;
  while (!state_.finished && !interrupted()) run_epoch();
  const host::Seconds loop_time = t_.clock.now() - start_;

  if (interrupted() && !state_.finished && !saved_) save();
  if (leads_) {
    beat(host::Phase::saving);
    csv_->sync();
    writer_->wait();
    check_writer();
  }
  t_.progress.finish();

  Outcome outcome;
  outcome.signal = state_.finished ? 0 : agreement_.signal();
  outcome.stopped = state_.finished.value_or("stopped by signal " + std::to_string(outcome.signal));
  state_.elapsed_seconds = elapsed();
  outcome.state = state_;
  outcome.epochs = state_.epoch + (state_.batch > 0 ? 1 : 0);
  outcome.figures.assign(last_figures_.begin(), last_figures_.end());
  const auto path_if_there = [&](std::int64_t step) -> std::optional<std::filesystem::path> {
    const auto path = writer_->path(step);
    if (!std::filesystem::exists(path)) return std::nullopt;
    return path;
  };
  if (leads_) {
    if (state_.best) outcome.best_checkpoint = path_if_there(state_.best->step);
    outcome.last_checkpoint = path_if_there(state_.step);
  }
  outcome.steps_here = state_.step - first_step_;
  outcome.samples_here = state_.samples - first_sample_;
  outcome.first_step = first_step_time_;
  outcome.loop_time = loop_time;
  outcome.strategy = strategy_->describe();
  return outcome;
}

void Fit::run_epoch() {
  agreement_.tick();
  if (state_.batch == 0 && !state_.validation_due) {
    if (const auto reason = reason_to_stop()) {
      state_.finished = reason;
      return;
    }
  }
  const std::int64_t accumulate = e_.trainer.accumulate;
  if (report::log::enabled(report::log::Level::debug)) {
    report::log::debug("epoch " + std::to_string(state_.epoch + 1) + " from batch " +
                       std::to_string(state_.batch + 1) + ": lr " +
                       report::format_metric(learning_rate()));
  }
  t_.progress.begin_epoch(state_.epoch + 1, (state_.batch + accumulate - 1) / accumulate);
  if (state_.validation_due) after_step();
  while (state_.batch < batches_) {
    agreement_.tick();
    if (interrupted()) return;
    if (reason_to_stop()) {
      end_within_epoch();
      return;
    }
    train_step();
    if (!skipped_) after_step();
  }
  if (!interrupted()) end_epoch();
}

void Fit::train_step() {
  const std::int64_t group = std::min(e_.trainer.accumulate, batches_ - state_.batch);
  std::int64_t samples = 0;
  for (std::int64_t i = 0; i < group; ++i) samples += loader_->batch_size(state_.batch + i);
  if (!shares_samples_) samples *= t_.group.size();
  if (t_.heartbeat != nullptr) t_.heartbeat->step.store(state_.step + 1);
  if (fault_) fail_on_demand();

  state_.lr = learning_rate();
  const bool wants_loss = e_.logger.every_n_steps.has_value();
  step_loss_ = 0;
  for (std::int64_t i = 0; i < group; ++i) {
    const Batch batch = feed_->next();
    beat(host::Phase::training);
    // Ranks average their gradients, so a rank's share counts as many times as there are ranks.
    const double share =
        static_cast<double>(batch.samples * t_.group.size()) / static_cast<double>(samples);
    const at::Tensor loss = strategy_->step({batch.inputs, batch.targets, share, i + 1 == group});
    // With loss scaling an infinite loss only lowers the scale; it must not count.
    const bool counts = !precision_->scales() || std::isfinite(loss.item<double>());
    if (counts && batch.samples > 0) {
      losses_.add(loss, batch.samples, {state_.step + 1, state_.epoch + 1, state_.batch + i + 1});
    }
    if (wants_loss) step_loss_ += share * loss.item<double>();
  }
  state_.batch += group;
  state_.samples += samples;
  saved_ = false;
  step_figures_.clear();

  skipped_ = !prepare_gradients();
  if (skipped_) {
    ++state_.skipped_steps;
    report::log::debug("skipped an optimizer step after step " + std::to_string(state_.step) +
                       ": its gradients overflowed; the loss scale is now " +
                       report::format_metric(precision_->state().scale));
  } else {
    optimizer_->step(state_.lr);
    ++state_.step;
  }
  drop_gradients();
  if (!first_step_time_) first_step_time_ = t_.clock.now();
}

double Fit::learning_rate() const {
  if (plateau_) return plateau_->lr();
  if (scheduler_ == nullptr || !scheduler_->lr) return base_lr_;
  return scheduler_->lr(e_.scheduler.options,
                        {.step = state_.step,
                         .epoch = state_.epoch,
                         .total_steps = max_steps_.value_or(0),
                         .steps_per_epoch = t_.plan.steps_per_epoch},
                        base_lr_);
}

bool Fit::prepare_gradients() {
  const bool clips = e_.trainer.gradient_clip.has_value();
  if (!precision_->scales() && !clips) return true;
  gradients_.clear();
  for (const NamedTensor& parameter : t_.network.parameters()) {
    gradients_.push_back(parameter.tensor.grad());
  }
  if (!precision_->unscale(gradients_)) return false;
  if (clips) clip(gradients_, *e_.trainer.gradient_clip);
  return true;
}

void Fit::drop_gradients() {
  gradients_.clear();
  for (const NamedTensor& parameter : t_.network.parameters()) {
    parameter.tensor.mutable_grad() = at::Tensor();
  }
}

void Fit::after_step() {
  const auto every = [&](const std::optional<std::int64_t>& n) {
    return n && state_.step % *n == 0;
  };
  if (!state_.validation_due) {
    t_.progress.step([&] { return own_loss(); });
    if (every(e_.logger.every_n_steps)) {
      const at::Tensor loss = at::full({1}, step_loss_, at::kDouble);
      t_.group.sum(loss);
      append_row({{"step_loss", loss.item<double>() / static_cast<double>(t_.group.size())}});
    }
  }
  save_due_ = save_due_ || every(e_.checkpoint.every_n_steps);
  state_.validation_due =
      validates() && !e_.trainer.fast_dev_run && every(e_.trainer.val_every_n_steps);
  if (state_.validation_due) {
    const auto figures = validate();
    if (!figures) return;
    state_.validation_due = false;
    append_row(*figures);
    log_figures(*figures);
    observe(*figures);
    t_.progress.end_validation(as_metrics(*figures));
    save_due_ = rank(*figures) || save_due_;
  }
  // The last step of an epoch is saved with the epoch's end.
  if (save_due_ && state_.batch < batches_) save();
}

void Fit::end_epoch() {
  Figures figures{{"train_loss", epoch_loss()}};
  // A fast_dev_run is one epoch, and is there to see everything once.
  const bool epoch_validates =
      e_.trainer.fast_dev_run ||
      (!e_.trainer.val_every_n_steps && (state_.epoch + 1) % e_.trainer.val_every_n_epochs == 0);
  if (validates() && epoch_validates) {
    const auto validated = validate();
    if (!validated) return;
    figures.insert(figures.end(), validated->begin(), validated->end());
  }
  append_row(figures);
  log_figures(figures);
  observe(figures);
  save_due_ = rank(figures) || save_due_;
  t_.progress.end_epoch(as_metrics(figures));

  ++state_.epoch;
  state_.batch = 0;
  losses_.reset();
  saved_ = false;
  state_.finished = reason_to_stop();
  const bool epoch_due = state_.epoch % e_.checkpoint.every_n_epochs == 0 || state_.finished;
  if (save_due_ || (e_.checkpoint.last && epoch_due)) save();
}

/// The run ends between two steps of an epoch. What it reports then is no part of the state that is
/// saved, so that the run can go on from there as if it had never ended.
void Fit::end_within_epoch() {
  Figures figures{{"train_loss", epoch_loss()}};
  if (validates() && !e_.trainer.val_every_n_steps) {
    const auto validated = validate();
    if (!validated) return;
    save_due_ = rank(*validated) || save_due_;
    figures.insert(figures.end(), validated->begin(), validated->end());
  }
  state_.finished = reason_to_stop();
  if (save_due_ || e_.checkpoint.last) save();
  append_row(figures);
  log_figures(figures);
  t_.progress.end_epoch(as_metrics(figures));
}

// ---- ends

std::optional<std::string> Fit::reason_to_stop() const {
  if (state_.batch == 0 && t_.plan.max_epochs && state_.epoch >= *t_.plan.max_epochs) {
    return all_done(*t_.plan.max_epochs, "epoch");
  }
  if (max_steps_ && state_.step >= *max_steps_) {
    return all_done(*max_steps_, "step");
  }
  if (!minimum_done()) return std::nullopt;
  if (early_stop_) {
    return early_monitor_ + " has not improved for " +
           report::format_count(*e_.early_stopping.patience, "validation");
  }
  if (agreement_.is_over()) return "trainer.max_time is over";
  return std::nullopt;
}

bool Fit::minimum_done() const {
  return state_.epoch >= e_.trainer.min_epochs.value_or(0) &&
         state_.step >= e_.trainer.min_steps.value_or(0);
}

// ---- figures

double Fit::own_loss() {
  losses_.flush();
  return mean({{losses_.sum(), losses_.weight()}});
}

double Fit::epoch_loss() { return mean(gather_losses()); }

std::vector<TrainingState::Losses> Fit::gather_losses() {
  losses_.flush();
  std::vector<TrainingState::Losses> all;
  const at::Tensor mine =
      at::tensor({losses_.sum(), static_cast<double>(losses_.weight())}, at::kDouble);
  for (const at::Tensor& theirs : t_.group.gather(mine)) {
    all.push_back({theirs[0].item<double>(), static_cast<std::int64_t>(theirs[1].item<double>())});
  }
  return all;
}

std::optional<Figures> Fit::validate() {
  return evaluator_->run(*strategy_, t_.progress, t_.group, [this] {
    beat(host::Phase::validating);
    agreement_.tick();
    return interrupted();
  });
}

void Fit::beat(host::Phase phase) {
  if (t_.heartbeat == nullptr) return;
  t_.heartbeat->phase.store(phase, std::memory_order_relaxed);
  t_.heartbeat->beats.fetch_add(1, std::memory_order_relaxed);
}

void Fit::fail_on_demand() const {
  const bool is_now = fault_->rank == t_.group.rank() && fault_->step == state_.step + 1 &&
                      t_.attempt < fault_->attempts;
  if (is_now) commit(*fault_);
}

void Fit::log_figures(const Figures& figures) const {
  std::string text =
      "epoch " + std::to_string(state_.epoch + 1) + ", step " + std::to_string(state_.step) + ":";
  for (const auto& [name, value] : figures) text += " " + name + " " + report::format_metric(value);
  report::log::info(text);
}

void Fit::observe(const Figures& figures) {
  if (plateau_) {
    if (const auto value = find_figure(figures, plateau_monitor_)) plateau_->observe(*value);
  }
  if (early_stopper_) {
    if (const auto value = find_figure(figures, early_monitor_)) {
      early_stop_ = early_stopper_->observe(*value);
    }
  }
}

bool Fit::rank(const Figures& figures) {
  const auto value = find_figure(figures, monitor_);
  if (!value || std::isnan(*value)) return false;
  step_figures_[monitor_] = *value;
  const Ranked entry{*value, state_.step, state_.epoch + 1};
  const auto better = [&](const Ranked& a, const Ranked& b) {
    return monitor_max_ ? a.value > b.value : a.value < b.value;
  };
  if (!state_.best || better(entry, *state_.best)) state_.best = entry;

  auto& ranking = state_.ranking;
  ranking.insert(std::upper_bound(ranking.begin(), ranking.end(), entry, better), entry);
  if (static_cast<std::int64_t>(ranking.size()) > keep_all_or(e_.checkpoint.keep)) {
    ranking.pop_back();
  }
  return std::any_of(ranking.begin(), ranking.end(),
                     [&](const Ranked& r) { return r.step == entry.step; });
}

/// Adds the figures to the row of this step, which begins with the first of them.
void Fit::append_row(const Figures& figures) {
  std::vector<Cell> row{{"epoch", state_.epoch + 1}, {"step", state_.step}};
  for (const auto& [name, value] : figures) {
    row.push_back({name, value});
    if (name != "step_loss") last_figures_[name] = value;
  }
  row.push_back({"lr", state_.lr});
  if (leads_) csv_->append(row);
}

std::vector<std::string> Fit::columns() const {
  std::vector<std::string> names{"epoch", "step", "train_loss"};
  if (e_.logger.every_n_steps) names.emplace_back("step_loss");
  if (validates()) {
    names.emplace_back("val_loss");
    for (const std::string& metric : t_.plan.metrics) names.push_back("val_" + metric);
  }
  names.emplace_back("lr");
  return names;
}

report::MetricsCsv Fit::open_csv(bool resumed) const {
  const auto path = std::filesystem::path(t_.plan.run_folder) / kCsv;
  // A restart before the first checkpoint begins again, its rows too.
  if (!resumed && t_.attempt > 0) std::filesystem::remove(path);
  if (resumed && std::filesystem::exists(path)) {
    return report::MetricsCsv::resume(path, columns(), state_.csv_bytes, state_.csv_row);
  }
  return report::MetricsCsv::create(path, columns());
}

// ---- checkpoints

void Fit::restore(const Snapshot& snapshot) {
  state_ = snapshot.state;
  state_.finished.reset();
  elapsed_before_ = state_.elapsed_seconds;
  if (state_.threads != at::get_num_threads()) {
    report::log::warn("the run used " + std::to_string(state_.threads) +
                      " threads and goes on with " + std::to_string(at::get_num_threads()) +
                      ": sums may differ in their last bits from an uninterrupted run's");
    state_.threads = at::get_num_threads();
  }
  report_changes();
  count_steps();
  t_.network.load_state(snapshot.weights);
  precision_->restore(state_.precision);
  if (plateau_ && state_.plateau) plateau_->restore(*state_.plateau);
  if (early_stopper_ && state_.early_stopper) {
    early_stopper_->restore(*state_.early_stopper);
    early_stop_ = state_.early_stopper->bad_checks >= *e_.early_stopping.patience;
  }
}

/// Finds the batch to go on with when batches have another size than those so far; returns how many
/// samples of the epoch come a second time.
std::int64_t Fit::move_within_epoch() {
  const std::int64_t samples = t_.train.size();
  const std::int64_t seen = std::min(state_.batch * state_.batch_size, samples);
  state_.batch = batches_;
  if (seen == samples) return 0;
  state_.batch = std::min(seen / batch_size_, batches_);
  state_.batch -= state_.batch % e_.trainer.accumulate;
  return seen - state_.batch * batch_size_;
}

/// Says what another number of processes changes, and places the run within it.
void Fit::report_changes() {
  const int before = state_.world_size();
  const int now = t_.group.size();
  if (before == now && state_.batch_size == batch_size_) {
    const auto& own = state_.losses[static_cast<std::size_t>(t_.group.rank())];
    losses_.reset(own.sum, own.weight);
    return;
  }
  // The sums so far are nobody's in particular; rank 0 takes them.
  TrainingState::Losses all;
  for (const TrainingState::Losses& losses : state_.losses) {
    all.sum += losses.sum;
    all.weight += losses.weight;
  }
  if (leads_) losses_.reset(all.sum, all.weight);
  state_.buckets.clear();
  const bool other_steps = state_.batch_size != batch_size_;
  const std::int64_t again = other_steps ? move_within_epoch() : 0;
  if (!leads_) return;
  std::string text = before == now ? std::string("the run goes on with other steps: ")
                                   : "the run used " + std::to_string(before) +
                                         (before == 1 ? " process" : " processes") +
                                         " and goes on with " + std::to_string(now) + ": ";
  text += other_steps ? "a step takes " + std::to_string(batch_size_) + " samples instead of " +
                            std::to_string(state_.batch_size)
                      : std::string("sums have another order, dropout other random numbers");
  text += ", and results are no longer those of an uninterrupted run to the bit";
  if (again > 0) {
    text += "; " + report::format_count(again, "sample") + " of this epoch " +
            (again == 1 ? "comes" : "come") + " a second time";
  }
  report::log::warn(text);
}

/// Where epochs end the run, its steps are those so far and those to come: another number of
/// processes may have made the first.
void Fit::count_steps() {
  if (e_.trainer.max_steps || !t_.plan.max_epochs || !max_steps_) return;
  const std::int64_t accumulate = e_.trainer.accumulate;
  const std::int64_t left = (*t_.plan.max_epochs - state_.epoch) * t_.plan.steps_per_epoch -
                            (state_.batch + accumulate - 1) / accumulate;
  max_steps_ = state_.step + state_.skipped_steps + left;
}

std::vector<Strategy::NamedGenerator> Fit::generators() const {
  std::vector<Strategy::NamedGenerator> all{{kCpuGenerator, cpu_generator()}};
  if (!root_.is_cpu()) {
    for (std::size_t i = 0; i < t_.devices.size(); ++i) {
      std::string name = kDeviceGenerator;
      if (i > 0) name.append("-").append(std::to_string(i));
      all.emplace_back(std::move(name), at::globalContext().defaultGenerator(t_.devices[i]));
    }
  }
  for (auto& own : strategy_->generators()) all.push_back(std::move(own));
  return all;
}

std::string Fit::name_on(std::int64_t rank, const std::string& generator) {
  return rank == 0 ? generator : generator + "." + std::to_string(rank);
}

std::vector<NamedTensor> Fit::gather_generators() {
  std::vector<NamedTensor> all;
  for (const auto& [name, generator] : generators()) {
    const std::vector<at::Tensor> states = t_.group.gather(generator_state(generator));
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      all.push_back({name_on(static_cast<std::int64_t>(rank), name), states[rank]});
    }
  }
  return all;
}

void Fit::restore_generators(const Snapshot& snapshot) {
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : snapshot.generators) saved[name] = tensor;
  std::int64_t stream = t_.group.rank();
  for (const auto& [name, generator] : generators()) {
    const auto state = saved.find(name_on(t_.group.rank(), name));
    if (state != saved.end()) {
      set_generator_state(generator, state->second);
    } else {
      at::Generator fresh = generator;
      fresh.set_current_seed(stream_seed(e_.general.seed, stream, state_.step));
    }
    stream += t_.group.size();
  }
}

WriterOptions Fit::writer_options() const {
  const std::filesystem::path run(t_.plan.run_folder);
  WriterOptions options{
      .folder = checkpoints_in(run),
      .plan_json = plan::to_json(t_.plan),
      .config_digest =
          store::digest_of(registry::to_toml(registry::Value(t_.plan.experiment))).xxh3_128,
      .extra = {{"version", t_.plan.version},
                {"git_commit", t_.plan.git_commit},
                {"command_line", t_.plan.command_line}},
      .batches_per_epoch = batches_,
      .csv = run / kCsv,
      .retention = {}};
  options.retention.keep_last = e_.checkpoint.last ? 2 : 1;
  options.retention.top_k = static_cast<int>(keep_all_or(e_.checkpoint.keep));
  options.retention.metric = monitor_;
  options.retention.mode =
      monitor_max_ ? store::RetentionPolicy::Mode::max : store::RetentionPolicy::Mode::min;
  return options;
}

void Fit::save() {
  beat(host::Phase::saving);
  strategy_->sync();
  state_.losses = gather_losses();
  std::vector<NamedTensor> generator_states = gather_generators();
  save_due_ = false;
  saved_ = true;
  if (!leads_) return;
  csv_->flush();
  state_.buckets = strategy_->state().buckets;
  state_.elapsed_seconds = elapsed();
  state_.csv_bytes = csv_->last_row_start();
  state_.csv_row = csv_->last_row();
  state_.optimizer_steps = optimizer_->steps();
  state_.precision = precision_->state();
  if (plateau_) state_.plateau = plateau_->state();
  if (early_stopper_) state_.early_stopper = early_stopper_->state();

  Snapshot snapshot{.state = state_,
                    .weights = copy_to_cpu(t_.network.state()),
                    .optimizer = copy_to_cpu(optimizer_->state()),
                    .generators = std::move(generator_states),
                    .metrics = step_figures_};
  std::set<std::int64_t> wanted;
  for (const Ranked& r : state_.ranking) wanted.insert(r.step);
  std::optional<std::int64_t> best;
  if (!state_.ranking.empty()) best = state_.ranking.front().step;
  report::log::debug("step " + std::to_string(state_.step) + ": a checkpoint is to be written");
  writer_->submit(std::move(snapshot), std::move(wanted), best);
  check_writer();
}

void Fit::check_writer() {
  const std::exception_ptr error = writer_->take_error();
  if (!error) return;
  if (e_.checkpoint.on_save_error == "stop") std::rethrow_exception(error);
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    report::log::warn(e.what());
    t_.progress.message("warning: " + std::string(e.what()) + "; the run goes on");
  }
}

}  // namespace

Outcome fit(const Training& training, const std::optional<Snapshot>& resume) {
  return Fit(training, resume).run();
}

std::filesystem::path checkpoints_in(const std::filesystem::path& run_folder) {
  return run_folder / "checkpoints";
}

bool larger_is_better(std::string_view figure) {
  const auto name = figure.substr(figure.find('_') + 1);
  const auto metric = components::parse_metric(name);
  return metric && components::higher_is_better(metric->kind);
}

}  // namespace runner::engine
