#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/host/clock.h"
#include "runner/host/environment.h"
#include "runner/report/terminal.h"

namespace runner::report {

/// A named number, "val_loss" 0.31; the name is copied where it is kept.
struct Metric {
  std::string_view name;
  double value = 0;
};

/// How long the run is going to be, where that is known.
struct PlanNumbers {
  std::optional<std::int64_t> epochs = {};
  std::int64_t steps_per_epoch = 0;  ///< 0: not known
  std::optional<std::int64_t> max_steps = {};
  std::int64_t batch = 1;       ///< samples a step, over all processes
  std::int64_t first_step = 0;  ///< steps done before this start, for a resumed run
};

enum class ProgressMode {
  terminal,  ///< one line that is redrawn, and a line that stays for each epoch
  pipe,      ///< plain lines, now and then
  quiet,     ///< nothing
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::pipe;
  bool utf8 = false;
  bool color = false;
  /// Columns there are at this moment; 0 means no limit. A line never fills the last column, where
  /// some terminals wrap.
  std::function<int()> width = [] { return 0; };
  Seconds redraw_interval{0.1};         ///< terminal: between two redraws
  Seconds line_interval_terminal{0.2};  ///< terminal: between two lines that stay
  Seconds line_interval_pipe{2};        ///< pipe: between two lines at ends of epochs
  Seconds step_interval_pipe{30};       ///< pipe: without any line, before one within an epoch
};

/// What suits `fd`: quiet when asked for; a terminal that can redraw; else a pipe.
[[nodiscard]] ProgressOptions progress_options(int fd, bool quiet,
                                               const host::Environment& environment);

/// Shows how a training run goes on. The loop calls, in this order:
///
///   progress.start({.epochs = 10, .steps_per_epoch = 45, .batch = 32});
///   progress.begin_epoch(1);                        // epochs count from 1
///   progress.step([&] { return loss.item(); });     // the function is called only to print
///   progress.begin_validation(12);                  // also in the middle of an epoch
///   progress.validation_step();
///   progress.end_validation(metrics);
///   progress.end_epoch(metrics);
///   progress.finish();
///
/// A step that prints nothing costs some nanoseconds: fast loops look at the clock only every few
/// steps. When epochs are too fast to print each, some are left out, never the last.
/// All calls come from one thread, except message(), which may come from any.
class Progress {
 public:
  Progress(ProgressOptions options, Writer writer, host::Clock& clock);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void start(const PlanNumbers& numbers);
  /// `steps_done`: steps of this epoch that were done before, in a run resumed within an epoch.
  void begin_epoch(std::int64_t epoch, std::int64_t steps_done = 0);

  /// After each step (a batch). `loss()` gives the step's loss.
  template <std::invocable Loss>
  void step(Loss&& loss) {
    ++epoch_step_;
    ++run_steps_;
    if (--steps_to_check_ > 0 || !due()) return;
    show_step(static_cast<double>(loss()));
  }
  void step(double loss) {
    step([loss] { return loss; });
  }

  /// `batches` 0: not known.
  void begin_validation(std::int64_t batches);
  void validation_step() {
    ++validation_step_;
    if (--steps_to_check_ > 0 || !due()) return;
    show_validation();
  }
  void end_validation(std::span<const Metric> metrics = {});
  void end_epoch(std::span<const Metric> metrics = {});

  /// Prints `text`, escaped but for its newlines, on lines of its own, above the line that is
  /// redrawn. Not in quiet mode. From any thread.
  void message(std::string_view text);

  /// Ends the display: the last epoch's line stays. Nothing is shown after it until start().
  void finish();

 private:
  struct Part;
  struct NamedValue {
    std::string name;
    double value;
  };

  bool due();
  void show_step(double loss);
  void show_validation();
  void update_rate(Seconds now);
  void keep(std::span<const Metric> metrics);

  [[nodiscard]] std::string epoch_label() const;
  [[nodiscard]] std::optional<std::int64_t> steps_left() const;
  [[nodiscard]] std::vector<Part> live_parts(Seconds now) const;
  [[nodiscard]] std::vector<Part> epoch_parts(Seconds now, std::span<const Metric> metrics) const;
  [[nodiscard]] std::string lay_out(std::vector<Part> parts) const;
  [[nodiscard]] std::string bar(double fraction, int width) const;
  [[nodiscard]] int columns() const;

  void redraw(Seconds now);
  void print_line(const std::string& line, Seconds now);
  void clear_live_line();

  const ProgressOptions options_;
  const Writer writer_;
  host::Clock& clock_;
  const bool quiet_;

  PlanNumbers numbers_;
  std::int64_t epoch_ = 0;
  std::int64_t epoch_step_ = 0;
  std::int64_t epoch_first_step_ = 0;
  std::int64_t run_steps_ = 0;
  bool validating_ = false;
  std::int64_t validation_step_ = 0;
  std::int64_t validation_batches_ = 0;
  std::optional<double> loss_;
  std::vector<NamedValue> metrics_;

  Seconds start_{0};
  Seconds epoch_start_{0};
  Seconds epoch_validation_{0};  ///< time that this epoch has spent in validation
  Seconds validation_start_{0};

  double rate_ = 0;  ///< training steps a second, smoothed; 0: not known yet
  Seconds rate_time_{0};
  std::int64_t rate_steps_ = 0;

  std::int64_t steps_to_check_ = 1;
  std::int64_t check_every_ = 1;
  Seconds last_check_{0};
  Seconds next_draw_{0};
  Seconds last_line_{0};
  std::string pending_line_;  ///< an epoch's line that came too soon after the one before

  std::mutex mutex_;  ///< guards the writer and live_line_, which message() shares
  std::string live_line_;
};

}  // namespace runner::report
