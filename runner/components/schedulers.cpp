#include <algorithm>
#include <cmath>
#include <numbers>

#include "runner/components/component.h"

namespace runner::components {

namespace {

using registry::above;
using registry::at_least;
using registry::between;
using registry::from_to_below;

constexpr auto kNone = std::array<registry::Row<NoSchedule>, 0>{};
constexpr auto kStep = registry::rows<StepSchedule>({
    {.name = "step_size",
     .member = &StepSchedule::step_size,
     .doc = "intervals between two drops",
     .range = at_least(1)},
    {.name = "gamma",
     .member = &StepSchedule::gamma,
     .doc = "factor of each drop",
     .range = above(0)},
    {.name = "interval",
     .member = &StepSchedule::interval,
     .doc = "what is counted",
     .choices = {"epoch", "step"}},
});
static_assert(registry::covers<StepSchedule>(kStep));
constexpr auto kMultiStep = registry::rows<MultiStep>({
    {.name = "milestones",
     .member = &MultiStep::milestones,
     .doc = "when the learning rate drops",
     .range = at_least(1)},
    {.name = "gamma", .member = &MultiStep::gamma, .doc = "factor of each drop", .range = above(0)},
    {.name = "interval",
     .member = &MultiStep::interval,
     .doc = "what is counted",
     .choices = {"epoch", "step"}},
});
static_assert(registry::covers<MultiStep>(kMultiStep));
constexpr auto kCosine = registry::rows<Cosine>({
    {.name = "min_lr",
     .member = &Cosine::min_lr,
     .doc = "where the half wave ends",
     .range = at_least(0)},
    {.name = "period",
     .member = &Cosine::period,
     .doc = "intervals of the half wave; the whole run when absent",
     .range = at_least(1)},
    {.name = "interval",
     .member = &Cosine::interval,
     .doc = "what is counted",
     .choices = {"step", "epoch"}},
});
static_assert(registry::covers<Cosine>(kCosine));
constexpr auto kWarmup = registry::rows<LinearWarmup>({
    {.name = "steps",
     .member = &LinearWarmup::steps,
     .doc = "optimizer steps until the full learning rate",
     .range = at_least(0)},
    {.name = "start_factor",
     .member = &LinearWarmup::start_factor,
     .doc = "share of the learning rate at the start",
     .range = from_to_below(0, 1)},
});
static_assert(registry::covers<LinearWarmup>(kWarmup));
constexpr auto kOneCycle = registry::rows<OneCycle>({
    {.name = "max_lr",
     .member = &OneCycle::max_lr,
     .doc = "the top of the cycle; optimizer.lr has no say",
     .range = above(0)},
    {.name = "warmup_fraction",
     .member = &OneCycle::warmup_fraction,
     .doc = "share of the run on the way up",
     .range = {.min = 0, .max = 1, .min_open = true, .max_open = true}},
    {.name = "div_factor",
     .member = &OneCycle::div_factor,
     .doc = "max_lr over the first learning rate",
     .range = at_least(1)},
    {.name = "final_div_factor",
     .member = &OneCycle::final_div_factor,
     .doc = "the first learning rate over the last",
     .range = at_least(1)},
    {.name = "anneal",
     .member = &OneCycle::anneal,
     .doc = "shape of the two ways",
     .choices = {"cosine", "linear"}},
});
static_assert(registry::covers<OneCycle>(kOneCycle));
constexpr auto kPlateau = registry::rows<PlateauOptions>({
    {.name = "monitor",
     .member = &PlateauOptions::monitor,
     .doc = "column that must get better; the checkpoints' when absent"},
    {.name = "mode",
     .member = &PlateauOptions::mode,
     .doc = "whether smaller or larger is better; inferred from the metric",
     .choices = {"min", "max"}},
    {.name = "factor",
     .member = &PlateauOptions::factor,
     .doc = "factor of each drop",
     .range = {.min = 0, .max = 1, .min_open = true, .max_open = true}},
    {.name = "patience",
     .member = &PlateauOptions::patience,
     .doc = "validations without improvement that are put up with",
     .range = at_least(0)},
    {.name = "threshold",
     .member = &PlateauOptions::threshold,
     .doc = "relative change that counts as an improvement",
     .range = at_least(0)},
    {.name = "cooldown",
     .member = &PlateauOptions::cooldown,
     .doc = "validations after a drop that aren't counted",
     .range = at_least(0)},
    {.name = "min_lr",
     .member = &PlateauOptions::min_lr,
     .doc = "the learning rate doesn't fall below this",
     .range = at_least(0)},
});
static_assert(registry::covers<PlateauOptions>(kPlateau));

std::int64_t elapsed(const std::string& interval, const Progress& p) {
  return interval == "epoch" ? p.epoch : p.step;
}

double step_lr(const StepSchedule& o, const Progress& p, double base) {
  return base * std::pow(o.gamma, static_cast<double>(elapsed(o.interval, p) / o.step_size));
}

double multistep_lr(const MultiStep& o, const Progress& p, double base) {
  const std::int64_t now = elapsed(o.interval, p);
  const auto passed = std::count_if(o.milestones.begin(), o.milestones.end(),
                                    [now](std::int64_t m) { return m <= now; });
  return base * std::pow(o.gamma, static_cast<double>(passed));
}

/// CosineAnnealingLR's closed form; stays at min_lr after the period.
double cosine_lr(const Cosine& o, const Progress& p, double base) {
  const bool epochs = o.interval == "epoch";
  const std::int64_t whole =
      epochs ? (p.total_steps + p.steps_per_epoch - 1) / p.steps_per_epoch : p.total_steps;
  const std::int64_t period = std::max<std::int64_t>(o.period.value_or(whole), 1);
  const auto t = static_cast<double>(std::min(elapsed(o.interval, p), period));
  return o.min_lr +
         (base - o.min_lr) * (1 + std::cos(std::numbers::pi * t / static_cast<double>(period))) / 2;
}

/// The step about to be taken is number step + 1; number `steps` is the first at the full rate.
double warmup_lr(const LinearWarmup& o, const Progress& p, double base) {
  if (o.steps <= 0 || p.step + 1 >= o.steps) return base;
  const double done = static_cast<double>(p.step + 1) / static_cast<double>(o.steps);
  return base * (o.start_factor + (1 - o.start_factor) * done);
}

/// OneCycleLR with its two phases.
double one_cycle_lr(const OneCycle& o, const Progress& p, double) {
  const double first = o.max_lr / o.div_factor;
  const double last = first / o.final_div_factor;
  const auto end = static_cast<double>(std::max<std::int64_t>(p.total_steps, 1) - 1);
  const double top = o.warmup_fraction * static_cast<double>(p.total_steps) - 1;
  const auto now = std::min(static_cast<double>(p.step), end);
  const auto between_ = [&o](double from, double to, double share) {
    if (o.anneal == "linear") return from + (to - from) * share;
    return to + (from - to) / 2 * (std::cos(std::numbers::pi * share) + 1);
  };
  if (now <= top) return between_(first, o.max_lr, top <= 0 ? 1 : now / top);
  return between_(o.max_lr, last, end <= top ? 1 : (now - top) / (end - top));
}

template <class O, std::size_t N>
Scheduler scheduler(std::string_view name, std::string_view doc,
                    const std::array<registry::Row<O>, N>& rows,
                    double (*lr)(const O&, const Progress&, double),
                    bool needs_total_steps = false) {
  Scheduler result = entry<O, Scheduler>(name, doc, rows);
  result.needs_total_steps = needs_total_steps;
  if (lr != nullptr) {
    result.lr = [lr](const std::any& options, const Progress& progress, double base) {
      return lr(std::any_cast<const O&>(options), progress, base);
    };
  }
  return result;
}

Schedulers build() {
  Schedulers all;
  all.add(
      scheduler<NoSchedule>("none", "the learning rate stays as it is", kNone,
                            [](const NoSchedule&, const Progress&, double base) { return base; }));
  all.add(scheduler<StepSchedule>("step", "drops by a factor at even intervals", kStep, step_lr));
  all.add(scheduler<MultiStep>("multistep", "drops by a factor at given times", kMultiStep,
                               multistep_lr));
  all.add(scheduler<Cosine>("cosine", "falls along half a cosine wave", kCosine, cosine_lr, true));
  all.add(scheduler<LinearWarmup>("linear_warmup", "rises to the full learning rate, then stays",
                                  kWarmup, warmup_lr));
  all.add(scheduler<OneCycle>("one_cycle",
                              "up to max_lr and down to almost nothing over the whole run",
                              kOneCycle, one_cycle_lr, true));
  all.add(scheduler<PlateauOptions>("plateau", "drops when a metric stops getting better", kPlateau,
                                    nullptr));
  return all;
}

}  // namespace

const Schedulers& schedulers() {
  static const Schedulers all = build();
  return all;
}

Plateau::Plateau(PlateauOptions options, bool maximise, double base_lr)
    : options_(std::move(options)), maximise_(maximise) {
  state_.lr = base_lr;
}

double Plateau::observe(double value) {
  const double limit =
      maximise_ ? state_.best * (1 + options_.threshold) : state_.best * (1 - options_.threshold);
  const bool better =
      std::isfinite(value) && (!state_.started || (maximise_ ? value > limit : value < limit));
  if (better) {
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
    // PyTorch skips drops smaller than its eps of 1e-8.
    const double lower = std::max(state_.lr * options_.factor, options_.min_lr);
    if (state_.lr - lower > 1e-8) state_.lr = lower;
    state_.cooldown_left = options_.cooldown;
    state_.bad_checks = 0;
  }
  return state_.lr;
}

}  // namespace runner::components
