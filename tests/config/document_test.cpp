#include "runner/config/document.h"

#include <doctest/doctest.h>

#include <chrono>

#include "tests/config/config_fixture.h"

using namespace runner;
using namespace runner::config;

namespace {

std::string syntax_error(std::string text) {
  Loading t(std::move(text));
  t.load();
  return t.found().empty() ? "" : t.found()[0];
}

}  // namespace

TEST_CASE("document: what isn't TOML is named with line and column") {
  CHECK(syntax_error("seed = \n") ==
        "t.toml:1:8 F002 not valid TOML: parsing key-value pair: expected value, saw '\\n'");
  CHECK(syntax_error("a = 1\na = 2\n").starts_with("t.toml:2:1 F002 not valid TOML: "));
  CHECK(syntax_error("{\"a\": 1}").starts_with("t.toml:1:1 F002 "));
  CHECK(syntax_error("x = 9223372036854775808").starts_with("t.toml:1:"));
  CHECK(syntax_error("x = \"\xff\"").starts_with("t.toml:1:"));
  CHECK(syntax_error(std::string("x = \"\0\"", 8)).starts_with("t.toml:1:"));
}

TEST_CASE("document: a key given twice names the first place") {
  Loading t("[optimizer]\nname = \"sgd\"\nlr = 0.1\nlr = 0.2\n");
  t.load();
  REQUIRE(t.sink.all().size() == 1);
  const diag::Diagnostic& d = t.sink.all()[0];
  REQUIRE(d.notes.size() == 1);
  CHECK(d.notes[0].message == "first defined here");
  CHECK(d.notes[0].at.line == 3);
}

TEST_CASE("document: texts that crash or stall a parser are refused at once") {
  std::string dots = "a";
  for (int i = 0; i < 200'000; ++i) dots += ".a";
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text :
       {std::string("[\n"), std::string("[.]"), std::string("[!]"), dots + " = 1", "[" + dots + "]",
        "x = { " + dots + " = 1 }", "x = " + std::string(10'000, '['), std::string(100'000, '{')}) {
    CAPTURE(text.substr(0, 20));
    CHECK(syntax_error(text).find(" F002 ") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
}

TEST_CASE("document: a byte order mark and CRLF line ends are fine") {
  Loading t(
      "\xEF\xBB\xBFseed = 1\r\n[model]\r\nname = \"mlp\"\r\n[dataset]\r\nname = \"digits\"\r\n");
  t.load();
  CHECK(t.found().empty());
  CHECK(t.experiment->model.name == "mlp");
}

TEST_CASE("document: an empty file and one of comments say what an experiment needs") {
  for (const char* text : {"", "# nothing\n", "\n\n"}) {
    CHECK(syntax_error(text) ==
          "t.toml:1:1 F006 the file is empty: an experiment needs at least a [model] and a "
          "[dataset]");
  }
}

TEST_CASE("document: a date is named as what no key takes") {
  CHECK(syntax_error("seed = 1979-05-27\n") ==
        "t.toml:1:8 C002 'seed' is a date or a time, which no key takes");
}
