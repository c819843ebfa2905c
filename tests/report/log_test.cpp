#include "runner/report/log.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <regex>
#include <string>
#include <vector>

#include "runner/diag/error.h"
#include "tests/fakes/temp_folder.h"

namespace runner::report {
namespace {

struct Console {
  Writer writer() {
    return [this](std::string_view line) { lines.emplace_back(line); };
  }
  std::vector<std::string> lines;
};

void log_one_of_each() {
  log::trace("t");
  log::debug("d");
  log::info("i");
  log::warn("w");
  log::error("e");
}

/// No logger of this test may outlive it.
struct LogOff {
  ~LogOff() { log::init({}); }
};

TEST_CASE("log: levels go by their names") {
  CHECK(log::parse_level("warn") == log::Level::warn);
  CHECK(log::parse_level("off") == log::Level::off);
  CHECK(log::parse_level("Warn") == std::nullopt);
  CHECK(log::parse_level("") == std::nullopt);
  for (std::size_t i = 0; i < log::kLevelNames.size(); ++i) {
    CHECK(log::parse_level(log::kLevelNames[i]) == static_cast<log::Level>(i));
  }
}

TEST_CASE("log: once the console is closed, messages go to the file only") {
  const LogOff restore;
  const TempFolder folder;
  Console console;
  log::close_console();  // nothing there yet
  log::init({.file = folder / "run.log", .console = console.writer()});
  log::warn("first");
  log::close_console();
  log::error("second");
  CHECK(console.lines == std::vector<std::string>{"warn: first\n"});
  const std::string file = folder.read("run.log");
  CHECK(file.find("first") != std::string::npos);
  CHECK(file.find("[error] second") != std::string::npos);
}

TEST_CASE("log: file and console each have their level") {
  const LogOff restore;
  const TempFolder folder;
  struct Case {
    log::Level file, console;
    std::string in_file;
    std::vector<std::string> on_console;
  };
  using enum log::Level;
  const Case cases[] = {
      {trace, error, "tdiwe", {"error: e\n"}},
      {warn, info, "we", {"info: i\n", "warn: w\n", "error: e\n"}},
      {log::Level::off,
       trace,
       "",
       {"trace: t\n", "debug: d\n", "info: i\n", "warn: w\n", "error: e\n"}},
      {error, log::Level::off, "e", {}},
  };
  int number = 0;
  for (const Case& c : cases) {
    Console console;
    const std::string name = std::to_string(++number) + ".log";
    log::init({.level = c.file,
               .console_level = c.console,
               .file = folder / name,
               .console = console.writer()});
    log_one_of_each();
    log::flush();
    std::string letters;
    const std::string text = folder.read(name);
    const std::regex line(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[(\w+)\] (\w)\n)");
    std::size_t matched = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) {
      letters += (*it)[2].str();
      matched += static_cast<std::size_t>(it->length());
      CHECK((*it)[1].str().substr(0, 1) == (*it)[2].str());
    }
    CHECK(matched == text.size());  // nothing but such lines
    CHECK(letters == c.in_file);
    CHECK(console.lines == c.on_console);
  }
}

TEST_CASE("log: enabled tells whether anything would be written") {
  const LogOff restore;
  Console console;
  log::init({.console_level = log::Level::info, .console = console.writer()});
  CHECK(log::enabled(log::Level::info));
  CHECK_FALSE(log::enabled(log::Level::debug));
  CHECK_FALSE(log::enabled(log::Level::off));
  log::init({});
  CHECK_FALSE(log::enabled(log::Level::error));
  log::error("goes nowhere");
  CHECK(console.lines.empty());
}

TEST_CASE("log: the rank comes first, and a record is one line whatever it holds") {
  const LogOff restore;
  const TempFolder folder;
  Console console;
  log::init({.file = folder / "x.log", .console = console.writer(), .rank = 2});
  log::warn("run 'a\n[error] forged\x1b[2J' {} %s");
  CHECK(console.lines ==
        std::vector<std::string>{"warn: [rank 2] run 'a\\n[error] forged\\x1b[2J' {} %s\n"});
  const std::string text = folder.read("x.log");  // a warning is flushed at once
  CHECK(text.substr(24) == "[warn] [rank 2] run 'a\\n[error] forged\\x1b[2J' {} %s\n");
}

TEST_CASE("log: a second start appends to the file") {
  const LogOff restore;
  const TempFolder folder;
  for (int i = 0; i < 2; ++i) {
    log::init({.file = folder / "x.log"});
    log::info("start");
  }
  log::init({});
  const std::string text = folder.read("x.log");
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
}

TEST_CASE("log: what isn't flushed yet is written at exit") {
  const TempFolder folder;
  std::cout.flush();  // or the child would print it again
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    log::init({.file = folder / "x.log"});
    log::info("last words");
    if (!folder.read("x.log").empty()) ::_exit(1);  // or this test would show nothing
    std::exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  CHECK(folder.read("x.log").ends_with("[info] last words\n"));
}

TEST_CASE("log: a file that can't be opened is named") {
  const LogOff restore;
  const TempFolder folder;
  folder.write("file", "x");
  const auto path = folder / "file/x.log";
  try {
    log::init({.file = path});
    FAIL("no error");
  } catch (const diag::Error& error) {
    CHECK(error.exit() == diag::Exit::failed);
    CHECK(
        std::string(error.what()).starts_with("can't open the log file '" + path.native() + "': "));
  }
}

}  // namespace
}  // namespace runner::report
