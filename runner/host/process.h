// Facts about our own process and where its files lie.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runner/host/files.h"

namespace runner::host {

/// The folder of the running program, symbolic links resolved. Throws diag::Error(Exit::machine)
/// where /proc isn't mounted.
[[nodiscard]] std::filesystem::path self_exe_folder();

/// Where configs/ and datasets/ lie: share/runner beside an installed bin/, else the source tree
/// that the program was built from.
[[nodiscard]] std::filesystem::path data_folder(const std::filesystem::path& exe_folder,
                                                const Files& files);
[[nodiscard]] std::filesystem::path data_folder();

/// The commit that is checked out in the git work tree around `folder`, as hexadecimal digits, read
/// from git's files (no git program is started); nullopt outside a work tree or before the first
/// commit.
[[nodiscard]] std::optional<std::string> git_commit(const std::filesystem::path& folder,
                                                    const Files& files = system_files());

/// This machine's name, as it is set; empty if the kernel doesn't tell.
[[nodiscard]] std::string host_name();

/// Differs between any two boots of any two machines; empty if the kernel doesn't tell.
[[nodiscard]] std::string boot_id(const Files& files = system_files());

}  // namespace runner::host
