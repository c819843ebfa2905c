// report: what a person sees while a run goes on and after it: progress, tables, metrics.csv, logs.
//
// Nothing here writes to a file descriptor by itself: text goes to a Writer, so that a test, a pipe
// and a terminal are the same thing, and user text goes through escape_text on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runner/host/clock.h"
#include "runner/host/environment.h"
#include "runner/host/text.h"

namespace runner::report {

using host::escape_text;
using host::Seconds;

/// Takes text to print; called with whole lines or whole redraws, never with pieces of one.
using Writer = std::function<void(std::string_view)>;

/// Writes all of the text to `fd`. Errors are swallowed: a reader that has gone away must not end
/// a training run.
[[nodiscard]] Writer fd_writer(int fd);

[[nodiscard]] bool is_tty(int fd);
/// Columns of the terminal behind `fd`; 80 when it isn't a terminal or doesn't say.
[[nodiscard]] int terminal_width(int fd);
/// Whether the locale (LC_ALL, else LC_CTYPE, else LANG) is a UTF-8 one.
[[nodiscard]] bool utf8_locale(const host::Environment& environment);
/// Whether `fd` is a person's terminal that can move its cursor (TERM isn't "dumb").
[[nodiscard]] bool can_redraw(int fd, const host::Environment& environment);
/// can_redraw, and nobody has set NO_COLOR to something.
[[nodiscard]] bool can_color(int fd, const host::Environment& environment);

/// Columns that `text` takes on a terminal: 2 for wide (CJK, emoji) characters, 0 for combining
/// ones. Control characters count 0; escape them first.
[[nodiscard]] int display_width(std::string_view text);
/// The longest beginning of `text` that takes at most `width` columns.
[[nodiscard]] std::string_view prefix_of_width(std::string_view text, int width);

[[nodiscard]] std::string format_bytes(std::int64_t bytes);  ///< "512 B", "1.2 MiB"
[[nodiscard]] std::string format_count(std::int64_t count);  ///< "61,706"
/// "1 epoch", "1,315 steps"; `unit` is the singular.
[[nodiscard]] std::string format_count(std::int64_t count, std::string_view unit);
/// "0.42s", "12.3s", "1m 23s", "2h 05m", "3d 04h"; "-" when it isn't finite or is negative.
[[nodiscard]] std::string format_duration(Seconds duration);
/// "12.3 steps/s", "1,234 steps/s"; below one a second, "3.20 s/step"; `unit` is the singular.
[[nodiscard]] std::string format_rate(double per_second, std::string_view unit);
/// Four significant digits, "0.3123", "12.50", "1.200e-05", so that columns stay aligned.
[[nodiscard]] std::string format_metric(double value);

}  // namespace runner::report
