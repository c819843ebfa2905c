// launch: why a run failed, as the launchers tell each other, the run folder and the person.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace runner::launch {

/// Whose fault: an exchange with the other ranks that broke is mostly the consequence of another
/// rank's end.
enum class FailureKind { own, collective };
[[nodiscard]] std::string_view to_text(FailureKind kind);

struct Failure {
  std::string message;
  std::string help = {};
  int exit = 1;            ///< diag::Exit
  std::int64_t rank = -1;  ///< -1: of no single rank
  std::string host = {};   ///< where the rank ran
  FailureKind kind = FailureKind::own;
  std::int64_t step = 0;  ///< that the rank was working on, from 1; 0: none yet
  std::int64_t attempt = 0;
};

/// One JSON object, as in failure.json.
[[nodiscard]] std::string to_json(const Failure& failure);
/// Of what a worker or another launcher wrote; members that are missing or of another type keep
/// their defaults. nullopt for text that is no JSON object.
[[nodiscard]] std::optional<Failure> failure_from_json(std::string_view text);

/// "rank 2", "ranks 0-3", "ranks 0-1, 5"; `ranks` in rising order, not empty.
[[nodiscard]] std::string ranks_text(std::span<const std::int64_t> ranks);
/// "5 s"; what is over a whole number of seconds is left out.
[[nodiscard]] std::string seconds_text(std::chrono::milliseconds time);
/// "signal 9 (SIGKILL)".
[[nodiscard]] std::string signal_text(int signal);

/// Leaves the reason where torchrun looks for it: in TORCHELASTIC_ERROR_FILE. `first`: of all that
/// write it, this is the one that torchrun shall name. Never throws: the run has failed already.
void write_torchelastic_error(const std::filesystem::path& file, const Failure& failure,
                              bool first);

}  // namespace runner::launch
