#pragma once

#include <filesystem>
#include <string>

namespace runner::launch {

/// Writes `text` to `path` by way of a temporary file beside it, so that no reader sees half of it.
/// Throws diag::Error (machine).
void write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace runner::launch
