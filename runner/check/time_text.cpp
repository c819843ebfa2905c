#include "runner/check/time_text.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace runner::check {

namespace {

constexpr std::size_t kMostDigits = 6;

std::optional<std::int64_t> parse_number(std::string_view text) {
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (text.empty() || text.size() > kMostDigits || !digits) return {};
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::optional<std::int64_t> parse_duration(std::string_view text) {
  std::vector<std::int64_t> fields;
  for (bool more = true; more;) {
    const std::size_t colon = text.find(':');
    const std::string_view field = text.substr(0, colon);
    const auto value = parse_number(field);
    if (!value || (!fields.empty() && field.size() != 2)) return {};
    fields.push_back(*value);
    more = colon != std::string_view::npos;
    if (more) text.remove_prefix(colon + 1);
  }
  if (fields.size() < 2 || fields.size() > 4) return {};

  // From the right: seconds, minutes, hours, days; all but the first field written are bounded.
  constexpr std::int64_t kSeconds[] = {1, 60, 3600, 86400};
  constexpr std::int64_t kBounds[] = {60, 60, 24};
  std::int64_t total = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::int64_t value = fields[fields.size() - 1 - i];
    if (i + 1 < fields.size() && value >= kBounds[i]) return {};
    total += value * kSeconds[i];
  }
  return total;
}

}  // namespace runner::check
