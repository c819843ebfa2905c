// A dataset in memory, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "datasets/dataset.h"

namespace runner::engine::test {

/// `n` samples of `features` numbers: sample i is [i, i + 0.5, …] through a fixed scrambling, its
/// class i % 3, its value a fixed function of the sample.
class MemorySamples : public datasets::Samples {
 public:
  MemorySamples(std::int64_t n, std::int64_t features) : n_(n), features_(features) {}

  [[nodiscard]] static float feature(std::int64_t row, std::int64_t column) {
    const auto mixed = static_cast<std::uint64_t>(row * 131 + column * 31 + 7) * 2654435761U;
    return static_cast<float>(mixed % 1000) / 500.0F - 1.0F;
  }
  [[nodiscard]] std::int64_t size() const override { return n_; }
  void gather_inputs(std::span<const std::int64_t> rows, float* out) const override {
    for (const std::int64_t row : rows) {
      if (row == broken_row) throw std::runtime_error("row " + std::to_string(row) + " is broken");
      for (std::int64_t column = 0; column < features_; ++column) *out++ = feature(row, column);
    }
  }
  void gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const override {
    for (const std::int64_t row : rows) *out++ = feature(row, 0) > 0 ? 2 : row % 2;
  }
  void gather_values(std::span<const std::int64_t> rows, float* out) const override {
    for (const std::int64_t row : rows) *out++ = 2 * feature(row, 0) - feature(row, 1) + 0.25F;
  }

  std::int64_t broken_row = -1;

 private:
  std::int64_t n_;
  std::int64_t features_;
};

inline datasets::Spec classes_spec(std::int64_t n, std::int64_t features) {
  datasets::Spec spec;
  spec.input = {features};
  spec.target = datasets::TargetKind::classes;
  spec.classes = 3;
  spec.train_size = n;
  return spec;
}
inline datasets::Spec values_spec(std::int64_t n, std::int64_t features) {
  datasets::Spec spec;
  spec.input = {features};
  spec.target = datasets::TargetKind::values;
  spec.target_values = 1;
  spec.train_size = n;
  return spec;
}

}  // namespace runner::engine::test
