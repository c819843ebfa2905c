#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace runner::store {

/// Names one process for good: pid numbers are used again, so the moment at which the process
/// started and the boot that it runs under belong to its name.
struct ProcessId {
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;  ///< since boot, in the kernel's clock ticks; 0 if it can't be read
  std::string boot_id;           ///< empty if the kernel doesn't tell

  [[nodiscard]] static ProcessId self();

  /// "<pid>-<start ticks>-<boot id>", fit for a file name.
  [[nodiscard]] std::string str() const;
  /// The reverse of str(); nullopt for any other text.
  [[nodiscard]] static std::optional<ProcessId> parse(std::string_view text);

  /// False when it has ended, zombies included, and for a process of another boot. Another machine
  /// is another boot: whoever asks about a shared folder must hold its RunLock.
  [[nodiscard]] bool alive() const;

  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

}  // namespace runner::store
