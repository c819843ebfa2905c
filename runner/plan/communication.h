// plan: what the processes of a run send each other, on paper.
#pragma once

#include <cstdint>
#include <string>

#include "runner/plan/plan.h"

namespace runner::plan {

/// Of one optimizer step; all 0 for a run of one process.
struct Communication {
  std::int64_t gradient_bytes = 0;  ///< of the model, in the format in which they travel
  /// That each process sends, and receives, in a ring: 2 (k - 1) / k of the gradients (Patarasuk &
  /// Yuan 2009). A link between two machines carries as much in each direction.
  std::int64_t sent_bytes = 0;

  /// Time on a link of so many bytes a second, latency aside.
  [[nodiscard]] double seconds_at(double bytes_per_second) const {
    return static_cast<double>(sent_bytes) / bytes_per_second;
  }
};

[[nodiscard]] Communication communication(const Plan& plan);

/// "gradients 4.0 MB a step, each process sends 7.0 MB: 0.56 ms at 100 Gb/s, …"; empty for a run
/// of one process.
[[nodiscard]] std::string communication_text(const Plan& plan);

}  // namespace runner::plan
