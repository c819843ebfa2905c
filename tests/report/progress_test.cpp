#include "runner/report/progress.h"

#include <doctest/doctest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_environment.h"

namespace runner::report {
namespace {

using host::FakeClock;
using host::FakeEnvironment;

/// What a terminal of `width` columns shows: knows newline, carriage return, "erase to the end of
/// the line" and colours; anything else that controls a terminal is a failure, as is a full line.
class Screen {
 public:
  explicit Screen(int width = 80) : width_(width) {}

  Writer writer() {
    return [this](std::string_view text) { write(text); };
  }

  void write(std::string_view text) {
    raw += text;
    ++writes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') {
        CHECK(display_width(current) < width_);
        lines.push_back(current);
        current.clear();
      } else if (text[i] == '\r') {
        at_start_ = true;
      } else if (text[i] == '\x1b') {
        i += escape(text.substr(i)) - 1;
      } else {
        if (at_start_) FAIL("text over a line that wasn't erased");
        if (static_cast<unsigned char>(text[i]) < 0x20) FAIL("a control character");
        current += text[i];
      }
    }
    CHECK(display_width(current) < width_);
  }

  std::string raw;
  std::vector<std::string> lines;  ///< that stay
  std::string current;             ///< the one that is redrawn
  int writes = 0;

 private:
  std::size_t escape(std::string_view text) {
    if (text.starts_with("\x1b[K")) {
      REQUIRE(at_start_);
      current.clear();
      at_start_ = false;
      return 3;
    }
    const std::size_t end = text.find('m');
    REQUIRE(end != std::string_view::npos);
    REQUIRE(text.substr(0, end).find_first_not_of("\x1b[0123456789;") == std::string_view::npos);
    return end + 1;
  }

  int width_;
  bool at_start_ = false;
};

ProgressOptions terminal_options(int width = 80) {
  ProgressOptions options;
  options.mode = ProgressMode::terminal;
  options.width = [width] { return width; };
  return options;
}

/// `steps` steps of `each` seconds.
void run_steps(Progress& progress, FakeClock& clock, int steps, double each, double loss = 0.5) {
  for (int i = 0; i < steps; ++i) {
    clock.advance(Seconds{each});
    progress.step(loss);
  }
}

const std::vector<Metric> kMetrics = {
    {"train_loss", 0.31234}, {"val_loss", 0.28}, {"val_accuracy", 0.93}};

TEST_CASE("progress: in a terminal one line is redrawn and one stays for each epoch") {
  FakeClock clock;
  Screen screen(200);
  Progress progress(terminal_options(200), screen.writer(), clock);
  progress.start({.epochs = 10, .steps_per_epoch = 45, .batch = 32});
  progress.begin_epoch(1);
  CHECK(screen.current == "epoch  1/10  [                            ]    0%  0/45");
  run_steps(progress, clock, 24, 0.0625, 0.4567);  // 426 of 450 steps are left, at 16 a second
  CHECK(screen.lines.empty());
  CHECK(screen.current ==
        "epoch  1/10  [##############              ]   53%  24/45  16.0 steps/s  512 samples/s  "
        "eta 26.6s  loss 0.4567");
  run_steps(progress, clock, 21, 0.0625);
  progress.begin_validation(12);
  clock.advance(Seconds{0.1});
  progress.validation_step();
  CHECK(screen.current ==
        "epoch  1/10  validating  [##                          ]    8%  1/12  eta 26.2s  "
        "loss 0.5000");
  clock.advance(Seconds{0.4});
  progress.end_validation();
  progress.end_epoch(kMetrics);
  CHECK(screen.lines == std::vector<std::string>{
                            "epoch  1/10  train_loss 0.3123  val_loss 0.2800  val_accuracy 0.9300  "
                            "16.0 steps/s  512 samples/s  3.31s"});
  progress.begin_epoch(2);
  run_steps(progress, clock, 9, 0.0625);  // the ninth comes too soon after the eighth
  CHECK(screen.current ==
        "epoch  2/10  [####                        ]   17%  8/45  16.0 steps/s  512 samples/s  "
        "eta 28.6s  loss 0.5000  train_loss 0.3123  val_loss 0.2800  val_accuracy 0.9300");
  progress.finish();
  CHECK(screen.current.empty());
  CHECK(screen.lines.size() == 1);
}

TEST_CASE("progress: a narrow terminal gets the parts that matter most") {
  struct Case {
    int width;
    const char* live;
    const char* stays;
  };
  const Case cases[] = {
      {120,
       "epoch  1/10  [#########      ]   62%  28/45  16.0 steps/s  eta 26.4s  loss 0.5000  "
       "val_loss 0.2800  val_accuracy 0.9300",
       "epoch  1/10  train_loss 0.3123  val_loss 0.2800  val_accuracy 0.9300  16.0 steps/s  "
       "512 samples/s  1.75s"},
      {80, "epoch  1/10  [########     ]   62%  28/45  16.0 steps/s  eta 26.4s  loss 0.5000",
       "epoch  1/10  train_loss 0.3123  val_loss 0.2800  val_accuracy 0.9300  1.75s"},
      {40, "epoch  1/10   62%  loss 0.5000", "epoch  1/10  train_loss 0.3123"},
      {20, "epoch  1/10   62%", "epoch  1/10"},
      {8, "epoch  ", "epoch  "},
      {2, "e", "e"},
  };
  for (const Case& c : cases) {
    FakeClock clock;
    Screen screen(c.width);
    Progress progress(terminal_options(c.width), screen.writer(), clock);
    progress.start({.epochs = 10, .steps_per_epoch = 45, .batch = 32});
    progress.begin_epoch(1);
    run_steps(progress, clock, 26, 0.0625);
    progress.begin_validation(1);
    progress.end_validation(std::vector<Metric>{{"val_loss", 0.28}, {"val_accuracy", 0.93}});
    run_steps(progress, clock, 2, 0.0625);
    CHECK(screen.current == c.live);
    progress.end_epoch(kMetrics);
    CHECK(screen.lines == std::vector<std::string>{c.stays});
  }
}

TEST_CASE("progress: with a UTF-8 locale the bar moves by eighths") {
  FakeClock clock;
  Screen screen(200);
  ProgressOptions options = terminal_options(200);
  options.utf8 = true;
  Progress progress(options, screen.writer(), clock);
  progress.start({.epochs = std::nullopt, .steps_per_epoch = 28 * 8});
  progress.begin_epoch(3);
  CHECK(screen.current.starts_with("epoch 3  |                            |    0%  0/224"));
  clock.advance(Seconds{1});
  progress.step(1);
  CHECK(screen.current.starts_with("epoch 3  |▏                           |    0%  1/224"));
  run_steps(progress, clock, 11, 1);
  CHECK(screen.current.starts_with("epoch 3  |█▌                          |    5%  12/224"));
  run_steps(progress, clock, 212, 1);
  CHECK(screen.current.starts_with("epoch 3  |████████████████████████████|  100%  224/224"));
}

TEST_CASE("progress: colours are around the same text") {
  FakeClock clock;
  Screen plain;
  Screen colored;
  ProgressOptions options = terminal_options();
  Progress a(options, plain.writer(), clock);
  options.color = true;
  Progress b(options, colored.writer(), clock);
  for (Progress* progress : {&a, &b}) {
    progress->start({.epochs = 2, .steps_per_epoch = 10});
    progress->begin_epoch(1);
    progress->end_epoch(kMetrics);
  }
  CHECK(plain.lines == colored.lines);
  CHECK(plain.current == colored.current);
  CHECK(plain.raw.find("\x1b[1m") == std::string::npos);
  CHECK(colored.raw.find("\x1b[1mepoch 1/2\x1b[0m") != std::string::npos);
}

TEST_CASE("progress: redraws at most ten times a second, and asks for the loss only then") {
  FakeClock clock;
  Screen screen;
  Progress progress(terminal_options(), screen.writer(), clock);
  progress.start({.epochs = 1, .steps_per_epoch = 100'000});
  progress.begin_epoch(1);
  int asked = 0;
  for (int i = 0; i < 100'000; ++i) {  // 5 s
    clock.advance(Seconds{50e-6});
    progress.step([&asked] { return static_cast<double>(++asked); });
  }
  CHECK(asked >= 48);
  CHECK(asked <= 50);
  CHECK(screen.writes == asked + 1);  // and the first line of the epoch
}

TEST_CASE("progress: steps that suddenly get slow are shown within a few") {
  FakeClock clock;
  Screen screen;
  Progress progress(terminal_options(), screen.writer(), clock);
  progress.start({.epochs = 1, .steps_per_epoch = 20'000});
  progress.begin_epoch(1);
  run_steps(progress, clock, 10'000, 10e-6);
  run_steps(progress, clock, 16, 1);
  const int before = screen.writes;
  run_steps(progress, clock, 5, 1);
  CHECK(screen.writes == before + 5);
}

TEST_CASE("progress: epochs too fast to print are left out in a terminal, never the last") {
  FakeClock clock;
  Screen screen;
  Progress progress(terminal_options(), screen.writer(), clock);
  progress.start({.epochs = 1000, .steps_per_epoch = 1});
  for (int epoch = 1; epoch <= 1000; ++epoch) {  // 10 s
    progress.begin_epoch(epoch);
    run_steps(progress, clock, 1, 0.01);
    progress.end_epoch(kMetrics);
  }
  progress.finish();
  CHECK(screen.lines.size() >= 45);
  CHECK(screen.lines.size() <= 52);
  CHECK(screen.lines.front().starts_with("epoch    1/1000  train_loss 0.3123"));
  CHECK(screen.lines.back().starts_with("epoch 1000/1000  train_loss 0.3123"));
  CHECK(std::adjacent_find(screen.lines.begin(), screen.lines.end()) == screen.lines.end());
}

TEST_CASE("progress: slower epochs each get their line") {
  for (const ProgressMode mode : {ProgressMode::terminal, ProgressMode::pipe}) {
    FakeClock clock;
    Screen screen;
    ProgressOptions options = terminal_options();
    options.mode = mode;
    Progress progress(options, screen.writer(), clock);
    progress.start({.epochs = 20, .steps_per_epoch = 5});
    for (int epoch = 1; epoch <= 20; ++epoch) {
      progress.begin_epoch(epoch);
      run_steps(progress, clock, 5, 0.5);
      progress.end_epoch(kMetrics);
    }
    progress.finish();
    CHECK(screen.lines.size() == 20);
  }
}

TEST_CASE("progress: a pipe gets plain lines, one an epoch") {
  FakeClock clock;
  std::string out;
  Progress progress(
      {}, [&](std::string_view text) { out += text; }, clock);
  progress.start({.epochs = 2, .steps_per_epoch = 45, .batch = 32});
  for (int epoch = 1; epoch <= 2; ++epoch) {
    progress.begin_epoch(epoch);
    run_steps(progress, clock, 45, 0.1);
    progress.begin_validation(3);
    clock.advance(Seconds{1});
    progress.validation_step();
    progress.end_validation();
    progress.end_epoch(kMetrics);
  }
  progress.finish();
  CHECK(out ==
        "epoch 1/2  train_loss 0.3123  val_loss 0.2800  val_accuracy 0.9300  10.0 steps/s  "
        "320 samples/s  5.50s\n"
        "epoch 2/2  train_loss 0.3123  val_loss 0.2800  val_accuracy 0.9300  10.0 steps/s  "
        "320 samples/s  5.50s\n");
}

TEST_CASE("progress: a thousand fast epochs don't flood a pipe, and the last is there") {
  FakeClock clock;
  Screen screen;
  Progress progress({}, screen.writer(), clock);
  progress.start({.epochs = 1000, .steps_per_epoch = 1});
  for (int epoch = 1; epoch <= 1000; ++epoch) {  // 10 s
    progress.begin_epoch(epoch);
    run_steps(progress, clock, 1, 0.01);
    progress.end_epoch();
  }
  progress.finish();
  REQUIRE(screen.lines.size() == 6);  // at 0, 2, 4, 6, 8 s and the last
  CHECK(screen.lines.front().starts_with("epoch    1/1000  "));
  CHECK(screen.lines.back().starts_with("epoch 1000/1000  "));
  CHECK(screen.raw.find_first_of("\r\x1b") == std::string::npos);
}

TEST_CASE("progress: a pipe hears from a long epoch now and then") {
  FakeClock clock;
  std::string out;
  Progress progress(
      {}, [&](std::string_view text) { out += text; }, clock);
  progress.start({.epochs = 3, .steps_per_epoch = 100, .batch = 8});
  progress.begin_epoch(1);
  run_steps(progress, clock, 65, 1);
  CHECK(out ==
        "epoch 1/3   30%  30/100  1.0 steps/s  8.0 samples/s  eta 4m 30s  loss 0.5000\n"
        "epoch 1/3   60%  60/100  1.0 steps/s  8.0 samples/s  eta 4m 00s  loss 0.5000\n");
}

TEST_CASE("progress: quiet prints nothing and asks for nothing") {
  FakeClock clock;
  Screen screen;
  ProgressOptions options;
  options.mode = ProgressMode::quiet;
  Progress progress(options, screen.writer(), clock);
  int asked = 0;
  progress.start({.epochs = 1, .steps_per_epoch = 100});
  progress.begin_epoch(1);
  for (int i = 0; i < 100; ++i) {
    clock.advance(Seconds{10});
    progress.step([&] { return static_cast<double>(++asked); });
  }
  progress.begin_validation(1);
  progress.validation_step();
  progress.end_validation(kMetrics);
  progress.message("hello");
  progress.end_epoch(kMetrics);
  progress.finish();
  CHECK(screen.raw.empty());
  CHECK(asked == 0);
}

TEST_CASE("progress: a message goes above the line that is redrawn, escaped") {
  FakeClock clock;
  Screen screen;
  Progress progress(terminal_options(), screen.writer(), clock);
  progress.message("before the start");
  progress.start({.epochs = 1, .steps_per_epoch = 10});
  progress.begin_epoch(1);
  const std::string live = screen.current;
  REQUIRE(live != "");
  progress.message("saved 'a\x1b[2J'\nsecond line\n");
  CHECK(screen.lines ==
        std::vector<std::string>{"before the start", "saved 'a\\x1b[2J'", "second line"});
  CHECK(screen.current == live);

  std::string out;
  Progress pipe(
      {}, [&](std::string_view text) { out += text; }, clock);
  pipe.message("a\rb");
  CHECK(out == "a\\rb\n");
}

TEST_CASE("progress: messages from other threads never break a line") {
  FakeClock clock;
  Screen screen;
  Progress progress(terminal_options(), screen.writer(), clock);
  progress.start({.epochs = 1, .steps_per_epoch = 2000});
  progress.begin_epoch(1);
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) progress.message("a message");
  });
  run_steps(progress, clock, 2000, 0.2);
  other.join();
  progress.finish();
  CHECK(screen.lines == std::vector<std::string>(200, "a message"));
}

TEST_CASE("progress: the end is that of epochs or of max_steps, whichever comes first") {
  struct Case {
    PlanNumbers numbers;
    std::int64_t epoch, steps_done;
    const char* expected;
  };
  const Case cases[] = {
      {{.epochs = 4, .steps_per_epoch = 100},
       1,
       0,
       "epoch 1/4   30%  30/100  1.0 steps/s  1.0 samples/s  eta 6m 10s  loss 0.5000\n"},
      {{.epochs = 4, .steps_per_epoch = 100, .max_steps = 130},
       1,
       0,
       "epoch 1/4   30%  30/100  1.0 steps/s  1.0 samples/s  eta 1m 40s  loss 0.5000\n"},
      {{.steps_per_epoch = 100, .max_steps = 130},
       1,
       0,
       "epoch 1   30%  30/100  1.0 steps/s  1.0 samples/s  eta 1m 40s  loss 0.5000\n"},
      {{.steps_per_epoch = 100},
       1,
       0,
       "epoch 1   30%  30/100  1.0 steps/s  1.0 samples/s  loss 0.5000\n"},
      {{.max_steps = 130},
       1,
       0,
       "epoch 1  step 30  1.0 steps/s  1.0 samples/s  eta 1m 40s  loss 0.5000\n"},
      // Resumed in the middle of epoch 2, after 150 steps.
      {{.epochs = 4, .steps_per_epoch = 100, .max_steps = 380, .first_step = 150},
       2,
       50,
       "epoch 2/4   80%  80/100  1.0 steps/s  1.0 samples/s  eta 3m 20s  loss 0.5000\n"},
  };
  for (const Case& c : cases) {
    FakeClock clock;
    std::string out;
    Progress progress(
        {}, [&](std::string_view text) { out += text; }, clock);
    progress.start(c.numbers);
    progress.begin_epoch(c.epoch, c.steps_done);
    run_steps(progress, clock, 30, 1);
    CHECK(out == c.expected);
  }
}

TEST_CASE("progress: an epoch that was resumed in its middle counts only its own steps as speed") {
  FakeClock clock;
  std::string out;
  Progress progress(
      {}, [&](std::string_view text) { out += text; }, clock);
  progress.start({.epochs = 2, .steps_per_epoch = 100, .first_step = 90});
  progress.begin_epoch(1, 90);
  run_steps(progress, clock, 10, 0.5);
  progress.end_epoch();
  CHECK(out == "epoch 1/2  2.0 steps/s  2.0 samples/s  5.00s\n");
}

TEST_CASE("progress: the speed follows a change within some seconds") {
  FakeClock clock;
  Screen screen(200);
  Progress progress(terminal_options(200), screen.writer(), clock);
  progress.start({.epochs = 1, .steps_per_epoch = 100'000});
  progress.begin_epoch(1);
  run_steps(progress, clock, 1000, 0.01);
  CHECK(screen.current.find("  100 steps/s  ") != std::string::npos);
  run_steps(progress, clock, 60, 0.5);  // 30 s, ten times the memory
  CHECK(screen.current.find("  2.0 steps/s  ") != std::string::npos);
}

TEST_CASE("progress: a run that ends by an exception leaves no half line") {
  FakeClock clock;
  Screen screen;
  try {
    Progress progress(terminal_options(), screen.writer(), clock);
    progress.start({.epochs = 1, .steps_per_epoch = 10});
    progress.begin_epoch(1);
    REQUIRE(screen.current != "");
    throw std::runtime_error("the disk is full");
  } catch (const std::runtime_error&) {
  }
  CHECK(screen.current.empty());
}

TEST_CASE("progress: a metric's name can't control the terminal") {
  FakeClock clock;
  Screen screen;
  Progress progress(terminal_options(), screen.writer(), clock);
  progress.start({.epochs = 1, .steps_per_epoch = 1});
  progress.begin_epoch(1);
  clock.advance(Seconds{1});
  progress.end_epoch(std::vector<Metric>{{"acc\r\x1b[2J", 0.5}});
  CHECK(screen.lines == std::vector<std::string>{R"(epoch 1/1  acc\r\x1b[2J 0.5000  1.00s)"});
}

TEST_CASE("progress: a step that prints nothing costs well under a microsecond") {
  std::string out;
  Progress progress(
      terminal_options(), [&](std::string_view text) { out = text; }, host::system_clock());
  constexpr int kSteps = 200'000;
  progress.start({.epochs = 1, .steps_per_epoch = kSteps * 10});
  progress.begin_epoch(1);
  double best = 1;  // of several, because others use this machine too
  for (int round = 0; round < 10; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) progress.step(0.5);
    const Seconds took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / kSteps);
  }
  CHECK(best < 1e-6);
}

/// What comes out of `fd` after its other end has written `run`'s output.
std::string output_of(int fd, const std::function<void()>& run) {
  run();
  std::string text;
  std::array<char, 4096> buffer{};
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.find("the end") != std::string::npos) break;
  }
  return text;
}

void short_run(int fd, bool quiet, const FakeEnvironment& environment) {
  FakeClock clock;
  Progress progress(progress_options(fd, quiet, environment), fd_writer(fd), clock);
  progress.start({.epochs = 3, .steps_per_epoch = 20});
  for (int epoch = 1; epoch <= 3; ++epoch) {
    progress.begin_epoch(epoch);
    run_steps(progress, clock, 20, 0.07);
    progress.end_epoch(kMetrics);
  }
  progress.finish();
  fd_writer(fd)("the end");
}

TEST_CASE("progress: on a real terminal of 40 columns every line fits, whatever TERM is") {
  for (const char* term : {"xterm", "dumb"}) {
    winsize size{};
    size.ws_col = 40;
    size.ws_row = 24;
    int master = -1;
    int terminal = -1;
    REQUIRE(::openpty(&master, &terminal, nullptr, nullptr, &size) == 0);
    termios mode{};
    REQUIRE(::tcgetattr(terminal, &mode) == 0);
    ::cfmakeraw(&mode);  // no "\r" of the terminal's own before newlines
    REQUIRE(::tcsetattr(terminal, TCSANOW, &mode) == 0);
    const FakeEnvironment environment({{"TERM", term}, {"LANG", "C.UTF-8"}});
    const std::string text =
        output_of(master, [&] { short_run(terminal, /*quiet=*/false, environment); });
    Screen screen(40);
    screen.write(text);
    CHECK(screen.lines.size() == (term == std::string("dumb") ? 2 : 3));  // 1.4 s an epoch
    CHECK((text.find('\x1b') == std::string::npos) == (term == std::string("dumb")));
    ::close(master);
    ::close(terminal);
  }
}

TEST_CASE("progress: into a pipe no control character but the newline goes, even with TERM set") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const FakeEnvironment environment({{"TERM", "xterm"}, {"LANG", "C.UTF-8"}});
  const std::string text = output_of(pipe[0], [&] { short_run(pipe[1], false, environment); });
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(std::none_of(text.begin(), text.end(),
                     [](unsigned char c) { return (c < 0x20 && c != '\n') || c >= 0x7F; }));
  CHECK(output_of(pipe[0], [&] { short_run(pipe[1], /*quiet=*/true, environment); }) == "the end");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace runner::report
