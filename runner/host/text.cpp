#include "runner/host/text.h"

#include <array>
#include <cstdio>

namespace runner::host {

namespace {

std::string hex(const char* format, unsigned value) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

/// Line and paragraph separators and the marks that reorder text on the screen (bidi controls).
bool reorders_or_breaks(char32_t c) {
  return c == 0x2028 || c == 0x2029 || c == 0x200E || c == 0x200F || c == 0x061C ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string escape_ascii_control(char32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return hex("\\x%02x", c);
  }
}

}  // namespace

CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.value = lead, .length = 1, .valid = true};
  const CodePoint invalid{.value = lead, .length = 1, .valid = false};
  std::size_t length = 0;
  if ((lead & 0xE0) == 0xC0) length = 2;
  if ((lead & 0xF0) == 0xE0) length = 3;
  if ((lead & 0xF8) == 0xF0) length = 4;
  if (length == 0 || text.size() < length) return invalid;

  char32_t value = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kSmallest[length] || value > 0x10FFFF || surrogate) return invalid;
  return {.value = value, .length = length, .valid = true};
}

std::string escape_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    if (!c.valid) {
      out += hex("\\x%02x", c.value);
    } else if (c.value < 0x20 || c.value == 0x7F) {
      out += escape_ascii_control(c.value);
    } else if ((c.value >= 0x80 && c.value < 0xA0) || reorders_or_breaks(c.value)) {
      out += hex("\\u%04x", c.value);
    } else {
      out += text.substr(0, c.length);
    }
    text.remove_prefix(c.length);
  }
  return out;
}

std::string quote(std::string_view text) {
  return std::string("'").append(escape_text(text)) += '\'';
}

std::string join(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

}  // namespace runner::host
