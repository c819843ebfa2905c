#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace runner::registry {

/// Edit distance with swaps of neighbours counted once (optimal string alignment), case ignored.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate a person most likely meant, or "" when none is near enough.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// "a, b or c"; for lists in messages.
[[nodiscard]] std::string join_or(std::span<const std::string_view> words);

}  // namespace runner::registry
