// Schedules are closed forms of PyTorch's schedulers: the learning rate of step n (or epoch n) from
// n alone, so that a resumed run needs nothing but its counters.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "runner/components/component.h"

namespace runner::components {

namespace {

using registry::above;
using registry::at_least;
using registry::Resume;

constexpr std::string_view kIntervalDoc = "what is counted: optimizer steps or epochs";

template <class O>
constexpr std::array<registry::Row<O>, 0> kNoRows{};

constexpr auto kStep = registry::rows<StepSchedule>({
    {.name = "step_size",
     .member = &StepSchedule::step_size,
     .doc = "epochs (or steps) between two changes",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "gamma",
     .member = &StepSchedule::gamma,
     .doc = "factor of each change",
     .range = above(0),
     .resume = Resume::warn},
    {.name = "interval",
     .member = &StepSchedule::interval,
     .doc = kIntervalDoc,
     .choices = {"step", "epoch"},
     .resume = Resume::warn},
});
static_assert(registry::covers<StepSchedule>(kStep));

constexpr auto kMultiStep = registry::rows<MultiStep>({
    {.name = "milestones",
     .member = &MultiStep::milestones,
     .doc = "epochs (or steps) after which the rate changes; required",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "gamma",
     .member = &MultiStep::gamma,
     .doc = "factor of each change",
     .range = above(0),
     .resume = Resume::warn},
    {.name = "interval",
     .member = &MultiStep::interval,
     .doc = kIntervalDoc,
     .choices = {"step", "epoch"},
     .resume = Resume::warn},
});
static_assert(registry::covers<MultiStep>(kMultiStep));

constexpr auto kCosine = registry::rows<Cosine>({
    {.name = "min_lr",
     .member = &Cosine::min_lr,
     .doc = "learning rate at the end of the half wave",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "period",
     .member = &Cosine::period,
     .doc = "steps (or epochs) of the half wave; the whole run when absent",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "interval",
     .member = &Cosine::interval,
     .doc = kIntervalDoc,
     .choices = {"step", "epoch"},
     .resume = Resume::warn},
});
static_assert(registry::covers<Cosine>(kCosine));

constexpr auto kLinearWarmup = registry::rows<LinearWarmup>({
    {.name = "steps",
     .member = &LinearWarmup::steps,
     .doc = "optimizer steps; the last of them is the first with the full rate; required",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "start_factor",
     .member = &LinearWarmup::start_factor,
     .doc = "share of the rate that the line starts from, one step before the first",
     .range = registry::from_to_below(0, 1),
     .resume = Resume::warn},
});
static_assert(registry::covers<LinearWarmup>(kLinearWarmup));

constexpr auto kOneCycle = registry::rows<OneCycle>({
    {.name = "max_lr",
     .member = &OneCycle::max_lr,
     .doc = "learning rate at the top of the cycle; the optimizer's lr isn't used",
     .range = above(0),
     .resume = Resume::warn},
    {.name = "warmup_fraction",
     .member = &OneCycle::warmup_fraction,
     .doc = "share of the run in which the rate grows",
     .range = registry::between(0, 1),
     .resume = Resume::warn},
    {.name = "div_factor",
     .member = &OneCycle::div_factor,
     .doc = "the first rate is max_lr divided by this",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "final_div_factor",
     .member = &OneCycle::final_div_factor,
     .doc = "the last rate is the first divided by this",
     .range = at_least(1),
     .resume = Resume::warn},
    {.name = "anneal",
     .member = &OneCycle::anneal,
     .doc = "the curve between first, top and last",
     .choices = {"cosine", "linear"},
     .resume = Resume::warn},
});
static_assert(registry::covers<OneCycle>(kOneCycle));

constexpr auto kPlateau = registry::rows<PlateauOptions>({
    {.name = "monitor",
     .member = &PlateauOptions::monitor,
     .doc = "column that must get better; the checkpoints' when absent",
     .resume = Resume::warn},
    {.name = "mode",
     .member = &PlateauOptions::mode,
     .doc = "whether smaller or larger is better; inferred from the metric",
     .choices = {"min", "max"},
     .resume = Resume::warn},
    {.name = "factor",
     .member = &PlateauOptions::factor,
     .doc = "factor of each change",
     .range = {.min = 0, .max = 1, .min_open = true, .max_open = true},
     .resume = Resume::warn},
    {.name = "patience",
     .member = &PlateauOptions::patience,
     .doc = "validations without improvement that are put up with before a change",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "threshold",
     .member = &PlateauOptions::threshold,
     .doc = "smallest relative change that counts as an improvement",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "cooldown",
     .member = &PlateauOptions::cooldown,
     .doc = "validations after a change during which none is counted as bad",
     .range = at_least(0),
     .resume = Resume::warn},
    {.name = "min_lr",
     .member = &PlateauOptions::min_lr,
     .doc = "the rate never falls below this",
     .range = at_least(0),
     .resume = Resume::warn},
});
static_assert(registry::covers<PlateauOptions>(kPlateau));

std::int64_t position(const std::string& interval, const Progress& progress) {
  return interval == "step" ? progress.step : progress.epoch;
}

/// Steps or epochs of the whole run; 0 if unknown.
std::int64_t length(const std::string& interval, const Progress& progress) {
  if (interval == "step") return progress.total_steps;
  const std::int64_t per_epoch = std::max<std::int64_t>(progress.steps_per_epoch, 1);
  return (progress.total_steps + per_epoch - 1) / per_epoch;
}

double step_lr(const StepSchedule& o, const Progress& progress, double base_lr) {
  const std::int64_t changes = position(o.interval, progress) / o.step_size;
  return base_lr * std::pow(o.gamma, static_cast<double>(changes));
}

double multistep_lr(const MultiStep& o, const Progress& progress, double base_lr) {
  const std::int64_t now = position(o.interval, progress);
  const auto changes = std::count_if(o.milestones.begin(), o.milestones.end(),
                                     [now](std::int64_t milestone) { return milestone <= now; });
  return base_lr * std::pow(o.gamma, static_cast<double>(changes));
}

/// Past its period the wave goes up again, as CosineAnnealingLR's does.
double cosine_lr(const Cosine& o, const Progress& progress, double base_lr) {
  const std::int64_t period = o.period.value_or(length(o.interval, progress));
  if (period == 0) return base_lr;
  const double share =
      static_cast<double>(position(o.interval, progress)) / static_cast<double>(period);
  return o.min_lr + (base_lr - o.min_lr) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

double linear_warmup_lr(const LinearWarmup& o, const Progress& progress, double base_lr) {
  if (progress.step + 1 >= o.steps) return base_lr;
  const double share = static_cast<double>(progress.step + 1) / static_cast<double>(o.steps);
  return base_lr * (o.start_factor + (1 - o.start_factor) * share);
}

double one_cycle_lr(const OneCycle& o, const Progress& progress, double) {
  const double first = o.max_lr / o.div_factor;
  const double last = first / o.final_div_factor;
  const auto total = static_cast<double>(progress.total_steps);
  const double top_at = o.warmup_fraction * total - 1;
  const double end_at = total - 1;
  const auto now = static_cast<double>(progress.step);

  const auto between = [&o](double from, double to, double share) {
    if (o.anneal == "linear") return from + (to - from) * share;
    return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
  };
  if (now <= top_at) return top_at == 0 ? o.max_lr : between(first, o.max_lr, now / top_at);
  if (end_at <= top_at) return last;
  return between(o.max_lr, last, std::min(1.0, (now - top_at) / (end_at - top_at)));
}

template <class O, std::size_t N>
Scheduler schedule(std::string_view name, std::string_view doc,
                   const std::array<registry::Row<O>, N>& rows,
                   double (*lr)(const O&, const Progress&, double)) {
  auto result = entry<O, Scheduler>(name, doc, rows);
  result.lr = [lr](const std::any& options, const Progress& progress, double base_lr) {
    return lr(std::any_cast<const O&>(options), progress, base_lr);
  };
  return result;
}

}  // namespace

const Schedulers& schedulers() {
  static const Schedulers catalog = [] {
    Schedulers c;
    c.add(schedule<NoSchedule>("none", "the same learning rate throughout", kNoRows<NoSchedule>,
                               [](const NoSchedule&, const Progress&, double lr) { return lr; }));
    c.add(schedule<StepSchedule>("step", "a change every few epochs or steps", kStep, step_lr));
    c.add(schedule<MultiStep>("multistep", "a change after each milestone", kMultiStep,
                              multistep_lr));
    auto cosine = schedule<Cosine>("cosine", "down along half a cosine wave", kCosine, cosine_lr);
    cosine.needs_total_steps = true;
    c.add(std::move(cosine));
    c.add(schedule<LinearWarmup>("linear_warmup", "up along a line, then constant", kLinearWarmup,
                                 linear_warmup_lr));
    auto one_cycle =
        schedule<OneCycle>("one_cycle", "up to the top and down again, once over the whole run",
                           kOneCycle, one_cycle_lr);
    one_cycle.needs_total_steps = true;
    c.add(std::move(one_cycle));
    c.add(entry<PlateauOptions, Scheduler>(
        "plateau", "down whenever the monitored value no longer gets better", kPlateau));
    return c;
  }();
  return catalog;
}

Plateau::Plateau(PlateauOptions options, bool maximise, double base_lr)
    : options_(std::move(options)), maximise_(maximise) {
  state_.lr = base_lr;
}

double Plateau::observe(double value) {
  /// A change smaller than this is none, as in ReduceLROnPlateau.
  constexpr double kSmallestChange = 1e-8;

  const double bar = state_.best * (maximise_ ? 1 + options_.threshold : 1 - options_.threshold);
  const bool improved =
      std::isfinite(value) && (!state_.started || (maximise_ ? value > bar : value < bar));
  if (improved) {
    state_.best = value;
    state_.started = true;
    state_.bad_checks = 0;
  } else {
    ++state_.bad_checks;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.bad_checks = 0;
  }
  if (state_.bad_checks > options_.patience) {
    const double lower = std::max(state_.lr * options_.factor, options_.min_lr);
    if (state_.lr - lower > kSmallestChange) state_.lr = lower;
    state_.cooldown_left = options_.cooldown;
    state_.bad_checks = 0;
  }
  return state_.lr;
}

}  // namespace runner::components
