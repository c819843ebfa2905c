#include "runner/report/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runner/diag/error.h"

namespace runner::report::log {

namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::trace:
      return spdlog::level::trace;
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
  }
  return spdlog::level::off;
}

Level from_spdlog(spdlog::level::level_enum level) {
  for (const Level ours : {Level::trace, Level::debug, Level::info, Level::warn}) {
    if (to_spdlog(ours) == level) return ours;
  }
  return Level::error;
}

std::string_view name_of(Level level) { return kLevelNames[static_cast<std::size_t>(level)]; }

class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ConsoleSink(Writer writer) : writer_(std::move(writer)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line(name_of(from_spdlog(message.level)));
    line += ": ";
    line.append(message.payload.data(), message.payload.size());
    writer_(line + "\n");
  }
  void flush_() override {}

  Writer writer_;
};

/// spdlog's %l says "warning"; ours are the names that the level option takes.
class LevelName final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string_view name = name_of(from_spdlog(message.level));
    out.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<LevelName>();
  }
};

spdlog::sink_ptr file_sink(const std::filesystem::path& path, Level level) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.native());
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<LevelName>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e [%*] %v");
    sink->set_formatter(std::move(formatter));
    sink->set_level(to_spdlog(level));
    return sink;
  } catch (const spdlog::spdlog_ex& error) {
    throw diag::Error(diag::Exit::failed, "can't open the log file " + host::quote(path.native()) +
                                              ": " + error.what());
  }
}

struct State {
  std::unique_ptr<spdlog::logger> logger;  ///< nullptr until init
  spdlog::sink_ptr console;                ///< nullptr: none
  std::string prefix;
};

/// Destroyed at exit, which closes, and so flushes, the file.
State& state() {
  static State state;
  return state;
}

void write(Level level, std::string_view text) {
  if (!enabled(level)) return;
  const std::string message = state().prefix + escape_text(text);
  state().logger->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace

std::optional<Level> parse_level(std::string_view name) {
  const auto found = std::find(kLevelNames.begin(), kLevelNames.end(), name);
  if (found == kLevelNames.end()) return std::nullopt;
  return static_cast<Level>(found - kLevelNames.begin());
}

void init(Options options) {
  std::vector<spdlog::sink_ptr> sinks;
  Level lowest = Level::off;
  if (!options.file.empty() && options.level != Level::off) {
    sinks.push_back(file_sink(options.file, options.level));
    lowest = std::min(lowest, options.level);
  }
  spdlog::sink_ptr console;
  if (options.console && options.console_level != Level::off) {
    console = std::make_shared<ConsoleSink>(std::move(options.console));
    console->set_level(to_spdlog(options.console_level));
    sinks.push_back(console);
    lowest = std::min(lowest, options.console_level);
  }
  auto logger = std::make_unique<spdlog::logger>("runner", sinks.begin(), sinks.end());
  logger->set_level(to_spdlog(lowest));
  logger->flush_on(spdlog::level::warn);
  state() = {.logger = std::move(logger),
             .console = std::move(console),
             .prefix = options.rank < 0 ? "" : "[rank " + std::to_string(options.rank) + "] "};
}

void close_console() {
  if (state().console != nullptr) state().console->set_level(spdlog::level::off);
}

bool enabled(Level level) {
  const State& now = state();
  return level != Level::off && now.logger != nullptr && now.logger->should_log(to_spdlog(level));
}

void trace(std::string_view text) { write(Level::trace, text); }
void debug(std::string_view text) { write(Level::debug, text); }
void info(std::string_view text) { write(Level::info, text); }
void warn(std::string_view text) { write(Level::warn, text); }
void error(std::string_view text) { write(Level::error, text); }

void flush() {
  if (state().logger != nullptr) state().logger->flush();
}

}  // namespace runner::report::log
