#include "runner/diag/render.h"

#include <doctest/doctest.h>

using namespace runner::diag;

namespace {

Diagnostic example(Span at) {
  return {.code = Code::unknown_key,
          .message = "unknown key 'lrr' in [optimizer]",
          .at = at,
          .notes = {},
          .help = "did you mean 'lr'?",
          .key = "optimizer.lrr"};
}

}  // namespace

TEST_CASE("render: text shows place, code, line, caret and help") {
  Sources sources;
  const SourceFile* file = sources.add("t.toml", "[optimizer]\nlrr = 0.1\n");
  CHECK(render_text(example({file, 2, 1, 3}), false) ==
        "t.toml:2:1: error[C001]: unknown key 'lrr' in [optimizer]\n"
        "   2 | lrr = 0.1\n"
        "     | ^^^\n"
        "     = help: did you mean 'lr'?\n");
}

TEST_CASE("render: an argument has no line number in its place") {
  Sources sources;
  const SourceFile* argument = sources.add("argument 2", "optimizer.lrr=1", true);
  CHECK(render_text(example({argument, 1, 1, 13}), false) ==
        "argument 2: error[C001]: unknown key 'lrr' in [optimizer]\n"
        "   1 | optimizer.lrr=1\n"
        "     | ^^^^^^^^^^^^^\n"
        "     = help: did you mean 'lr'?\n");
}

TEST_CASE(
    "render: columns count code points, and control characters of the line don't reach the "
    "terminal") {
  Sources sources;
  const SourceFile* file = sources.add("t.toml", "ä\x1b[31m = 1\r\n");
  const std::string text = render_text(example({file, 1, 2, 1}), false);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find("     |  ^\n") != std::string::npos);
}

TEST_CASE("render: a long line is cut to 200 columns around the caret") {
  Sources sources;
  const SourceFile* file =
      sources.add("t.toml", std::string(100000, 'a') + "X" + std::string(100000, 'b'));
  const std::string text = render_text(example({file, 1, 100001, 1}), false);
  CHECK(text.size() < 1000);
  const std::size_t shown = text.find("   1 | ");
  const std::size_t caret_line = text.find("     | ");
  REQUIRE(shown != std::string::npos);
  REQUIRE(caret_line != std::string::npos);
  const std::size_t caret = text.find('^', caret_line) - caret_line;
  CHECK(text[shown + caret] == 'X');
}

TEST_CASE("render: a span past the end of its line still gets a caret") {
  Sources sources;
  const SourceFile* file = sources.add("t.toml", "ab\n");
  CHECK(render_text(example({file, 1, 3, 50}), false).find("     |   ^\n") != std::string::npos);
}

TEST_CASE("render: GitHub annotations escape what would end them") {
  Sources sources;
  const SourceFile* file = sources.add("a,b:c.toml", "x\n");
  Diagnostic d = example({file, 1, 2, 1});
  d.message = "50% done\nnext";
  CHECK(render_github(std::vector<Diagnostic>{d}) ==
        "::error file=a%2Cb%3Ac.toml,line=1,col=2,title=C001 unknown_key::50%25 "
        "done%0Anext%0Ahelp: did you mean 'lr'?\n");
}
