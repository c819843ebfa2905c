#include <algorithm>
#include <array>

#include "datasets/support/idx.h"

namespace runner::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTrainFiles = 5;
constexpr std::int64_t kRowsPerFile = 10000;
constexpr std::int64_t kPixels = std::int64_t{3} * 32 * 32;
constexpr std::int64_t kRecord = 1 + kPixels;  // the label, then the red, green and blue planes
constexpr std::int64_t kClasses = 10;
constexpr std::array<Normalization, 3> kPublished = {{
    {.mean = 0.4914F, .deviation = 0.2470F},
    {.mean = 0.4822F, .deviation = 0.2435F},
    {.mean = 0.4465F, .deviation = 0.2616F},
}};
constexpr const char* kHelp =
    "put data_batch_1.bin to data_batch_5.bin and test_batch.bin of CIFAR-10's binary version "
    "there, or set dataset.root to the folder that holds them";

struct Options {
  std::string root = "data/cifar-10-batches-bin";
  std::int64_t validation_size = 5000;
  bool normalize = true;
};

constexpr auto kRows = registry::rows<Options>({
    {.name = "root",
     .member = &Options::root,
     .doc = "folder with the six .bin files of the binary version, gzipped or not"},
    {.name = "validation_size",
     .member = &Options::validation_size,
     .doc = "images held out from the end of the training files for validation",
     .range = registry::between(0, 49999)},
    {.name = "normalize",
     .member = &Options::normalize,
     .doc = "subtract each channel's published mean and divide by its deviation, after scaling to "
            "0-1"},
});
static_assert(registry::covers<Options>(kRows));

Spec describe(const Options& options, const Context&) {
  Spec spec;
  spec.input = {3, 32, 32};
  spec.classes = kClasses;
  spec.train_size = kTrainFiles * kRowsPerFile - options.validation_size;
  spec.validation_size = options.validation_size;
  spec.test_size = kRowsPerFile;
  spec.class_names = {"airplane", "automobile", "bird",  "cat",  "deer",
                      "dog",      "frog",       "horse", "ship", "truck"};
  return spec;
}

std::vector<fs::path> train_files(const fs::path& root) {
  std::vector<fs::path> paths;
  for (std::int64_t i = 1; i <= kTrainFiles; ++i) {
    paths.push_back(plain_or_gzipped(root, "data_batch_" + std::to_string(i) + ".bin"));
  }
  return paths;
}

fs::path test_file(const fs::path& root) { return plain_or_gzipped(root, "test_batch.bin"); }

struct Images {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
};

/// Appends the rows of `range` from one file and verifies the file to its end.
void append(const fs::path& path, RowRange range, Images& images) {
  DataFile file(path, kHelp);
  file.expect_room(kRowsPerFile * kRecord, "images");
  std::array<std::uint8_t, kRecord> record{};
  for (std::int64_t row = 0; row < kRowsPerFile; ++row) {
    file.read(record, "an image with its label");
    if (record[0] >= kClasses) {
      file.fail(row * kRecord, "expected a label from 0 to 9, found " + std::to_string(record[0]) +
                                   " (row " + std::to_string(row) + ")");
    }
    if (row < range.begin || row >= range.end) continue;
    images.labels.push_back(record[0]);
    images.pixels.insert(images.pixels.end(), record.begin() + 1, record.end());
  }
  file.expect_end();
}

std::unique_ptr<Samples> load(const Options& options, const Context& context, Part part) {
  const fs::path root = resolve(context.base, options.root);
  expect_folder(root, kHelp);
  const RowRange range =
      rows_of(part, kTrainFiles * kRowsPerFile, options.validation_size, kRowsPerFile);
  const std::vector<fs::path> paths =
      part == Part::test ? std::vector{test_file(root)} : train_files(root);
  Images images;
  images.labels.reserve(static_cast<std::size_t>(range.end - range.begin));
  images.pixels.reserve(images.labels.capacity() * kPixels);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * kRowsPerFile;
    const RowRange here{std::max<std::int64_t>(range.begin - first, 0),
                        std::min(range.end - first, kRowsPerFile)};
    if (here.begin < here.end) append(paths[i], here, images);
  }
  constexpr std::array<Normalization, 3> kPlain{};
  return std::make_unique<U8Images>(std::move(images.pixels), std::move(images.labels),
                                    options.normalize ? kPublished : kPlain);
}

std::vector<fs::path> files(const Options& options, const Context& context) {
  const fs::path root = resolve(context.base, options.root);
  std::vector<fs::path> paths = train_files(root);
  paths.push_back(test_file(root));
  return paths;
}

}  // namespace

void register_cifar10(Datasets& datasets) {
  datasets.add(dataset("cifar10", "CIFAR-10: 60,000 colour images, 32x32, 10 classes", kRows,
                       describe, load, files));
}

}  // namespace runner::datasets
