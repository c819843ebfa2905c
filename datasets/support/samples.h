// The two kinds of samples that datasets keep in memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "datasets/dataset.h"

namespace runner::datasets {

/// How a channel's byte becomes a float: (byte / full - mean) / deviation.
struct Normalization {
  float full = 255.0F;
  float mean = 0.0F;
  float deviation = 1.0F;
};

/// Images that stay bytes in memory (a quarter of the floats) and become floats on gathering,
/// through one table a channel.
class U8Images final : public Samples {
 public:
  /// `pixels` is labels.size() images, each channels.size() planes of equal size.
  U8Images(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
           std::span<const Normalization> channels);

  [[nodiscard]] std::int64_t size() const override;
  void gather_inputs(std::span<const std::int64_t> rows, float* out) const override;
  void gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const override;
  void gather_values(std::span<const std::int64_t> rows, float* out) const override;

 private:
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  std::vector<std::array<float, 256>> tables_;  // one a channel
  std::size_t plane_ = 0;
};

/// Rows of floats with a class or with `target_values` numbers each.
class FloatRows final : public Samples {
 public:
  static FloatRows with_classes(std::vector<float> inputs, std::vector<std::int64_t> classes);
  /// `target_values` is at least 1.
  static FloatRows with_values(std::vector<float> inputs, std::vector<float> values,
                               std::size_t target_values);

  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(size_); }
  void gather_inputs(std::span<const std::int64_t> rows, float* out) const override;
  void gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const override;
  void gather_values(std::span<const std::int64_t> rows, float* out) const override;

 private:
  FloatRows(std::vector<float> inputs, std::size_t size);

  std::vector<float> inputs_;
  std::vector<std::int64_t> classes_;
  std::vector<float> values_;
  std::size_t size_ = 0;
  std::size_t width_ = 0;
  std::size_t target_values_ = 0;
};

/// The row as an index; throws std::out_of_range unless 0 <= row < size.
[[nodiscard]] std::size_t checked_row(std::int64_t row, std::size_t size);
/// For the gather function that a dataset's target kind rules out; throws std::logic_error.
[[noreturn]] void wrong_target(TargetKind asked);

}  // namespace runner::datasets
