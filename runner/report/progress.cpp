#include "runner/report/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace runner::report {

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr int kLongestBar = 30;
constexpr int kShortestBar = 10;
constexpr std::string_view kSeparator = "  ";
constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kDim = "2";
constexpr std::string_view kBold = "1";
constexpr std::string_view kGreen = "32";

int number_width(std::int64_t number) { return static_cast<int>(std::to_string(number).size()); }

std::string padded(std::int64_t number, int width) {
  std::string text = std::to_string(number);
  if (std::ssize(text) < width) text.insert(0, static_cast<std::size_t>(width) - text.size(), ' ');
  return text;
}

std::string percent(double fraction) {
  // Rounded down: 100 % means all of it.
  return padded(static_cast<std::int64_t>(fraction * 100 + 1e-9), 3) + "%";
}

std::string styled(std::string_view text, std::string_view style, bool color) {
  if (!color || style.empty()) return std::string(text);
  return "\x1b[" + std::string(style) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace

/// A piece of a line. When the line is too long, the pieces of the lowest priority go first.
struct Progress::Part {
  std::string text = {};
  int priority = 0;
  std::string_view style = {};
  double bar_fraction = -1;  ///< not negative: a bar, which takes the room that is left
};

ProgressOptions progress_options(int fd, bool quiet, const host::Environment& environment) {
  ProgressOptions options;
  if (quiet) {
    options.mode = ProgressMode::quiet;
    return options;
  }
  if (!is_tty(fd)) return options;
  options.width = [fd] { return terminal_width(fd); };
  if (!can_redraw(fd, environment)) return options;
  options.mode = ProgressMode::terminal;
  options.utf8 = utf8_locale(environment);
  options.color = can_color(fd, environment);
  return options;
}

Progress::Progress(ProgressOptions options, Writer writer, host::Clock& clock)
    : options_(std::move(options)),
      writer_(std::move(writer)),
      clock_(clock),
      quiet_(options_.mode == ProgressMode::quiet) {
  steps_to_check_ = kNever;
}

Progress::~Progress() { clear_live_line(); }

void Progress::start(const PlanNumbers& numbers) {
  numbers_ = numbers;
  start_ = clock_.now();
  run_steps_ = 0;
  rate_ = 0;
  loss_.reset();
  metrics_.clear();
  pending_line_.clear();
  next_draw_ = start_;
  // The first epoch's line is never too soon.
  last_line_ = start_ - std::max(options_.line_interval_pipe, options_.line_interval_terminal);
  check_every_ = 1;
  steps_to_check_ = quiet_ ? kNever : 1;  // a quiet run never looks at the clock
}

void Progress::begin_epoch(std::int64_t epoch, std::int64_t steps_done) {
  epoch_ = epoch;
  epoch_step_ = epoch_first_step_ = steps_done;
  validating_ = false;
  epoch_validation_ = Seconds{0};
  if (quiet_) return;
  epoch_start_ = clock_.now();
  rate_time_ = epoch_start_;
  rate_steps_ = run_steps_;
  if (options_.mode == ProgressMode::terminal && epoch_start_ >= next_draw_) redraw(epoch_start_);
}

void Progress::begin_validation(std::int64_t batches) {
  validating_ = true;
  validation_step_ = 0;
  validation_batches_ = batches;
  if (quiet_) return;
  validation_start_ = clock_.now();
  update_rate(validation_start_);
  if (options_.mode == ProgressMode::terminal && validation_start_ >= next_draw_) {
    redraw(validation_start_);
  }
}

void Progress::end_validation(std::span<const Metric> metrics) {
  if (!validating_) return;
  validating_ = false;
  if (quiet_) return;
  const Seconds now = clock_.now();
  epoch_validation_ += now - validation_start_;
  rate_time_ = now;
  rate_steps_ = run_steps_;
  if (!metrics.empty()) keep(metrics);
}

void Progress::end_epoch(std::span<const Metric> metrics) {
  end_validation();
  if (quiet_) return;
  const Seconds now = clock_.now();
  if (!metrics.empty()) keep(metrics);
  std::string line = lay_out(epoch_parts(now, metrics));
  const bool terminal = options_.mode == ProgressMode::terminal;
  const Seconds interval = terminal ? options_.line_interval_terminal : options_.line_interval_pipe;
  if (now - last_line_ < interval) {
    pending_line_ = std::move(line);
    return;
  }
  print_line(line, now);
}

void Progress::message(std::string_view text) {
  if (quiet_) return;
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += escape_text(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const std::lock_guard lock(mutex_);
  if (live_line_.empty()) return writer_(out);
  writer_(std::string(kClearLine) + out + live_line_);
}

void Progress::finish() {
  if (quiet_) return;
  if (!pending_line_.empty()) print_line(std::exchange(pending_line_, {}), clock_.now());
  clear_live_line();
  steps_to_check_ = kNever;
}

/// Looks at the clock, decides how many steps may pass before the next look, and says whether it is
/// time to print. Only steps far shorter than the redraw interval are let pass unseen, and never
/// more than a few, so that a loop that suddenly slows down is noticed.
bool Progress::due() {
  constexpr Seconds kTooSoon{0.001};
  constexpr Seconds kTooLate{0.010};
  constexpr std::int64_t kLongestStride = 16;
  const Seconds now = clock_.now();
  const Seconds passed = now - last_check_;
  last_check_ = now;
  if (passed < kTooSoon) check_every_ = std::min(check_every_ * 2, kLongestStride);
  if (passed > kTooLate) check_every_ = 1;
  steps_to_check_ = check_every_;
  if (options_.mode == ProgressMode::terminal) return now >= next_draw_;
  return now - std::max(last_line_, start_) >= options_.step_interval_pipe;
}

void Progress::show_step(double loss) {
  loss_ = loss;
  update_rate(last_check_);
  if (options_.mode == ProgressMode::terminal) return redraw(last_check_);
  print_line(lay_out(live_parts(last_check_)), last_check_);
}

void Progress::show_validation() {
  if (options_.mode == ProgressMode::terminal) return redraw(last_check_);
  print_line(lay_out(live_parts(last_check_)), last_check_);
}

/// An exponential mean over some seconds, so that the speed neither jitters nor sticks.
void Progress::update_rate(Seconds now) {
  constexpr Seconds kMemory{3};
  const Seconds passed = now - rate_time_;
  if (passed.count() <= 0 || run_steps_ == rate_steps_) return;
  const double latest = static_cast<double>(run_steps_ - rate_steps_) / passed.count();
  const double weight = rate_ == 0 ? 1 : 1 - std::exp(-passed / kMemory);
  rate_ += weight * (latest - rate_);
  rate_time_ = now;
  rate_steps_ = run_steps_;
}

void Progress::keep(std::span<const Metric> metrics) {
  metrics_.clear();
  for (const Metric& metric : metrics) {
    metrics_.push_back({escape_text(metric.name), metric.value});
  }
}

std::string Progress::epoch_label() const {
  if (!numbers_.epochs) return "epoch " + std::to_string(epoch_);
  return "epoch " + padded(epoch_, number_width(*numbers_.epochs)) + "/" +
         std::to_string(*numbers_.epochs);
}

/// Steps from now to the end of the run, as far as epochs and max_steps tell.
std::optional<std::int64_t> Progress::steps_left() const {
  std::optional<std::int64_t> left;
  if (numbers_.epochs && numbers_.steps_per_epoch > 0) {
    left = (*numbers_.epochs - epoch_ + 1) * numbers_.steps_per_epoch - epoch_step_;
  }
  if (numbers_.max_steps) {
    const std::int64_t by_steps = *numbers_.max_steps - numbers_.first_step - run_steps_;
    left = std::min(left.value_or(by_steps), by_steps);
  }
  if (left) left = std::max<std::int64_t>(*left, 0);
  return left;
}

std::vector<Progress::Part> Progress::live_parts(Seconds now) const {
  std::vector<Part> parts;
  parts.push_back({.text = epoch_label(), .priority = 100, .style = kBold});
  if (validating_) parts.push_back({.text = "validating", .priority = 75});
  const std::int64_t step = validating_ ? validation_step_ : epoch_step_;
  const std::int64_t total = validating_ ? validation_batches_ : numbers_.steps_per_epoch;
  if (total > 0) {
    const double fraction =
        std::clamp(static_cast<double>(step) / static_cast<double>(total), 0., 1.);
    parts.push_back({.text = {}, .priority = 40, .style = kGreen, .bar_fraction = fraction});
    parts.push_back({.text = percent(fraction), .priority = 90});
    parts.push_back({.text = format_count(step) + "/" + format_count(total), .priority = 50});
  } else {
    parts.push_back({.text = "step " + format_count(step), .priority = 50});
  }
  if (rate_ > 0 && !validating_) {
    const double samples = rate_ * static_cast<double>(numbers_.batch);
    parts.push_back({.text = format_rate(rate_, "step"), .priority = 60, .style = kDim});
    parts.push_back({.text = format_rate(samples, "sample"), .priority = 20, .style = kDim});
  }
  if (const auto left = steps_left(); left && run_steps_ > 0) {
    // By the run's own pace, which has validation and checkpoints in it.
    const Seconds eta =
        (now - start_) * (static_cast<double>(*left) / static_cast<double>(run_steps_));
    parts.push_back({.text = "eta " + format_duration(eta), .priority = 70});
  }
  if (loss_) parts.push_back({.text = "loss " + format_metric(*loss_), .priority = 80});
  int priority = 35;
  for (const NamedValue& metric : metrics_) {
    parts.push_back(
        {.text = metric.name + " " + format_metric(metric.value), .priority = priority});
    priority = std::max(priority - 1, 21);
  }
  return parts;
}

std::vector<Progress::Part> Progress::epoch_parts(Seconds now,
                                                  std::span<const Metric> metrics) const {
  std::vector<Part> parts;
  parts.push_back({.text = epoch_label(), .priority = 100, .style = kBold});
  int priority = 90;
  for (const Metric& metric : metrics) {
    parts.push_back({.text = escape_text(metric.name) + " " + format_metric(metric.value),
                     .priority = priority});
    priority = std::max(priority - 1, 31);
  }
  const Seconds took = now - epoch_start_;
  const Seconds training = took - epoch_validation_;
  const std::int64_t steps = epoch_step_ - epoch_first_step_;
  if (steps > 0 && training.count() > 0) {
    const double rate = static_cast<double>(steps) / training.count();
    parts.push_back({.text = format_rate(rate, "step"), .priority = 25, .style = kDim});
    parts.push_back({.text = format_rate(rate * static_cast<double>(numbers_.batch), "sample"),
                     .priority = 20,
                     .style = kDim});
  }
  parts.push_back({.text = format_duration(took), .priority = 30, .style = kDim});
  return parts;
}

int Progress::columns() const {
  const int width = options_.width();
  return width > 0 ? std::max(width - 1, 1) : 0;
}

/// Drops parts until the rest fits, gives a bar the room that is left, and joins.
std::string Progress::lay_out(std::vector<Part> parts) const {
  const bool terminal = options_.mode == ProgressMode::terminal;
  if (!terminal) std::erase_if(parts, [](const Part& part) { return part.bar_fraction >= 0; });
  const int room = columns();
  const auto width_of = [](const Part& part) {
    return part.bar_fraction >= 0 ? kShortestBar : display_width(part.text);
  };
  const auto total_width = [&] {
    int width = static_cast<int>(kSeparator.size()) * (static_cast<int>(parts.size()) - 1);
    for (const Part& part : parts) width += width_of(part);
    return width;
  };
  const auto less = [](const Part& a, const Part& b) { return a.priority < b.priority; };
  while (room > 0 && parts.size() > 1 && total_width() > room) {
    parts.erase(std::min_element(parts.begin(), parts.end(), less));
  }
  int bar_width = kLongestBar;
  if (room > 0) bar_width = std::min(kLongestBar, kShortestBar + room - total_width());

  std::string line;
  for (const Part& part : parts) {
    if (!line.empty()) line += kSeparator;
    std::string text = part.bar_fraction >= 0 ? bar(part.bar_fraction, bar_width) : part.text;
    if (room > 0) text = prefix_of_width(text, room);  // a single part may be too long by itself
    line += styled(text, part.style, options_.color && terminal);
  }
  return line;
}

/// "[#####     ]", or "|█████▍    |" in eighths of a character; `width` counts the frame.
std::string Progress::bar(double fraction, int width) const {
  constexpr std::array<std::string_view, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int cells = width - 2;
  const int eighths = static_cast<int>(fraction * cells * 8 + 1e-9);
  const int full = eighths / 8;
  std::string text = options_.utf8 ? "|" : "[";
  for (int i = 0; i < full; ++i) text += options_.utf8 ? "█" : "#";
  const std::string_view rest =
      options_.utf8 ? kEighths[static_cast<std::size_t>(eighths % 8)] : std::string_view{};
  text += rest;
  const int blank = cells - full - (rest.empty() ? 0 : 1);
  text.append(static_cast<std::size_t>(std::max(blank, 0)), ' ');
  return text + (options_.utf8 ? "|" : "]");
}

void Progress::redraw(Seconds now) {
  std::string line = lay_out(live_parts(now));
  next_draw_ = now + options_.redraw_interval;
  const std::lock_guard lock(mutex_);
  live_line_ = std::move(line);
  writer_(std::string(kClearLine) + live_line_);
}

/// A line that stays; the one that is redrawn makes room for it and comes back below.
void Progress::print_line(const std::string& line, Seconds now) {
  last_line_ = now;
  pending_line_.clear();
  const std::lock_guard lock(mutex_);
  // The live line is that of the epoch which has just ended.
  writer_((live_line_.empty() ? "" : std::string(kClearLine)) + line + "\n");
  live_line_.clear();
}

void Progress::clear_live_line() {
  const std::lock_guard lock(mutex_);
  if (live_line_.empty()) return;
  writer_(kClearLine);
  live_line_.clear();
}

}  // namespace runner::report
