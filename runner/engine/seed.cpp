#include "runner/engine/seed.h"

namespace runner::engine {

std::uint64_t stream_seed(std::int64_t seed, std::int64_t stream, std::int64_t step) {
  if (stream == 0 && step == 0) return static_cast<std::uint64_t>(seed);
  // SplitMix64.
  auto z = static_cast<std::uint64_t>(seed) +
           static_cast<std::uint64_t>(stream) * 0x9E3779B97F4A7C15U +
           static_cast<std::uint64_t>(step) * 0xD1B54A32D192ED03U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return (z ^ (z >> 31U)) >> 11U;
}

}  // namespace runner::engine
