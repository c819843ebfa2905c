#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "runner/report/terminal.h"

/// The log of a process: a few levels, a file, a console. The header shows nothing of the library
/// below, whose fmt must not meet LibTorch's.
namespace runner::report::log {

enum class Level { trace, debug, info, warn, error, off };

/// By value: kLevelNames[int(Level::warn)] is "warn".
inline constexpr std::array<std::string_view, 6> kLevelNames = {"trace", "debug", "info",
                                                                "warn",  "error", "off"};

/// nullopt for a word that isn't one of kLevelNames.
[[nodiscard]] std::optional<Level> parse_level(std::string_view name);

struct Options {
  Level level = Level::info;          ///< what goes to the file
  Level console_level = Level::warn;  ///< what goes to the console
  std::filesystem::path file = {};    ///< appended to; empty: no file
  Writer console = {};                ///< one line a call; empty: no console
  int rank = -1;                      ///< "[rank 2]" in front of messages, if not negative
};

/// Replaces what an earlier call set up; until the first call nothing is logged. Not to be called
/// while another thread logs. Throws diag::Error(Exit::failed) when the file can't be opened.
///
/// A line of the file is "2026-03-01 12:00:00.123 [warn] [rank 2] text", one of the console "warn:
/// [rank 2] text". Messages are escaped: a record is a line, whatever a name in it holds. The file
/// is flushed at each warning and error, by flush(), and at exit; not by _exit() or a signal.
void init(Options options);

/// From now on messages go to the file only; for an error that is printed in another way. Other
/// threads may be logging.
void close_console();

/// Whether a message of `level` goes anywhere; for messages that cost something to make.
[[nodiscard]] bool enabled(Level level);

void trace(std::string_view text);
void debug(std::string_view text);
void info(std::string_view text);
void warn(std::string_view text);
void error(std::string_view text);

void flush();

}  // namespace runner::report::log
