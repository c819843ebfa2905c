#include "runner/check/text.h"

#include <array>
#include <cstdio>

namespace runner::check {

std::string joined(std::span<const std::int64_t> numbers) {
  std::string out;
  for (const std::int64_t number : numbers) {
    out += (out.empty() ? "" : ", ") + std::to_string(number);
  }
  return out;
}

std::string joined(std::span<const std::string_view> words) {
  std::string out;
  for (const std::string_view word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

std::string counted(std::int64_t count, std::string_view noun) {
  const bool sibilant = noun.ends_with("tch") || noun.ends_with("s");
  return std::to_string(count) + " " + std::string(noun) +
         (count == 1 ? ""
          : sibilant ? "es"
                     : "s");
}

std::string bytes_text(std::int64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace runner::check
