#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "support.h"

namespace runner::datasets {
namespace {

using namespace test;

std::string big_endian(std::uint32_t word) {
  return {static_cast<char>(word >> 24U), static_cast<char>(word >> 16U),
          static_cast<char>(word >> 8U), static_cast<char>(word)};
}
std::string idx(std::uint32_t magic, const std::vector<std::uint32_t>& sizes,
                const std::string& data) {
  std::string text = big_endian(magic);
  for (const std::uint32_t size : sizes) text += big_endian(size);
  return text + data;
}
std::string labels_file(std::uint32_t rows) { return idx(0x801, {rows}, std::string(rows, '\3')); }
std::string images_file(std::uint32_t rows) {
  return idx(0x803, {rows, 28, 28}, std::string(std::size_t{784} * rows, '\7'));
}

constexpr auto kImages = "t10k-images-idx3-ubyte";
constexpr auto kLabels = "t10k-labels-idx1-ubyte";

std::string mnist_error(const TempFolder& folder) {
  return error_of(folder, [&] {
    static_cast<void>(Chosen("mnist", {{"root", "."}}).load(folder.context(), Part::test));
  });
}

std::vector<std::int64_t> counts(const std::vector<std::int64_t>& classes) {
  std::vector<std::int64_t> counts(10);
  for (const std::int64_t c : classes) ++counts.at(static_cast<std::size_t>(c));
  return counts;
}

TEST_CASE("every dataset has a doc and documented options, and its files are known unread") {
  const TempFolder folder;
  CHECK(all().names().size() == 6);
  for (const Dataset& dataset : all().entries()) {
    CAPTURE(dataset.name);
    CHECK(!dataset.doc.empty());
    CHECK(!dataset.doc.ends_with('.'));
    for (const registry::OptionInfo& option : dataset.options->options()) {
      CAPTURE(option.name);
      CHECK(!option.doc.empty());
      CHECK(!option.doc.ends_with('.'));
    }
    CHECK_NOTHROW(static_cast<void>(dataset.files(dataset.defaults, folder.context())));
  }
}

TEST_CASE("digits: sizes, first row and class counts are those of the published file") {
  const TempFolder folder;
  const Chosen digits("digits", {});
  const Spec spec = digits.describe(folder.context());
  CHECK(spec.input == graph::Shape{1, 8, 8});
  CHECK(spec.classes == 10);
  const auto train = digits.load(folder.context(), Part::train);
  const auto validation = digits.load(folder.context(), Part::validation);
  CHECK(train->size() == 1437);
  CHECK(train->size() == spec.train_size);
  CHECK(validation->size() == 360);
  CHECK(validation->size() == spec.validation_size);
  // scikit-learn's load_digits().data[0], times 1/16.
  constexpr std::array<float, 16> kFirst = {0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0};
  const std::vector<float> first = input(*train, 0, 64);
  for (std::size_t i = 0; i < kFirst.size(); ++i) CHECK(first[i] == kFirst[i] / 16.0F);
  std::vector<std::int64_t> all_classes = classes(*train);
  for (const std::int64_t c : classes(*validation)) all_classes.push_back(c);
  // The counts in the set's description at UCI (test file).
  CHECK(counts(all_classes) ==
        std::vector<std::int64_t>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
  CHECK(classes(*digits.load(folder.context(), Part::test)) == classes(*validation));
  CHECK(Chosen("digits", {{"shape", "flat"}}).describe(folder.context()).input == graph::Shape{64});
}

TEST_CASE("digits: a damaged file is an error with its offset") {
  const TempFolder folder;
  Context context = folder.context();
  context.shared = folder.path();
  const auto error = [&] {
    return error_of(folder,
                    [&] { static_cast<void>(Chosen("digits", {}).load(context, Part::train)); });
  };
  CHECK(error() == "4: 'digits.csv.gz' does not exist");
  folder.write("digits.csv.gz", "0,0,17,");
  CHECK(error() == "1: 'digits.csv.gz', offset 4: expected a number from 0 to 16, found '17,'");
}

TEST_CASE("fashion_mnist: the real files hold what is published about them") {
  const TempFolder folder;
  const Chosen fashion("fashion_mnist", {{"normalize", false}});
  const Spec spec = fashion.describe(folder.context());
  CHECK(spec.train_size == 55000);
  CHECK(spec.validation_size == 5000);
  CHECK(spec.test_size == 10000);
  if (!fs::exists(fashion.files(folder.context()).front())) {
    MESSAGE("SKIPPED: Debian's dataset-fashion-mnist is not installed");
    return;
  }
  const auto train = fashion.load(folder.context(), Part::train);
  const auto validation = fashion.load(folder.context(), Part::validation);
  CHECK(train->size() == 55000);
  CHECK(validation->size() == 5000);
  std::vector<std::int64_t> train_classes = classes(*train);
  CHECK(std::vector(train_classes.begin(), train_classes.begin() + 5) ==
        std::vector<std::int64_t>{9, 0, 0, 3, 0});
  for (const std::int64_t c : classes(*validation)) train_classes.push_back(c);
  CHECK(counts(train_classes) == std::vector<std::int64_t>(10, 6000));
  const auto test_part = fashion.load(folder.context(), Part::test);
  CHECK(counts(classes(*test_part)) == std::vector<std::int64_t>(10, 1000));

  // Over all 60,000 images the published mean and deviation make 0 and 1.
  const Chosen normalized("fashion_mnist", {{"validation_size", 0}});
  const auto samples = normalized.load(folder.context(), Part::train);
  double sum = 0.0;
  double squares = 0.0;
  for (std::int64_t row = 0; row < 60000; ++row) {
    for (const float value : input(*samples, row, 784)) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
  }
  CHECK(std::abs(sum / 47040000) < 1e-3);
  CHECK(std::abs(squares / 47040000 - 1) < 1e-3);
}

TEST_CASE("mnist: the validation part is the end of the training file") {
  const TempFolder folder;
  std::string labels;
  std::string pixels(std::size_t{784} * 60000, '\0');
  for (std::size_t row = 0; row < 60000; ++row) {
    labels += static_cast<char>(row % 7);
    pixels[row * 784 + 5] = static_cast<char>(row % 251);
  }
  folder.write("train-labels-idx1-ubyte", idx(0x801, {60000}, labels));
  folder.write_gzipped("train-images-idx3-ubyte.gz", idx(0x803, {60000, 28, 28}, pixels));
  const Chosen mnist("mnist", {{"root", "."}, {"validation_size", 100}, {"normalize", false}});
  const auto validation = mnist.load(folder.context(), Part::validation);
  REQUIRE(validation->size() == 100);
  CHECK(classes(*validation).front() == 59900 % 7);
  CHECK(input(*validation, 99, 784)[5] == static_cast<float>(59999 % 251) / 255.0F);
  const auto train = mnist.load(folder.context(), Part::train);
  REQUIRE(train->size() == 59900);
  CHECK(input(*train, 59899, 784)[5] == static_cast<float>(59899 % 251) / 255.0F);
  const Chosen normalized("mnist", {{"root", "."}, {"validation_size", 1}});
  const auto last = normalized.load(folder.context(), Part::validation);
  CHECK(input(*last, 0, 784)[0] == doctest::Approx(-0.1307 / 0.3081));
}

TEST_CASE("mnist: missing files say how to get them") {
  const TempFolder folder;
  const auto act = [&] {
    static_cast<void>(Chosen("mnist", {}).load(folder.context(), Part::test));
  };
  CHECK(error_of(folder, act) == "4: the data folder 'data/mnist' does not exist");
  CHECK(help_of(act) ==
        "put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
        "t10k-labels-idx1-ubyte there, gzipped (.gz) or not, or set dataset.root to the folder "
        "that holds them");
  CHECK(help_of([&] {
          static_cast<void>(
              Chosen("fashion_mnist", {{"root", "nowhere"}}).load(folder.context(), Part::test));
        }) ==
        "install them with 'apt-get install dataset-fashion-mnist', or set dataset.root to the "
        "folder with the four files *-ubyte or *-ubyte.gz");
  CHECK(mnist_error(folder) == "4: 't10k-labels-idx1-ubyte' does not exist");
  fs::create_directory(folder.path() / kLabels);
  CHECK(mnist_error(folder) == "4: 't10k-labels-idx1-ubyte' is not a regular file");
}

TEST_CASE("mnist: a damaged file is an error that names file, offset, expected and found") {
  const std::string good_labels = labels_file(10000);
  const std::string good_images = images_file(10000);
  std::string bad_label = good_labels;
  bad_label[8 + 77] = '\12';
  struct Case {
    std::string labels;
    std::string images;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {good_labels, good_images, "no error"},
      {"", good_images,
       "1: 't10k-labels-idx1-ubyte', offset 0: expected 4 bytes of the magic number, found 0; the "
       "file is truncated"},
      {good_images, good_labels,
       "1: 't10k-labels-idx1-ubyte', offset 0: expected the magic number 0x00000801, found "
       "0x00000803"},
      {good_labels, idx(0xD03, {10000, 28, 28}, ""),
       "1: 't10k-images-idx3-ubyte', offset 0: expected the magic number 0x00000803, found "
       "0x00000d03"},
      {good_labels, images_file(2),
       "1: 't10k-images-idx3-ubyte', offset 4: expected 10000 rows, found 2"},
      {good_labels, idx(0x803, {10000, 0xFFFFFFFF, 0xFFFFFFFF}, ""),
       "1: 't10k-images-idx3-ubyte', offset 8: expected 28 pixel rows, found 4294967295"},
      {good_labels, good_images.substr(0, 1016),
       "1: 't10k-images-idx3-ubyte', offset 16: expected 7840000 bytes of images, found 1000; the "
       "file is truncated"},
      {good_labels + "x", good_images,
       "1: 't10k-labels-idx1-ubyte', offset 8: expected 10000 bytes of labels, found 10001; the "
       "file is too long"},
      {bad_label, good_images,
       "1: 't10k-labels-idx1-ubyte', offset 85: expected a label from 0 to 9, found 10 (row 77)"},
  };
  const TempFolder folder;
  for (const Case& c : cases) {
    CAPTURE(c.expected);
    folder.write(kLabels, c.labels);
    folder.write(kImages, c.images);
    CHECK(mnist_error(folder) == c.expected);
  }
}

TEST_CASE("mnist: a damaged gzip stream is refused, and inflated no further than the header says") {
  const TempFolder folder;
  folder.write(kImages, images_file(10000));
  const fs::path path = folder.write_gzipped(std::string(kLabels) + ".gz", labels_file(10000));
  CHECK(mnist_error(folder) == "no error");
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string name = "1: 't10k-labels-idx1-ubyte.gz', offset ";
  SUBCASE("cut in the middle of the checksum") {
    folder.write(path.filename().string(), bytes.substr(0, bytes.size() - 6));
    CHECK(mnist_error(folder) ==
          name + "10008: the gzip data ends too early; the file is truncated");
  }
  SUBCASE("a wrong checksum") {
    bytes[bytes.size() - 8] = static_cast<char>(bytes[bytes.size() - 8] ^ 1);
    folder.write(path.filename().string(), bytes);
    CHECK(mnist_error(folder) ==
          name + "0: the gzip data is damaged here or later: incorrect data check");
  }
  SUBCASE("a bomb: 64 MiB behind a header of 10,000 rows") {
    folder.write_gzipped(path.filename().string(),
                         labels_file(10000) + std::string(std::size_t{1} << 26U, '\0'));
    // Inflating on to the end would find the missing half instead.
    fs::resize_file(path, fs::file_size(path) / 2);
    CHECK(mnist_error(folder) == name + "10008: expected the end of the file, found more bytes");
  }
}

TEST_CASE("cifar10: planes, labels, parts and normalisation") {
  const TempFolder folder;
  const auto batch = [](int number) {
    std::string text;
    for (int row = 0; row < 10000; ++row) {
      text += static_cast<char>(row % 10);
      text += std::string(1024, static_cast<char>(number * 10));
      text += std::string(1024, static_cast<char>(row % 200));
      text += std::string(1024, '\xFF');
    }
    return text;
  };
  for (int i = 1; i <= 5; ++i) {
    folder.write("data_batch_" + std::to_string(i) + ".bin", batch(i));
  }
  const Chosen cifar("cifar10", {{"root", "."}, {"validation_size", 12345}});
  CHECK(cifar.describe(folder.context()).train_size == 37655);
  const auto validation = cifar.load(folder.context(), Part::validation);
  REQUIRE(validation->size() == 12345);
  CHECK(classes(*validation).front() == 37655 % 10);
  const std::vector<float> first = input(*validation, 0, 3072);  // row 7655 of batch 4
  CHECK(first[0] == doctest::Approx((40 / 255.0 - 0.4914) / 0.2470));
  CHECK(first[1024] == doctest::Approx(((7655 % 200) / 255.0 - 0.4822) / 0.2435));
  CHECK(first[3071] == doctest::Approx((1.0 - 0.4465) / 0.2616));
  const std::vector<float> next = input(*validation, 2345, 3072);  // row 0 of batch 5
  CHECK(next[0] == doctest::Approx((50 / 255.0 - 0.4914) / 0.2470));

  const auto error = [&] {
    return error_of(folder, [&] { static_cast<void>(cifar.load(folder.context(), Part::test)); });
  };
  CHECK(error() == "4: 'test_batch.bin' does not exist");
  std::string bytes = batch(6);
  bytes[3073 * 42] = '\13';
  folder.write("test_batch.bin", bytes);
  CHECK(error() ==
        "1: 'test_batch.bin', offset 129066: expected a label from 0 to 9, found 11 (row 42)");
  folder.write("test_batch.bin", std::string_view(bytes).substr(0, 3073));
  CHECK(error() ==
        "1: 'test_batch.bin', offset 0: expected 30730000 bytes of images, found 3073; the file is "
        "truncated");
  folder.write("test_batch.bin", bytes + "x");
  CHECK(error() ==
        "1: 'test_batch.bin', offset 0: expected 30730000 bytes of images, found 30730001; the "
        "file is too long");
}

TEST_CASE("samples: a row outside the part is refused") {
  const TempFolder folder;
  const auto train = Chosen("digits", {}).load(folder.context(), Part::train);
  std::int64_t label = 0;
  for (const std::int64_t row : {std::int64_t{-1}, std::int64_t{1437}}) {
    CHECK_THROWS_AS(train->gather_classes(std::span(&row, 1), &label), std::out_of_range);
  }
}

}  // namespace
}  // namespace runner::datasets
