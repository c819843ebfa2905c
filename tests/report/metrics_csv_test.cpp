#include "runner/report/metrics_csv.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <sstream>
#include <stdexcept>

#include "runner/diag/error.h"
#include "tests/fakes/temp_folder.h"

namespace runner::report {
namespace {

const std::vector<std::string> kColumns = {"epoch", "step", "train_loss", "val_loss", "lr"};

void append(MetricsCsv& csv, const std::vector<Cell>& cells) { csv.append(cells); }

std::string error_of(const std::function<void()>& action, diag::Exit exit) {
  try {
    action();
  } catch (const diag::Error& error) {
    CHECK(error.exit() == exit);
    return error.what();
  }
  return "no error";
}

/// One record by RFC 4180, written apart from the code under test.
std::vector<std::string> parse_record(const std::string& line) {
  std::vector<std::string> cells(1);
  bool in_quotes = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_quotes && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += '"';
      ++i;
    } else if (c == '"') {
      in_quotes = !in_quotes;
    } else if (c == ',' && !in_quotes) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

TEST_CASE("metrics csv: header, rows, empty places for absent values, CRLF") {
  const TempFolder folder;
  MetricsCsv csv = MetricsCsv::create(folder / "metrics.csv", kColumns);
  append(csv, {{"epoch", std::int64_t{1}}, {"step", std::int64_t{45}}, {"train_loss", 0.5}});
  append(csv, {{"lr", 1e-3}, {"val_loss", 0.25F}, {"step", std::int64_t{90}}});
  append(csv, {});
  csv.flush();
  CHECK(folder.read("metrics.csv") ==
        "epoch,step,train_loss,val_loss,lr\r\n"
        "1,45,0.5,,\r\n"
        ",90,,0.25,0.001\r\n"
        ",,,,\r\n");
}

TEST_CASE("metrics csv: what comes for one step is one row, on the disk already or not") {
  for (const bool flushes : {false, true}) {
    CAPTURE(flushes);
    const TempFolder folder;
    MetricsCsv csv = MetricsCsv::create(folder / "m.csv", kColumns);
    const auto add = [&](const std::vector<Cell>& cells) {
      append(csv, cells);
      if (flushes) csv.flush();
    };
    add({{"step", std::int64_t{1}}, {"lr", 0.1}});
    const std::int64_t first_end = csv.byte_length();
    add({{"step", std::int64_t{2}}, {"val_loss", 0.5}, {"lr", 0.125}});
    CHECK(csv.last_row_start() == first_end);
    add({{"step", std::int64_t{2}}, {"train_loss", 0.75}, {"lr", 0.2}});
    CHECK(csv.last_row_start() == first_end);
    CHECK(csv.last_row() == std::vector<std::string>{"", "2", "0.75", "0.5", "0.2"});
    add({{"step", std::int64_t{20}}});
    csv.flush();
    const std::string content = folder.read("m.csv");
    CHECK(content ==
          "epoch,step,train_loss,val_loss,lr\r\n"
          ",1,,,0.1\r\n"
          ",2,0.75,0.5,0.2\r\n"
          ",20,,,\r\n");
    CHECK(csv.byte_length() == std::ssize(content));
  }
}

TEST_CASE("metrics csv: a row that got more after the checkpoint is resumed as it was then") {
  const TempFolder folder;
  std::int64_t start = 0;
  std::vector<std::string> row;
  {
    MetricsCsv csv = MetricsCsv::create(folder / "m.csv", kColumns);
    append(csv, {{"step", std::int64_t{1}}, {"lr", 0.1}});
    append(csv, {{"step", std::int64_t{2}}, {"lr", 0.1}});
    csv.sync();
    start = csv.last_row_start();
    row = csv.last_row();
    append(csv, {{"step", std::int64_t{2}}, {"train_loss", 0.75}});
  }
  const std::string kept = "epoch,step,train_loss,val_loss,lr\r\n,1,,,0.1\r\n";
  CHECK(folder.read("m.csv") == kept + ",2,0.75,,0.1\r\n");
  CHECK(error_of(
            [&] {
              (void)MetricsCsv::resume(folder / "m.csv", kColumns, start, {"1", "2"});
            },
            diag::Exit::failed) == "can't resume '" + (folder / "m.csv").native() +
                                       "': it has 5 columns, the checkpoint's last row 2");
  MetricsCsv csv = MetricsCsv::resume(folder / "m.csv", kColumns, start, row);
  CHECK(folder.read("m.csv") == kept + ",2,,,0.1\r\n");
  append(csv, {{"step", std::int64_t{2}}, {"val_loss", 0.5}});
  append(csv, {{"step", std::int64_t{3}}});
  csv.flush();
  CHECK(folder.read("m.csv") == kept + ",2,,0.5,0.1\r\n,3,,,\r\n");
}

TEST_CASE("metrics csv: floats are the shortest that read back as the same number") {
  const TempFolder folder;
  {
    MetricsCsv csv = MetricsCsv::create(folder / "m.csv", {"x"});
    append(csv, {{"x", 0.1}});
    append(csv, {{"x", 0.1F}});
    append(csv, {{"x", static_cast<double>(0.1F)}});
    append(csv, {{"x", 1e-6}});
    append(csv, {{"x", -0.0}});
    append(csv, {{"x", std::nan("")}});
    append(csv, {{"x", -std::nan("")}});
    append(csv, {{"x", -INFINITY}});
    append(csv, {{"x", std::numeric_limits<std::int64_t>::min()}});
  }
  CHECK(folder.read("m.csv") ==
        "x\r\n0.1\r\n0.1\r\n0.10000000149011612\r\n1e-06\r\n-0\r\nnan\r\nnan\r\n-inf\r\n"
        "-9223372036854775808\r\n");
}

TEST_CASE("metrics csv: any double comes back bit by bit") {
  const TempFolder folder;
  std::mt19937_64 random(3);
  std::vector<double> values = {std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<double>::max()};
  while (values.size() < 2000) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  {
    MetricsCsv csv = MetricsCsv::create(folder / "m.csv", {"x"});
    for (const double value : values) append(csv, {{"x", value}});
  }
  std::istringstream lines(folder.read("m.csv"));
  std::string line;
  std::getline(lines, line);
  for (const double value : values) {
    REQUIRE(std::getline(lines, line));
    CHECK(std::strtod(line.c_str(), nullptr) == value);
  }
}

TEST_CASE("metrics csv: names with commas, quotes and control characters keep the columns apart") {
  const TempFolder folder;
  const std::vector<std::string> columns = {"step", "acc \"cat, big\"", "acc\r\nevil,\x1b[2J"};
  {
    MetricsCsv csv = MetricsCsv::create(folder / "m.csv", columns);
    append(csv, {{columns[1], 0.5}, {columns[2], std::string_view("a\n\"b\",c")}});
  }
  const std::string content = folder.read("m.csv");
  CHECK(content ==
        "step,\"acc \"\"cat, big\"\"\",\"acc\\r\\nevil,\\x1b[2J\"\r\n"
        ",0.5,\"a\\n\"\"b\"\",c\"\r\n");
  const auto header = parse_record(content.substr(0, content.find("\r\n")));
  CHECK(header == std::vector<std::string>{"step", "acc \"cat, big\"", R"(acc\r\nevil,\x1b[2J)"});
}

TEST_CASE("metrics csv: never writes over another run's file") {
  const TempFolder folder;
  const auto path = folder.write("m.csv", "epoch\r\n1\r\n");
  CHECK(error_of([&] { (void)MetricsCsv::create(path, {"epoch"}); }, diag::Exit::failed) ==
        "can't create '" + path.native() + "': File exists");
  CHECK(folder.read("m.csv") == "epoch\r\n1\r\n");
  const auto nowhere = folder / "none/m.csv";
  CHECK(error_of([&] { (void)MetricsCsv::create(nowhere, {"epoch"}); }, diag::Exit::failed) ==
        "can't create '" + nowhere.native() + "': No such file or directory");
}

TEST_CASE("metrics csv: a column that the file doesn't have is a mistake in the program") {
  const TempFolder folder;
  MetricsCsv csv = MetricsCsv::create(folder / "m.csv", {"epoch"});
  CHECK_THROWS_WITH_AS(append(csv, {{"epcoh", 1.0}}), "metrics.csv has no column 'epcoh'",
                       std::logic_error);
  append(csv, {{"epoch", 1.0}});
  csv.flush();
  CHECK(folder.read("m.csv") == "epoch\r\n1\r\n");
}

TEST_CASE("metrics csv: byte_length counts what isn't flushed yet, sync writes it") {
  const TempFolder folder;
  MetricsCsv csv = MetricsCsv::create(folder / "m.csv", {"epoch"});
  append(csv, {{"epoch", std::int64_t{12}}});
  CHECK(csv.byte_length() == 11);
  CHECK(folder.read("m.csv") == "epoch\r\n");
  csv.sync();
  CHECK(folder.read("m.csv").size() == 11);
}

TEST_CASE("metrics csv: a resumed file is as if the run had never stopped") {
  const TempFolder folder;
  const auto row = [](MetricsCsv& csv, std::int64_t step) {
    append(csv, {{"step", step}, {"train_loss", 1.0 / static_cast<double>(step)}});
  };
  std::int64_t length = 0;
  {
    MetricsCsv csv = MetricsCsv::create(folder / "stopped.csv", kColumns);
    for (int step = 1; step <= 7; ++step) row(csv, step);
    csv.sync();
    length = csv.byte_length();
    for (int step = 8; step <= 9; ++step) row(csv, step);  // after the checkpoint, then killed
  }
  {
    MetricsCsv csv = MetricsCsv::resume(folder / "stopped.csv", kColumns, length);
    CHECK(csv.byte_length() == length);
    for (int step = 8; step <= 20; ++step) row(csv, step);
    CHECK(csv.byte_length() > length);
  }
  {
    MetricsCsv csv = MetricsCsv::create(folder / "whole.csv", kColumns);
    for (int step = 1; step <= 20; ++step) row(csv, step);
  }
  CHECK(folder.read("stopped.csv") == folder.read("whole.csv"));
}

TEST_CASE("metrics csv: a file that doesn't fit the checkpoint is refused and left alone") {
  const TempFolder folder;
  const std::string content = "epoch,step\r\n1,45\r\n2,90\r\n";
  const auto path = folder.write("m.csv", content);
  const std::string name = "'" + path.native() + "'";
  struct Case {
    std::vector<std::string> columns;
    std::int64_t length;
    diag::Exit exit;
    std::string expected;
  };
  const Case cases[] = {
      {{"epoch", "step"},
       25,
       diag::Exit::failed,
       "can't resume " + name + ": it has 24 bytes, the checkpoint says 25"},
      {{"epoch", "step"},
       0,
       diag::Exit::failed,
       "can't resume " + name + ": it has 24 bytes, the checkpoint says 0"},
      {{"epoch", "step"},
       17,
       diag::Exit::failed,
       "can't resume " + name + ": no row ends at byte 17, the length that the checkpoint says"},
      {{"epoch", "step", "lr"},
       18,
       diag::Exit::incompatible,
       "the columns of " + name + " are 'epoch,step', but this run has 'epoch,step,lr'"},
      {{"epoch"},
       18,
       diag::Exit::incompatible,
       "the columns of " + name + " are 'epoch,step', but this run has 'epoch'"},
  };
  for (const Case& c : cases) {
    CHECK(error_of([&] { (void)MetricsCsv::resume(path, c.columns, c.length); }, c.exit) ==
          c.expected);
    CHECK(folder.read("m.csv") == content);
  }
  CHECK_NOTHROW((void)MetricsCsv::resume(path, {"epoch", "step"}, 12));  // before the first row
  CHECK(folder.read("m.csv") == "epoch,step\r\n");

  const auto fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(error_of([&] { (void)MetricsCsv::resume(fifo, {"epoch"}, 7); }, diag::Exit::failed) ==
        "can't open '" + fifo.native() + "': it is not a regular file");
}

TEST_CASE(
    "metrics csv: a full disk is an error, and no row is lost or doubled once there is room") {
  const TempFolder folder;
  MetricsCsv csv = MetricsCsv::create(folder / "m.csv", {"step"});
  std::string expected = "step\r\n";
  for (std::int64_t step = 1; step <= 100; ++step) {
    append(csv, {{"step", step}});
    expected += std::to_string(step) + "\r\n";
  }
  // A limit on the file's size stands for the disk's end: the kernel takes a part, then none.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 50, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string error = error_of([&] { csv.flush(); }, diag::Exit::failed);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, handler);
  CHECK(error == "can't write '" + (folder / "m.csv").native() + "': File too large");
  CHECK(folder.read("m.csv") == expected.substr(0, 50));
  csv.flush();
  CHECK(folder.read("m.csv") == expected);
  CHECK(csv.byte_length() == std::ssize(expected));
}

}  // namespace
}  // namespace runner::report
