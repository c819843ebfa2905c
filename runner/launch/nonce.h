#pragma once

#include <string>

namespace runner::launch {

/// 32 hexadecimal digits that nobody can guess.
[[nodiscard]] std::string random_nonce();

}  // namespace runner::launch
