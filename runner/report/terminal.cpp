#include "runner/report/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

namespace runner::report {

namespace {

template <class... Args>
std::string print(const char* format, Args... args) {
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, args...);
  return {buffer.data(), static_cast<std::size_t>(std::clamp(length, 0, 63))};
}

bool write_once(int fd, std::string_view& text) {
  const ssize_t written = ::write(fd, text.data(), text.size());
  if (written >= 0) {
    text.remove_prefix(static_cast<std::size_t>(written));
    return true;
  }
  if (errno == EINTR) return true;
  if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
  pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&ready, 1, -1) >= 0 || errno == EINTR;
}

using Range = std::pair<char32_t, char32_t>;

template <std::size_t N>
bool in_ranges(const std::array<Range, N>& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const Range& range) { return c >= range.first && c <= range.second; });
}

/// The blocks that matter for names and paths; a full wcwidth table isn't worth its size here.
int code_point_width(char32_t c) {
  constexpr std::array<Range, 8> kCombining = {{{0x0300, 0x036F},
                                                {0x0483, 0x0489},
                                                {0x0591, 0x05BD},
                                                {0x064B, 0x065F},
                                                {0x1AB0, 0x1AFF},
                                                {0x200B, 0x200F},
                                                {0x20D0, 0x20FF},
                                                {0xFE00, 0xFE0F}}};
  constexpr std::array<Range, 10> kWide = {{{0x1100, 0x115F},
                                            {0x2E80, 0x303E},
                                            {0x3041, 0xA4CF},
                                            {0xAC00, 0xD7A3},
                                            {0xF900, 0xFAFF},
                                            {0xFE30, 0xFE6F},
                                            {0xFF00, 0xFF60},
                                            {0xFFE0, 0xFFE6},
                                            {0x1F300, 0x1FAFF},
                                            {0x20000, 0x3FFFD}}};
  if (c < 0x20 || (c >= 0x7F && c < 0xA0) || in_ranges(kCombining, c)) return 0;
  return in_ranges(kWide, c) ? 2 : 1;
}

}  // namespace

Writer fd_writer(int fd) {
  return [fd](std::string_view text) {
    while (!text.empty() && write_once(fd, text)) {
    }
  };
}

bool is_tty(int fd) { return ::isatty(fd) == 1; }

int terminal_width(int fd) {
  constexpr int kDefault = 80;
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return size.ws_col;
}

bool utf8_locale(const host::Environment& environment) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = environment.get(name).value_or("");
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

bool can_redraw(int fd, const host::Environment& environment) {
  // Open MPI gives its ranks a terminal of their own, whatever reads it: a file, maybe.
  if (environment.get("OMPI_COMM_WORLD_RANK")) return false;
  return is_tty(fd) && environment.get("TERM").value_or("dumb") != "dumb";
}

bool can_color(int fd, const host::Environment& environment) {
  return can_redraw(fd, environment) && environment.get("NO_COLOR").value_or("").empty();
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const host::CodePoint c = host::decode_utf8(text);
    width += c.valid ? code_point_width(c.value) : 1;
    text.remove_prefix(c.length);
  }
  return width;
}

std::string_view prefix_of_width(std::string_view text, int width) {
  std::size_t length = 0;
  while (length < text.size()) {
    const host::CodePoint c = host::decode_utf8(text.substr(length));
    width -= c.valid ? code_point_width(c.value) : 1;
    if (width < 0) break;
    length += c.length;
  }
  return text.substr(0, length);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (std::abs(bytes) < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would round up to "1024.0" of the smaller unit.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return print("%.1f %s", value, kUnits[unit]);
}

std::string format_count(std::int64_t count) {
  std::string text = std::to_string(count);
  const std::ptrdiff_t first = count < 0 ? 1 : 0;
  for (std::ptrdiff_t i = std::ssize(text) - 3; i > first; i -= 3) {
    text.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return text;
}

std::string format_count(std::int64_t count, std::string_view unit) {
  return format_count(count).append(" ").append(unit).append(count == 1 ? "" : "s");
}

std::string format_duration(Seconds duration) {
  const double seconds = duration.count();
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "-";
  if (seconds < 9.995) return print("%.2fs", seconds);
  if (seconds < 59.95) return print("%.1fs", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return print("%lldm %02llds", whole / 60, whole % 60);
  if (whole < 86400) return print("%lldh %02lldm", whole / 3600, whole / 60 % 60);
  return print("%lldd %02lldh", whole / 86400, whole / 3600 % 24);
}

std::string format_rate(double per_second, std::string_view unit) {
  const std::string plural = std::string(" ").append(unit).append("s/s");
  if (!std::isfinite(per_second) || per_second <= 0) return std::string("-").append(plural);
  if (per_second < 1) return print("%.2f s/", 1 / per_second) + std::string(unit);
  if (per_second < 99.95) return print("%.1f", per_second) + plural;
  return format_count(std::llround(std::min(per_second, 1e18))) + plural;
}

std::string format_metric(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = print("%#.4g", value);
  if (text.back() == '.') text.pop_back();  // "1234."
  return text;
}

}  // namespace runner::report
