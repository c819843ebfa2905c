#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace runner::check {

/// Seconds of "MM:SS", "HH:MM:SS" or "DD:HH:MM:SS"; nothing for anything else. The first field may
/// be any number of up to six digits, the others have two and their usual bounds.
[[nodiscard]] std::optional<std::int64_t> parse_duration(std::string_view text);

}  // namespace runner::check
