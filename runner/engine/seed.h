// engine: seeds of the many sources of random numbers of one run.
#pragma once

#include <cstdint>

namespace runner::engine {

/// A seed of a source's own, far from those that a person would write. `stream`: number of the
/// source, a rank's or a replica's, 0 or more; `step`: the one from which it's used. The first
/// source of a run has `seed` itself.
[[nodiscard]] std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream, std::int64_t step);

}  // namespace runner::engine
