// IDX, the format of MNIST: bytes 0 0 type rank, then `rank` big-endian u32 sizes, then the data
// row-major. Only unsigned bytes (type 8) are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "datasets/support/data_file.h"
#include "datasets/support/samples.h"

namespace runner::datasets {

struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Reads the rows of `range` from an IDX file of unsigned bytes whose header must promise exactly
/// `shape` (rows first). The rest is verified but not kept.
std::vector<std::uint8_t> read_idx(DataFile& file, const std::vector<std::int64_t>& shape,
                                   RowRange range, std::string_view what);

/// A dataset of grey images in MNIST's four files.
struct IdxImages {
  std::string help;  ///< how to get the files
  std::int64_t train_rows = 60000;
  std::int64_t test_rows = 10000;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

/// The rows that `part` takes from its file: the last `validation_size` rows of the training file
/// are the validation part.
[[nodiscard]] RowRange rows_of(Part part, std::int64_t train_rows, std::int64_t validation_size,
                               std::int64_t test_rows);

/// The images and the labels file of a part, in this order.
[[nodiscard]] std::vector<std::filesystem::path> idx_files(const std::filesystem::path& root,
                                                           Part part);
/// The four files of the dataset.
[[nodiscard]] std::vector<std::filesystem::path> all_idx_files(const std::filesystem::path& root);
[[nodiscard]] std::unique_ptr<Samples> load_idx_images(const IdxImages& what,
                                                       const std::filesystem::path& root, Part part,
                                                       std::int64_t validation_size,
                                                       Normalization normalization);

/// Throws diag::Error (machine) with `help` unless the folder exists.
void expect_folder(const std::filesystem::path& root, const std::string& help);

}  // namespace runner::datasets
