#include <array>
#include <charconv>

#include "datasets/support/data_file.h"
#include "datasets/support/samples.h"

namespace runner::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRowCount = 1797;
constexpr std::size_t kTrainRows = 1437;
constexpr std::size_t kPixels = 64;
constexpr unsigned kDarkest = 16;
constexpr unsigned kClasses = 10;
constexpr std::size_t kLongestText = std::size_t{1} << 20U;

struct Options {
  std::string shape = "image";
};

constexpr auto kRows = registry::rows<Options>({
    {.name = "shape",
     .member = &Options::shape,
     .doc = "shape of a sample: image is [1, 8, 8], flat is [64]",
     .choices = {"image", "flat"}},
});
static_assert(registry::covers<Options>(kRows));

Spec describe(const Options& options, const Context&) {
  Spec spec;
  spec.input = options.shape == "flat" ? graph::Shape{64} : graph::Shape{1, 8, 8};
  spec.classes = kClasses;
  spec.train_size = kTrainRows;
  spec.validation_size = kRowCount - kTrainRows;
  spec.test_size = kRowCount - kTrainRows;
  spec.class_names = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  return spec;
}

fs::path file_of(const Context& context) { return context.shared / "digits.csv.gz"; }

/// Reads the numbers of the file one after the other.
class Reader {
 public:
  Reader(const DataFile& file, std::string_view text) : file_(file), text_(text) {}

  /// A number from 0 to `max` that ends with `end`.
  std::uint8_t number(unsigned max, char end) {
    unsigned value = 0;
    const char* const first = text_.data() + at_;
    const char* const last = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(first, last, value);
    if (error != std::errc{} || value > max || stop == last || *stop != end) {
      file_.fail(static_cast<std::int64_t>(at_), "expected a number from 0 to " +
                                                     std::to_string(max) + ", found '" +
                                                     shown(text_.substr(at_, 8)) + "'");
    }
    at_ += static_cast<std::size_t>(stop - first) + 1;
    return static_cast<std::uint8_t>(value);
  }
  void expect_end() const {
    if (at_ != text_.size()) {
      file_.fail(static_cast<std::int64_t>(at_), "expected the end after 1797 rows");
    }
  }

 private:
  const DataFile& file_;
  std::string_view text_;
  std::size_t at_ = 0;
};

std::unique_ptr<Samples> load(const Options&, const Context& context, Part part) {
  DataFile file(file_of(context), "it ships with runner; install runner again");
  std::vector<std::uint8_t> bytes(kLongestText);
  bytes.resize(file.read_some(bytes));
  Reader reader(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (std::size_t row = 0; row < kRowCount; ++row) {
    std::array<std::uint8_t, kPixels> image{};
    for (std::uint8_t& pixel : image) pixel = reader.number(kDarkest, ',');
    const std::uint8_t label = reader.number(kClasses - 1, '\n');
    if ((part == Part::train) != (row < kTrainRows)) continue;
    pixels.insert(pixels.end(), image.begin(), image.end());
    labels.push_back(label);
  }
  reader.expect_end();
  const Normalization to_unit{.full = static_cast<float>(kDarkest)};
  return std::make_unique<U8Images>(std::move(pixels), std::move(labels), std::span(&to_unit, 1));
}

std::vector<fs::path> files(const Options&, const Context& context) { return {file_of(context)}; }

}  // namespace

void register_digits(Datasets& datasets) {
  datasets.add(dataset("digits",
                       "UCI optical digits: 1,797 grey images, 8x8, 10 classes, shipped with "
                       "runner; the last 360 are both validation and test",
                       kRows, describe, load, files));
}

}  // namespace runner::datasets
