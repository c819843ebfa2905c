#include "datasets/support/samples.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace runner::datasets {

std::size_t checked_row(std::int64_t row, std::size_t size) {
  if (row >= 0 && static_cast<std::size_t>(row) < size) return static_cast<std::size_t>(row);
  throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(size));
}

void wrong_target(TargetKind asked) {
  throw std::logic_error(asked == TargetKind::classes ? "these samples have values, not classes"
                                                      : "these samples have classes, not values");
}

U8Images::U8Images(std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
                   std::span<const Normalization> channels)
    : pixels_(std::move(pixels)), labels_(std::move(labels)), tables_(channels.size()) {
  for (std::size_t c = 0; c < channels.size(); ++c) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const float scaled = static_cast<float>(byte) / channels[c].full;
      tables_[c][byte] = (scaled - channels[c].mean) / channels[c].deviation;
    }
  }
  if (!labels_.empty()) plane_ = pixels_.size() / labels_.size() / channels.size();
}

std::int64_t U8Images::size() const { return static_cast<std::int64_t>(labels_.size()); }

void U8Images::gather_inputs(std::span<const std::int64_t> rows, float* out) const {
  for (const std::int64_t row : rows) {
    const std::uint8_t* in =
        pixels_.data() + checked_row(row, labels_.size()) * plane_ * tables_.size();
    for (const std::array<float, 256>& table : tables_) {
      for (std::size_t i = 0; i < plane_; ++i) out[i] = table[in[i]];
      in += plane_;
      out += plane_;
    }
  }
}

void U8Images::gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const {
  for (const std::int64_t row : rows) *out++ = labels_[checked_row(row, labels_.size())];
}

void U8Images::gather_values(std::span<const std::int64_t>, float*) const {
  wrong_target(TargetKind::values);
}

FloatRows::FloatRows(std::vector<float> inputs, std::size_t size)
    : inputs_(std::move(inputs)), size_(size), width_(size == 0 ? 0 : inputs_.size() / size) {}

FloatRows FloatRows::with_classes(std::vector<float> inputs, std::vector<std::int64_t> classes) {
  FloatRows rows(std::move(inputs), classes.size());
  rows.classes_ = std::move(classes);
  return rows;
}

FloatRows FloatRows::with_values(std::vector<float> inputs, std::vector<float> values,
                                 std::size_t target_values) {
  FloatRows rows(std::move(inputs), values.size() / target_values);
  rows.values_ = std::move(values);
  rows.target_values_ = target_values;
  return rows;
}

void FloatRows::gather_inputs(std::span<const std::int64_t> rows, float* out) const {
  for (const std::int64_t row : rows) {
    out = std::copy_n(inputs_.data() + checked_row(row, size_) * width_, width_, out);
  }
}

void FloatRows::gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const {
  if (target_values_ != 0) wrong_target(TargetKind::classes);
  for (const std::int64_t row : rows) *out++ = classes_[checked_row(row, size_)];
}

void FloatRows::gather_values(std::span<const std::int64_t> rows, float* out) const {
  if (target_values_ == 0) wrong_target(TargetKind::values);
  for (const std::int64_t row : rows) {
    out =
        std::copy_n(values_.data() + checked_row(row, size_) * target_values_, target_values_, out);
  }
}

}  // namespace runner::datasets
