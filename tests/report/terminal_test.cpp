#include "runner/report/terminal.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <thread>

#include "tests/fakes/fake_environment.h"

namespace runner::report {
namespace {

using host::FakeEnvironment;

/// A pseudo-terminal of `columns` columns.
struct Pty {
  explicit Pty(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    REQUIRE(::openpty(&master, &terminal, nullptr, nullptr, &size) == 0);
  }
  ~Pty() {
    ::close(master);
    ::close(terminal);
  }
  int master = -1;
  int terminal = -1;
};

TEST_CASE("terminal: counts have a singular") {
  CHECK(format_count(0, "epoch") == "0 epochs");
  CHECK(format_count(1, "epoch") == "1 epoch");
  CHECK(format_count(1315, "step") == "1,315 steps");
}

TEST_CASE("terminal: width and kind come from the file descriptor") {
  const Pty pty(43);
  CHECK(is_tty(pty.terminal));
  CHECK(terminal_width(pty.terminal) == 43);
  const Pty unknown(0);
  CHECK(terminal_width(unknown.terminal) == 80);
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  CHECK_FALSE(is_tty(pipe[1]));
  CHECK(terminal_width(pipe[1]) == 80);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_CASE("terminal: TERM=dumb can't redraw, NO_COLOR takes colours only") {
  const Pty pty(80);
  struct Case {
    FakeEnvironment environment;
    bool redraw, color;
  };
  const Case cases[] = {
      {{{"TERM", "xterm-256color"}}, true, true},
      {{{"TERM", "xterm"}, {"NO_COLOR", "1"}}, true, false},
      {{{"TERM", "xterm"}, {"NO_COLOR", ""}}, true, true},  // no-color.org: "not an empty string"
      {{{"TERM", "dumb"}}, false, false},
      {{}, false, false},
      // mpirun's own terminal, whatever is behind it
      {{{"TERM", "xterm"}, {"OMPI_COMM_WORLD_RANK", "0"}}, false, false},
  };
  for (const Case& c : cases) {
    CHECK(can_redraw(pty.terminal, c.environment) == c.redraw);
    CHECK(can_color(pty.terminal, c.environment) == c.color);
  }
  CHECK_FALSE(can_redraw(-1, FakeEnvironment({{"TERM", "xterm"}})));
}

TEST_CASE("utf8_locale: the first of LC_ALL, LC_CTYPE, LANG that says something") {
  struct Case {
    FakeEnvironment environment;
    bool expected;
  };
  const Case cases[] = {
      {{}, false},
      {{{"LANG", "en_US.UTF-8"}}, true},
      {{{"LANG", "C.utf8"}}, true},
      {{{"LANG", "de_DE.ISO-8859-1"}}, false},
      {{{"LC_ALL", "C"}, {"LANG", "en_US.UTF-8"}}, false},
      {{{"LC_ALL", ""}, {"LC_CTYPE", "C.UTF-8"}, {"LANG", "C"}}, true},
  };
  for (const Case& c : cases) CHECK(utf8_locale(c.environment) == c.expected);
}

TEST_CASE("fd_writer: writes everything, to a slow non-blocking reader too") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_NONBLOCK) == 0);
  const std::string text(1 << 20, 'x');
  std::size_t received = 0;
  std::thread reader([&] {
    std::array<char, 4096> buffer{};
    while (received < text.size()) {
      const ssize_t got = ::read(pipe[0], buffer.data(), buffer.size());
      if (got > 0) received += static_cast<std::size_t>(got);
    }
  });
  fd_writer(pipe[1])(text);
  reader.join();
  CHECK(received == text.size());
  ::close(pipe[0]);
  ::close(pipe[1]);
  fd_writer(-1)("nobody reads this");  // neither throws nor hangs
}

TEST_CASE("display_width: columns, not bytes") {
  CHECK(display_width("lenet") == 5);
  CHECK(display_width("größe") == 5);
  CHECK(display_width("大き") == 4);
  CHECK(display_width("e\xcc\x81") == 1);  // e and a combining acute
  CHECK(display_width("🙂") == 2);
  CHECK(display_width("█▍|") == 3);
  CHECK(prefix_of_width("大き", 3) == "大");
  CHECK(prefix_of_width("e\xcc\x81x", 1) == "e\xcc\x81");
  CHECK(prefix_of_width("abc", 0) == "");
  CHECK(prefix_of_width("abc", 9) == "abc");
}

TEST_CASE("format_bytes: binary units, one decimal") {
  struct Case {
    std::int64_t bytes;
    const char* expected;
  };
  const Case cases[] = {{0, "0 B"},
                        {1023, "1023 B"},
                        {1024, "1.0 KiB"},
                        {1234567, "1.2 MiB"},
                        {1048575, "1.0 MiB"},
                        {std::int64_t{80} << 30, "80.0 GiB"},
                        {std::numeric_limits<std::int64_t>::max(), "8.0 EiB"},
                        {-2048, "-2.0 KiB"}};
  for (const Case& c : cases) CHECK(format_bytes(c.bytes) == c.expected);
}

TEST_CASE("format_count: thousands") {
  struct Case {
    std::int64_t count;
    const char* expected;
  };
  const Case cases[] = {{0, "0"},          {999, "999"},           {1000, "1,000"},
                        {61706, "61,706"}, {1234567, "1,234,567"}, {-100, "-100"},
                        {-1000, "-1,000"}};
  for (const Case& c : cases) CHECK(format_count(c.count) == c.expected);
}

TEST_CASE("format_duration: two units at most") {
  struct Case {
    double seconds;
    const char* expected;
  };
  const Case cases[] = {
      {0, "0.00s"},       {0.4249, "0.42s"}, {9.994, "9.99s"},
      {9.996, "10.0s"},   {12.34, "12.3s"},  {59.94, "59.9s"},
      {59.96, "1m 00s"},  {83, "1m 23s"},    {3599.4, "59m 59s"},
      {3599.6, "1h 00m"}, {7500, "2h 05m"},  {86400.0 * 3 + 3600 * 4 + 59, "3d 04h"},
      {-1, "-"},          {NAN, "-"},        {INFINITY, "-"}};
  for (const Case& c : cases) CHECK(format_duration(Seconds{c.seconds}) == c.expected);
}

TEST_CASE("format_rate: per second, or seconds for one when slow") {
  struct Case {
    double rate;
    const char* expected;
  };
  const Case cases[] = {{1234.4, "1,234 steps/s"}, {99.96, "100 steps/s"},  {12.34, "12.3 steps/s"},
                        {1, "1.0 steps/s"},        {0.3125, "3.20 s/step"}, {0, "- steps/s"},
                        {NAN, "- steps/s"}};
  for (const Case& c : cases) CHECK(format_rate(c.rate, "step") == c.expected);
}

TEST_CASE("format_metric: four significant digits") {
  struct Case {
    double value;
    const char* expected;
  };
  const Case cases[] = {{0.31234, "0.3123"}, {0.93, "0.9300"},      {12.5, "12.50"},
                        {1234.5, "1234"},    {1, "1.000"},          {0, "0.000"},
                        {1e-5, "1.000e-05"}, {123456, "1.235e+05"}, {-0.5, "-0.5000"},
                        {NAN, "nan"},        {INFINITY, "inf"},     {-INFINITY, "-inf"}};
  for (const Case& c : cases) CHECK(format_metric(c.value) == c.expected);
}

}  // namespace
}  // namespace runner::report
