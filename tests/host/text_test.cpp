#include "runner/host/text.h"

#include <doctest/doctest.h>

namespace runner::host {
namespace {

TEST_CASE("escape_text: what controls a terminal becomes visible, other text stays") {
  struct Case {
    std::string_view text, expected;
  };
  const Case cases[] = {
      {"", ""},
      {"lenet v2 (best)", "lenet v2 (best)"},
      {R"(C:\data "x")", R"(C:\data "x")"},
      {"größe 大きさ 🙂", "größe 大きさ 🙂"},
      {"a\x1b[2Jb", R"(a\x1b[2Jb)"},
      {"a\r\n\tb", R"(a\r\n\tb)"},
      {std::string_view("a\0b", 3), R"(a\x00b)"},
      {"a\x7f\x08", R"(a\x7f\x08)"},
      {"\xc2\x9b"
       "31m",
       R"(\u009b31m)"},  // CSI as one C1 character
      {"\xe2\x80\xae"
       "gpj.exe",
       R"(\u202egpj.exe)"},  // right-to-left override
      {"a\xe2\x80\xa8"
       "b",
       R"(a\u2028b)"},                              // line separator
      {"\xff\xc3", R"(\xff\xc3)"},                  // not UTF-8, cut off
      {"\xc0\x8a", R"(\xc0\x8a)"},                  // overlong newline
      {"\xed\xa0\x80", R"(\xed\xa0\x80)"},          // surrogate
      {"\xf4\x90\x80\x80", R"(\xf4\x90\x80\x80)"},  // above U+10FFFF
  };
  for (const Case& c : cases) CHECK(escape_text(c.text) == c.expected);
}

TEST_CASE("escape_text: no byte pair yields a control character") {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text = {static_cast<char>(a), static_cast<char>(b)};
      const std::string escaped = escape_text(text);
      bool clean = true;
      for (std::size_t i = 0; i < escaped.size(); ++i) {
        const auto byte = static_cast<unsigned char>(escaped[i]);
        if (byte < 0x20 || byte == 0x7F) clean = false;
        if (byte == 0xC2 && static_cast<unsigned char>(escaped[i + 1]) < 0xA0) clean = false;
      }
      REQUIRE_MESSAGE(clean, a << " " << b);
    }
  }
}

TEST_CASE("quote: single quotes around escaped text") { CHECK(quote("a\nb") == R"('a\nb')"); }

TEST_CASE("decode_utf8: length and value of each form") {
  struct Case {
    std::string_view text;
    char32_t value;
    std::size_t length;
  };
  const Case cases[] = {{"a", 'a', 1}, {"é", 0xE9, 2}, {"大", 0x5927, 3}, {"🙂x", 0x1F642, 4}};
  for (const Case& c : cases) {
    const CodePoint decoded = decode_utf8(c.text);
    CHECK(decoded.valid);
    CHECK(decoded.value == c.value);
    CHECK(decoded.length == c.length);
  }
}

}  // namespace
}  // namespace runner::host
