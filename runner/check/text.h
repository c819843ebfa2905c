// Small texts that messages are made of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace runner::check {

/// "0, 1, 2".
[[nodiscard]] std::string joined(std::span<const std::int64_t> numbers);
[[nodiscard]] std::string joined(std::span<const std::string_view> words);
/// "1 step", "12 steps".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun);
/// "512 B", "1.5 MiB".
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

}  // namespace runner::check
