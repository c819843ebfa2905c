#include "runner/diag/render.h"

#include <algorithm>

namespace runner::diag {

namespace {

constexpr std::size_t kLongestExcerpt = 200;  // code points

struct Style {
  std::string_view bold, red, yellow, blue, reset;
};

Style style(bool color) {
  if (!color) return {};
  return {"\x1b[1m", "\x1b[1;31m", "\x1b[1;33m", "\x1b[1;34m", "\x1b[0m"};
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Byte offset of code point number `index` (from 0), or the size.
std::size_t byte_offset(std::string_view text, std::size_t index) {
  std::size_t i = 0;
  while (i < text.size() && index > 0) {
    ++i;
    while (i < text.size() && is_continuation(text[i])) ++i;
    --index;
  }
  return i;
}

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

/// One column a code point: controls and tabs become a blank, so that carets stay aligned.
std::string flattened(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return out;
}

std::string excerpt(const Span& at, const Style& s) {
  if (at.file == nullptr || at.line == 0) return {};
  const std::string_view line = at.file->line(at.line);
  if (line.empty()) return {};
  const std::size_t column = at.column == 0 ? 0 : at.column - 1;
  // A long line is shown from a little before the caret.
  const std::size_t first = column > kLongestExcerpt / 2 ? column - kLongestExcerpt / 4 : 0;
  const std::size_t begin = byte_offset(line, first);
  const std::size_t end = begin + byte_offset(line.substr(begin), kLongestExcerpt);
  const std::string shown = flattened(line.substr(begin, end - begin));
  const std::string number = std::to_string(at.line);
  const std::size_t width = std::max<std::size_t>(number.size(), 4);
  const std::string margin(width, ' ');

  const std::size_t caret = column - first;
  const std::size_t room = code_points(shown) > caret ? code_points(shown) - caret : 1;
  const std::size_t length = std::clamp<std::size_t>(at.length, 1, room);
  std::string out;
  out += std::string(s.blue) + std::string(width - number.size(), ' ') + number + " | " +
         std::string(s.reset) + shown + "\n";
  out += std::string(s.blue) + margin + " | " + std::string(s.red) + std::string(caret, ' ') +
         std::string(length, '^') + std::string(s.reset) + "\n";
  return out;
}

/// A value of megabytes in a message is no help to anyone.
std::string clipped(std::string_view text) {
  constexpr std::size_t kLongestText = 1000;
  std::string shown = visible(text);
  if (code_points(shown) <= kLongestText) return shown;
  shown.resize(byte_offset(shown, kLongestText));
  return shown + "…";
}

std::string_view word(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::error:
      return "error";
  }
  return "";
}

/// GitHub's escapes for data and for properties; other control characters are made visible.
std::string escaped(std::string_view text, bool property) {
  std::string out;
  for (const char c : text) {
    if (c == '\x1b' || c == '\x7f')
      out += visible(std::string_view(&c, 1));
    else if (c == '%')
      out += "%25";
    else if (c == '\r')
      out += "%0D";
    else if (c == '\n')
      out += "%0A";
    else if (property && c == ':')
      out += "%3A";
    else if (property && c == ',')
      out += "%2C";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string visible(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

std::string place(const Span& span) {
  if (span.file == nullptr) return {};
  std::string out = visible(span.file->name);
  if (span.file->is_argument || span.line == 0) return out;
  return out + ":" + std::to_string(span.line) + ":" + std::to_string(span.column);
}

std::string render_text(const Diagnostic& d, bool color) {
  const Style s = style(color);
  const CodeInfo& code = info(d.code);
  const std::string_view tint = code.severity == Severity::error ? s.red : s.yellow;
  std::string out;
  if (const std::string where = place(d.at); !where.empty()) {
    out += std::string(s.bold) + where + ": " + std::string(s.reset);
  }
  out += std::string(tint) + std::string(word(code.severity)) + "[" + std::string(code.id) + "]" +
         std::string(s.reset) + std::string(s.bold) + ": " + clipped(d.message) +
         std::string(s.reset) + "\n";
  out += excerpt(d.at, s);
  for (const Note& note : d.notes) {
    const std::string where = place(note.at);
    out += std::string(s.blue) + "     = " + std::string(s.reset) +
           "note: " + (where.empty() ? "" : where + ": ") + clipped(note.message) + "\n";
    out += excerpt(note.at, s);
  }
  if (!d.help.empty()) {
    out += std::string(s.blue) + "     = " + std::string(s.reset) + std::string(s.bold) + "help" +
           std::string(s.reset) + ": " + clipped(d.help) + "\n";
  }
  return out;
}

std::string render_text(std::span<const Diagnostic> diagnostics, bool color) {
  std::string out;
  for (const Diagnostic& d : diagnostics) {
    if (!out.empty()) out += "\n";
    out += render_text(d, color);
  }
  return out;
}

std::string render_github(std::span<const Diagnostic> diagnostics) {
  std::string out;
  for (const Diagnostic& d : diagnostics) {
    const CodeInfo& code = info(d.code);
    out +=
        "::" + std::string(code.severity == Severity::note ? "notice" : word(code.severity)) + " ";
    if (d.at.file != nullptr && !d.at.file->is_argument) {
      out += "file=" + escaped(d.at.file->name, true) + ",";
      if (d.at.line > 0) {
        out += "line=" + std::to_string(d.at.line) + ",col=" + std::to_string(d.at.column) + ",";
      }
    }
    out += "title=" + std::string(code.id) + " " + std::string(code.name) +
           "::" + escaped(d.message + (d.help.empty() ? "" : "\nhelp: " + d.help), false) + "\n";
  }
  return out;
}

}  // namespace runner::diag
