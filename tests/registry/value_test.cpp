#include "registry/value.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using runner::registry::to_toml;
using runner::registry::Value;

TEST_CASE("value: floats print as the shortest text that is still a float") {
  struct Row {
    double value;
    const char* text;
  };
  for (const Row& row : {Row{1e-6, "1e-06"}, Row{0.1, "0.1"}, Row{1.0, "1.0"}, Row{3e-4, "3e-04"},
                         Row{0.01, "0.01"}, Row{1e300, "1e+300"}, Row{-0.0, "-0.0"}}) {
    CHECK(to_toml(Value(row.value)) == row.text);
    CHECK(std::stod(to_toml(Value(row.value))) == row.value);
  }
  CHECK(to_toml(Value(std::numeric_limits<double>::infinity())) == "inf");
  CHECK(to_toml(Value(std::nan(""))) == "nan");
}

TEST_CASE("value: strings are quoted and escaped as TOML basic strings") {
  CHECK(to_toml(Value("a\"b\\c\nd\te\x1b")) == R"("a\"b\\c\nd\te\u001B")");
}

TEST_CASE("value: lists and tables print in the order written") {
  CHECK(to_toml(Value(Value::Array{1, 2.5, true, "x"})) == R"([1, 2.5, true, "x"])");
  CHECK(to_toml(Value(Value::Table{{"z", 1}, {"a.b", 2}})) == R"({ z = 1, "a.b" = 2 })");
  CHECK(to_toml(Value(Value::Table{})) == "{}");
}
