// Arithmetic of epochs, batches and steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "registry/value.h"

namespace runner::check {

/// limit_train_batches, limit_val_batches: a number of batches or a share of them.
struct BatchLimit {
  std::optional<std::int64_t> batches;
  std::optional<double> percent;

  /// Batches left of `total`; may be 0 for a small share.
  [[nodiscard]] std::int64_t of(std::int64_t total) const;
};
/// Nothing for a value that is neither an integer above 0 nor a string like "50%".
[[nodiscard]] std::optional<BatchLimit> parse_limit(const registry::Value& value);

/// Batches of one process in an epoch: each of `replicas` takes an equal share of the samples, the
/// shares padded to one size (with drop_last: cut to one).
[[nodiscard]] std::int64_t batch_count(std::int64_t samples, std::int64_t replicas,
                                       std::int64_t batch_size, bool drop_last);

/// a * b for counts, held at the largest number where it would overflow.
[[nodiscard]] std::int64_t product(std::int64_t a, std::int64_t b);

/// a / b rounded up, for a >= 0 and b >= 1.
[[nodiscard]] constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace runner::check
