// config: debug.fail, a fault that one rank commits on demand.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace runner::config {

struct Fault {
  enum class How { raise, kill, abort, exit, hang, stop, memory };
  std::int64_t rank = 0;
  std::int64_t step = 1;  ///< optimizer step at whose beginning it happens, counted from 1
  How how = How::raise;
  std::int64_t attempts = 1;  ///< starts of the run in which it happens
};

/// Reads "rank=1,step=3,how=kill,attempts=2"; rank, how and attempts may be left out. Nothing for
/// any other text.
[[nodiscard]] std::optional<Fault> parse_fault(std::string_view text);

}  // namespace runner::config
