// engine: what the launcher asks a worker because only LibTorch knows.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace runner::engine {

/// Answers `--has-device TYPE`, `--store HOST PORT get KEY` and `--store HOST PORT set KEY VALUE`
/// (of a c10d::TCPStore, torchrun's own for instance) with an exit status, and a value on the
/// standard output: 0 for yes. Nothing for arguments that are no question.
[[nodiscard]] std::optional<int> answer(const std::vector<std::string>& arguments);

}  // namespace runner::engine
