#include "runner/report/summary.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <stdexcept>

namespace runner::report {
namespace {

TEST_CASE("table: aligns columns, numbers to the right, without white space at the ends") {
  Table table({{"layer"}, {"output"}, {"parameters", Align::right}});
  table.set_title("lenet");
  table.add_row({"conv1", "6×28×28", "156"});
  table.add_row({"fc", "10", "61,706"});
  table.add_rule();
  table.add_row({"total", "", "61,862"});
  table.add_row({"note"});
  CHECK(table.render() ==
        "lenet\n"
        "layer  output   parameters\n"
        "--------------------------\n"
        "conv1  6×28×28         156\n"
        "fc     10           61,706\n"
        "--------------------------\n"
        "total               61,862\n"
        "note\n");
  CHECK(table.render(0, /*utf8=*/true).find("──────────────────────────\n") != std::string::npos);
}

TEST_CASE("table: without header texts there is no header") {
  Table table({{""}, {""}});
  table.add_row({"a", "b"});
  CHECK(table.render() == "a  b\n");
  CHECK(Table({{"only"}}).render() == "only\n----\n");
}

TEST_CASE("table: wide cells wrap at spaces within their column, long words anywhere") {
  Table table({{"key"}, {"reason"}});
  table.add_row({"backend", "two GPUs and no backend written, so ddp"});
  table.add_row({"x", "/a/very/long/path/without/any/space"});
  CHECK(table.render(28) ==
        "key      reason\n"
        "----------------------------\n"
        "backend  two GPUs and no\n"
        "         backend written, so\n"
        "         ddp\n"
        "x        /a/very/long/path/w\n"
        "         ithout/any/space\n");
}

TEST_CASE("table: wide characters count two columns") {
  Table table({{"name"}, {"n", Align::right}});
  table.add_row({"大きさ", "1"});
  table.add_row({"abc", "2"});
  CHECK(table.render() ==
        "name    n\n"
        "---------\n"
        "大きさ  1\n"
        "abc     2\n");
}

TEST_CASE("table: what a name holds can't leave its cell") {
  Table table({{"a\n"}, {"b"}});
  table.add_row({"x\x1b[2J\n", "y"});
  CHECK(table.render() ==
        "a\\n         b\n"
        "-------------\n"
        "x\\x1b[2J\\n  y\n");
}

TEST_CASE("table: more cells than columns is a mistake in the program") {
  Table table({{"a"}});
  CHECK_THROWS_WITH_AS(table.add_row({"1", "2"}), "a row of 2 cells for 1 columns",
                       std::logic_error);
}

TEST_CASE("table: never wider than asked, and every word is still there") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Table table({{"left"}, {"right", Align::right}, {"text"}});
    std::string letters;
    for (int row = 0; row < 4; ++row) {
      std::vector<std::string> cells;
      for (int i = 0; i < 3; ++i) {
        std::string cell;
        for (unsigned n = random() % 40; n > 0; --n) cell += random() % 5 == 0 ? " " : "w";
        for (const char c : cell) letters += c == 'w' ? "w" : "";
        cells.push_back(cell);
      }
      table.add_row(cells);
    }
    const int width = 7 + static_cast<int>(random() % 60);
    const std::string text = table.render(width);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) REQUIRE(display_width(line) <= width);
    CHECK(std::count(text.begin(), text.end(), 'w') == std::ssize(letters));
  }
}

TEST_CASE("summary: best epoch, why it stopped, time and places") {
  const RunSummary summary{
      .name = "digits",
      .stopped = "val_loss has not improved for 3 epochs",
      .best_epoch = 4,
      .best_metric = "val_accuracy",
      .best_value = 0.9611,
      .epochs = 7,
      .steps = 1315,
      .samples = 42'000,
      .time = Seconds{83},
      .metrics = {{"train_loss", 0.0412}, {"val_accuracy", 0.9583}},
      .places = {{"run", "runs/digits/2026-03-01"}, {"checkpoint", "runs/digits/2026-03-01/best"}}};
  CHECK(render_summary(summary) ==
        "digits\n"
        "stopped     val_loss has not improved for 3 epochs\n"
        "best epoch  4 of 7  val_accuracy 0.9611\n"
        "last epoch  train_loss 0.04120  val_accuracy 0.9583\n"
        "trained     7 epochs, 1,315 steps in 1m 23s\n"
        "speed       506 samples/s\n"
        "run         runs/digits/2026-03-01\n"
        "checkpoint  runs/digits/2026-03-01/best\n");
}

TEST_CASE("summary: what isn't known isn't printed") {
  CHECK(render_summary({.epochs = 1, .steps = 1, .time = Seconds{0.5}}) ==
        "trained  1 epoch, 1 step in 0.50s\n");
}

}  // namespace
}  // namespace runner::report
