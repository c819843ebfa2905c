#include "registry/option.h"

#include <doctest/doctest.h>

#include <limits>

namespace {

using namespace runner::registry;

struct Options {
  std::int64_t width = 128;
  double rate = 0.5;
  std::string mode = "min";
  bool on = true;
  std::optional<double> clip;
  std::vector<std::int64_t> hidden = {64, 32};
  std::vector<std::string> names;
  Value anything = 3;
};
constexpr auto kRows = rows<Options>({
    {.name = "width", .member = &Options::width, .doc = "units", .range = at_least(1)},
    {.name = "rate", .member = &Options::rate, .doc = "rate", .range = from_to_below(0, 1)},
    {.name = "mode", .member = &Options::mode, .doc = "mode", .choices = {"min", "max"}},
    {.name = "on", .member = &Options::on, .doc = "switch"},
    {.name = "clip", .member = &Options::clip, .doc = "clip", .range = above(0)},
    {.name = "hidden", .member = &Options::hidden, .doc = "layers", .range = at_least(1)},
    {.name = "names", .member = &Options::names, .doc = "names"},
    {.name = "anything", .member = &Options::anything, .doc = "anything", .type = "anything"},
});
static_assert(covers<Options>(kRows));

std::string misfit(std::string_view name, const Value& value) {
  Options options;
  const OptionTable& table = table_of<Options>(kRows);
  const auto result = table.set(&options, table.index(name), value);
  return result ? result->message : "";
}

}  // namespace

TEST_CASE("option: a value that doesn't fit is named with what was expected") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Row {
    const char* name;
    Value value;
    const char* message;
  };
  const std::vector<Row> rows = {
      {"width", 0, "expected an integer, at least 1, found the integer 0"},
      {"width", 1.5, "expected an integer, at least 1, found the float 1.5"},
      {"width", true, "expected an integer, at least 1, found the boolean true"},
      {"rate", 1, "expected a number, 0 to below 1, found the integer 1"},
      {"rate", nan, "expected a finite number, 0 to below 1, found the float nan"},
      {"rate", "x", "expected a number, 0 to below 1, found the string \"x\""},
      {"clip", -1, "expected a number, above 0, found the integer -1"},
      {"mode", "mix", "expected one of min or max, found the string \"mix\""},
      {"on", "yes", "expected true or false, found the string \"yes\""},
      {"hidden", 64, "expected a list of integers, found the integer 64"},
      {"hidden", Value::Array{64, 0},
       "element 1: expected an integer, at least 1, found the integer 0"},
      {"names", Value::Array{1}, "element 0: expected a string, found the integer 1"},
  };
  for (const Row& row : rows) CHECK(misfit(row.name, row.value) == row.message);
}

TEST_CASE("option: a misfit leaves the struct as it was") {
  Options options;
  const OptionTable& table = table_of<Options>(kRows);
  CHECK(table.set(&options, table.index("hidden"), Value::Array{1, -1}).has_value());
  CHECK(options.hidden == std::vector<std::int64_t>{64, 32});
}

TEST_CASE("option: every default survives get -> set -> get") {
  const OptionTable& table = table_of<Options>(kRows);
  const Options defaults;
  for (std::size_t i = 0; i < table.options().size(); ++i) {
    const Value value = table.get(&defaults, i);
    CHECK(value == table.options()[i].default_value);
    if (!value.has_value()) continue;
    Options copy;
    CHECK_FALSE(table.set(&copy, i, value).has_value());
    CHECK(table.get(&copy, i) == value);
  }
}

TEST_CASE("option: an integer fits a float option, nothing else is converted") {
  CHECK(misfit("rate", 0).empty());
  CHECK_FALSE(misfit("width", 1.0).empty());
  CHECK_FALSE(misfit("on", 1).empty());
}

TEST_CASE("option: ranges say what they hold") {
  CHECK(at_least(1).text() == "at least 1");
  CHECK(above(0).text() == "above 0");
  CHECK(between(0, 1).text() == "0 to 1");
  CHECK(from_to_below(0, 1).text() == "0 to below 1");
  CHECK(Range{}.text().empty());
  CHECK_FALSE(above(0).holds(0));
  CHECK(between(0, 1).holds(1));
}
