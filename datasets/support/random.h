#pragma once

#include <cstdint>
#include <initializer_list>

namespace runner::datasets {

/// SplitMix64's output function: a bijection that spreads every bit over all bits.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

/// The i-th number of the SplitMix64 stream that `key` names; any i at the same cost.
constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t i) {
  return mix(key + (i + 1) * kGolden);
}

/// A stream key from several numbers, in order.
constexpr std::uint64_t random_key(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t key = 0;
  for (const std::uint64_t number : numbers) key = random_bits(key ^ mix(number + kGolden), 0);
  return key;
}

}  // namespace runner::datasets
