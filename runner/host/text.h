#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace runner::host {

/// One code point decoded from UTF-8. An invalid byte gives `valid == false` and a length of 1.
struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  ///< bytes taken
  bool valid = false;
};

/// The first code point of a non-empty `text`; overlong forms and surrogates are invalid.
[[nodiscard]] CodePoint decode_utf8(std::string_view text);

/// `text` as it may go to a terminal, a log or a CSV cell: control characters (ESC, CR, newline, C1
/// ones too), marks that reorder or break lines, and bytes that aren't UTF-8 become visible:
/// "\x1b", "\n", "\u202e". Other text, backslashes too, stays as it is.
[[nodiscard]] std::string escape_text(std::string_view text);

/// 'text' in single quotes, escaped: how messages quote what a person wrote.
[[nodiscard]] std::string quote(std::string_view text);

/// "a, b, c".
[[nodiscard]] std::string join(const std::vector<std::string>& texts);

}  // namespace runner::host
