#include "datasets/support/idx.h"

#include <array>
#include <system_error>

namespace runner::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMagicSize = 4;

std::string hex(std::uint32_t word) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 15U];
  return text;
}

std::uint32_t read_big_endian(DataFile& file, std::string_view what) {
  std::array<std::uint8_t, 4> bytes{};
  file.read(bytes, what);
  return std::uint32_t{bytes[0]} << 24U | std::uint32_t{bytes[1]} << 16U |
         std::uint32_t{bytes[2]} << 8U | std::uint32_t{bytes[3]};
}

void check_magic(DataFile& file, std::size_t rank) {
  const auto expected = static_cast<std::uint32_t>(0x0800U + rank);
  const std::uint32_t found = read_big_endian(file, "the magic number");
  if (found == expected) return;
  const bool other_kind = found == 0x0801U || found == 0x0803U;
  file.fail(0, "expected the magic number " + hex(expected) + ", found " + hex(found),
            !other_kind        ? "is this an IDX file of unsigned bytes?"
            : found == 0x0801U ? "this is a file of labels; are images and labels swapped?"
                               : "this is a file of images; are images and labels swapped?");
}

}  // namespace

std::vector<std::uint8_t> read_idx(DataFile& file, const std::vector<std::int64_t>& shape,
                                   RowRange range, std::string_view what) {
  static constexpr std::array<std::string_view, 3> kSizes = {"rows", "pixel rows", "pixel columns"};
  check_magic(file, shape.size());
  std::int64_t row_bytes = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t found = read_big_endian(file, "sizes");
    if (found != shape[i]) {
      file.fail(static_cast<std::int64_t>(kMagicSize * (1 + i)),
                "expected " + std::to_string(shape[i]) + " " + std::string(kSizes.at(i)) +
                    ", found " + std::to_string(found));
    }
    if (i > 0) row_bytes *= found;
  }
  file.expect_room(shape[0] * row_bytes, what);
  file.skip(range.begin * row_bytes, what);
  std::vector<std::uint8_t> kept(static_cast<std::size_t>((range.end - range.begin) * row_bytes));
  file.read(kept, what);
  file.skip((shape[0] - range.end) * row_bytes, what);
  file.expect_end();
  return kept;
}

RowRange rows_of(Part part, std::int64_t train_rows, std::int64_t validation_size,
                 std::int64_t test_rows) {
  switch (part) {
    case Part::train:
      return {0, train_rows - validation_size};
    case Part::validation:
      return {train_rows - validation_size, train_rows};
    case Part::test:
      return {0, test_rows};
  }
  return {};
}

std::vector<fs::path> idx_files(const fs::path& root, Part part) {
  const std::string prefix = part == Part::test ? "t10k" : "train";
  return {plain_or_gzipped(root, prefix + "-images-idx3-ubyte"),
          plain_or_gzipped(root, prefix + "-labels-idx1-ubyte")};
}

std::vector<fs::path> all_idx_files(const fs::path& root) {
  std::vector<fs::path> all = idx_files(root, Part::train);
  for (fs::path& file : idx_files(root, Part::test)) all.push_back(std::move(file));
  return all;
}

std::unique_ptr<Samples> load_idx_images(const IdxImages& what, const fs::path& root, Part part,
                                         std::int64_t validation_size,
                                         Normalization normalization) {
  expect_folder(root, what.help);
  const std::int64_t rows = part == Part::test ? what.test_rows : what.train_rows;
  const RowRange range = rows_of(part, what.train_rows, validation_size, what.test_rows);
  const std::vector<fs::path> paths = idx_files(root, part);
  DataFile label_file(paths[1], what.help);
  std::vector<std::uint8_t> labels = read_idx(label_file, {rows}, range, "labels");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < what.classes) continue;
    const std::int64_t row = range.begin + static_cast<std::int64_t>(i);
    label_file.fail(8 + row, "expected a label from 0 to " + std::to_string(what.classes - 1) +
                                 ", found " + std::to_string(labels[i]) + " (row " +
                                 std::to_string(row) + ")");
  }
  DataFile image_file(paths[0], what.help);
  std::vector<std::uint8_t> pixels =
      read_idx(image_file, {rows, what.height, what.width}, range, "images");
  return std::make_unique<U8Images>(std::move(pixels), std::move(labels),
                                    std::span(&normalization, 1));
}

void expect_folder(const fs::path& root, const std::string& help) {
  std::error_code ignored;
  if (fs::is_directory(root, ignored)) return;
  throw diag::Error(diag::Exit::machine, "the data folder '" + root.string() + "' does not exist",
                    help);
}

}  // namespace runner::datasets
