#include <cmath>
#include <limits>

#include "datasets/support/random.h"
#include "datasets/support/samples.h"

namespace runner::datasets {
namespace {

struct Options {
  std::vector<std::int64_t> shape = {1, 28, 28};
  std::string target = "classes";
  std::int64_t classes = 10;
  std::int64_t target_values = 1;
  std::int64_t train_size = 10000;
  std::int64_t validation_size = 1000;
  std::int64_t test_size = 1000;
  std::int64_t seed = 0;
  double noise = 1.0;
};

constexpr auto kRows = registry::rows<Options>({
    {.name = "shape",
     .member = &Options::shape,
     .doc = "shape of a sample: [channels, height, width] or [features]",
     .range = registry::at_least(1)},
    {.name = "target",
     .member = &Options::target,
     .doc = "what is learnt: a class, or real numbers",
     .choices = {"classes", "values"}},
    {.name = "classes",
     .member = &Options::classes,
     .doc = "number of classes; read for target \"classes\"",
     .range = registry::at_least(2)},
    {.name = "target_values",
     .member = &Options::target_values,
     .doc = "numbers a sample; read for target \"values\"",
     .range = registry::at_least(1)},
    {.name = "train_size",
     .member = &Options::train_size,
     .doc = "training samples; made when asked for, so any number fits in memory",
     .range = registry::at_least(1)},
    {.name = "validation_size",
     .member = &Options::validation_size,
     .doc = "validation samples",
     .range = registry::at_least(0)},
    {.name = "test_size",
     .member = &Options::test_size,
     .doc = "test samples",
     .range = registry::at_least(0)},
    {.name = "seed",
     .member = &Options::seed,
     .doc = "sample i of a part depends on this seed, the part and i alone"},
    {.name = "noise",
     .member = &Options::noise,
     .doc = "standard deviation of the noise, where the signal's is 1",
     .range = registry::at_least(0)},
});
static_assert(registry::covers<Options>(kRows));

/// Different uses of the seed, so that their streams have nothing in common.
enum class Stream : std::uint64_t { label, input, pattern, target };

/// 1 or -1.
float sign(std::uint64_t bits, std::uint64_t i) {
  return (bits >> (i % 64)) % 2 == 0 ? 1.0F : -1.0F;
}

/// Uniform with mean 0 and deviation 1, from 24 bits.
float unit_noise(std::uint64_t bits) {
  constexpr float kSpan = 3.4641016F;  // sqrt(12)
  return (static_cast<float>(bits & 0xFFFFFFU) * 0x1p-24F - 0.5F) * kSpan;
}

/// Class c is a fixed pattern of +1 and -1; a sample is its class's pattern plus noise. Values are
/// fixed random sums of the noise that then is the whole input. Nothing is kept in memory.
class SyntheticSamples final : public Samples {
 public:
  SyntheticSamples(const Options& options, Part part, std::uint64_t width, std::int64_t size)
      : options_(options), part_(part), width_(width), size_(size) {}

  [[nodiscard]] std::int64_t size() const override { return size_; }

  void gather_inputs(std::span<const std::int64_t> rows, float* out) const override {
    for (const std::int64_t row : rows) {
      const std::uint64_t index = checked_row(row, static_cast<std::size_t>(size_));
      options_.target == "classes" ? write_noisy_pattern(index, out)
                                   : write_noise(index, 1.0F, out);
      out += width_;
    }
  }

  void gather_classes(std::span<const std::int64_t> rows, std::int64_t* out) const override {
    if (options_.target != "classes") wrong_target(TargetKind::classes);
    for (const std::int64_t row : rows) {
      *out++ = class_of(checked_row(row, static_cast<std::size_t>(size_)));
    }
  }

  void gather_values(std::span<const std::int64_t> rows, float* out) const override {
    if (options_.target != "values") wrong_target(TargetKind::values);
    std::vector<float> input(width_);
    for (const std::int64_t row : rows) {
      const std::uint64_t index = checked_row(row, static_cast<std::size_t>(size_));
      write_noise(index, 1.0F, input.data());
      for (std::int64_t k = 0; k < options_.target_values; ++k) *out++ = value_of(index, k, input);
    }
  }

 private:
  /// The key of a stream that belongs to one sample of this part.
  [[nodiscard]] std::uint64_t sample_key(Stream stream, std::uint64_t index) const {
    return random_key({static_cast<std::uint64_t>(options_.seed),
                       static_cast<std::uint64_t>(stream), static_cast<std::uint64_t>(part_),
                       index});
  }
  /// The key of a pattern, which all parts share: that of a class or of a target value.
  [[nodiscard]] std::uint64_t pattern_key(std::int64_t number) const {
    return random_key({static_cast<std::uint64_t>(options_.seed),
                       static_cast<std::uint64_t>(Stream::pattern),
                       static_cast<std::uint64_t>(number)});
  }

  [[nodiscard]] std::int64_t class_of(std::uint64_t index) const {
    const std::uint64_t bits = sample_key(Stream::label, index);
    return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(options_.classes));
  }

  void write_noise(std::uint64_t index, float deviation, float* out) const {
    const std::uint64_t key = sample_key(Stream::input, index);
    for (std::uint64_t i = 0; i < width_; i += 2) {
      const std::uint64_t bits = random_bits(key, i / 2);
      out[i] = deviation * unit_noise(bits);
      if (i + 1 < width_) out[i + 1] = deviation * unit_noise(bits >> 32U);
    }
  }

  void write_noisy_pattern(std::uint64_t index, float* out) const {
    write_noise(index, static_cast<float>(options_.noise), out);
    const std::uint64_t key = pattern_key(class_of(index));
    for (std::uint64_t i = 0, bits = 0; i < width_; ++i) {
      if (i % 64 == 0) bits = random_bits(key, i / 64);
      out[i] += sign(bits, i);
    }
  }

  [[nodiscard]] float value_of(std::uint64_t index, std::int64_t k,
                               const std::vector<float>& input) const {
    const std::uint64_t key = pattern_key(k);
    double sum = 0.0;
    for (std::uint64_t i = 0, bits = 0; i < width_; ++i) {
      if (i % 64 == 0) bits = random_bits(key, i / 64);
      sum += sign(bits, i) * input[i];
    }
    const std::uint64_t noise =
        random_bits(sample_key(Stream::target, index), static_cast<std::uint64_t>(k));
    return static_cast<float>(sum / std::sqrt(static_cast<double>(width_)) +
                              options_.noise * unit_noise(noise));
  }

  Options options_;
  Part part_;
  std::uint64_t width_;
  std::int64_t size_;
};

std::uint64_t width_of(const Options& options) {
  // More than fits in any memory, yet far from overflow in what is computed from it.
  constexpr std::int64_t kWidest = std::int64_t{1} << 40;
  if (options.shape.empty()) throw diag::Error(diag::Exit::invalid, "'shape' is empty");
  std::int64_t width = 1;
  for (const std::int64_t size : options.shape) {
    if (size > kWidest / width) {
      throw diag::Error(diag::Exit::invalid,
                        "'shape' " +
                            registry::to_toml(registry::Value(registry::Value::Array(
                                options.shape.begin(), options.shape.end()))) +
                            " has more than 2^40 elements a sample");
    }
    width *= size;
  }
  return static_cast<std::uint64_t>(width);
}

Spec describe(const Options& options, const Context&) {
  static_cast<void>(width_of(options));
  Spec spec;
  spec.input = options.shape;
  spec.target = options.target == "classes" ? TargetKind::classes : TargetKind::values;
  if (spec.target == TargetKind::classes) spec.classes = options.classes;
  if (spec.target == TargetKind::values) spec.target_values = options.target_values;
  spec.train_size = options.train_size;
  spec.validation_size = options.validation_size;
  spec.test_size = options.test_size;
  return spec;
}

std::unique_ptr<Samples> load(const Options& options, const Context& context, Part part) {
  return std::make_unique<SyntheticSamples>(options, part, width_of(options),
                                            describe(options, context).size(part));
}

std::vector<std::filesystem::path> files(const Options&, const Context&) { return {}; }

}  // namespace

void register_synthetic(Datasets& datasets) {
  datasets.add(dataset("synthetic",
                       "random samples of any shape and number that can be learnt; for benchmarks "
                       "and tests",
                       kRows, describe, load, files));
}

}  // namespace runner::datasets
