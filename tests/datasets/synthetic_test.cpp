#include <doctest/doctest.h>

#include <cmath>

#include "support.h"

namespace runner::datasets {
namespace {

using namespace test;

TEST_CASE("synthetic: a sample depends on seed, part and number alone") {
  const TempFolder folder;
  const auto sample = [&](std::int64_t seed, Part part, std::int64_t size) {
    const Chosen chosen("synthetic", {{"seed", seed},
                                      {"train_size", size},
                                      {"validation_size", size},
                                      {"shape", registry::Value::Array{3, 5}}});
    return input(*chosen.load(folder.context(), part), 7, 15);
  };
  const std::vector<float> reference = sample(1, Part::train, 10);
  CHECK(sample(1, Part::train, 10) == reference);
  CHECK(sample(1, Part::train, 1000000000000) == reference);
  CHECK(sample(2, Part::train, 10) != reference);
  CHECK(sample(1, Part::validation, 10) != reference);
}

TEST_CASE("synthetic: gathering in another order or in pieces gives the same samples") {
  const TempFolder folder;
  const Chosen chosen("synthetic", {{"shape", registry::Value::Array{7}}, {"train_size", 4}});
  const auto samples = chosen.load(folder.context(), Part::train);
  const std::vector<float> whole = inputs(*samples, 7);
  for (std::int64_t row = 3; row >= 0; --row) {
    const auto begin = whole.begin() + row * 7;
    CHECK(input(*samples, row, 7) == std::vector<float>(begin, begin + 7));
  }
}

TEST_CASE("synthetic: classes are told apart by the nearest class mean of the training part") {
  const TempFolder folder;
  const Chosen chosen("synthetic", {{"shape", registry::Value::Array{64}},
                                    {"classes", 5},
                                    {"train_size", 2000},
                                    {"validation_size", 500}});
  const auto train = chosen.load(folder.context(), Part::train);
  const auto validation = chosen.load(folder.context(), Part::validation);
  std::vector<std::vector<double>> means(5, std::vector<double>(64));
  std::vector<int> counts(5);
  const std::vector<std::int64_t> labels = classes(*train);
  const std::vector<float> x = inputs(*train, 64);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const auto label = static_cast<std::size_t>(labels[row]);
    ++counts.at(label);
    for (std::size_t i = 0; i < 64; ++i) means[label][i] += x[row * 64 + i];
  }
  for (std::size_t c = 0; c < 5; ++c) {
    CHECK(counts[c] > 320);  // 400 expected, deviation 18
    for (double& mean : means[c]) mean /= counts[c];
    for (const double mean : means[c]) CHECK(std::abs(std::abs(mean) - 1.0) < 0.3);
  }
  const std::vector<std::int64_t> expected = classes(*validation);
  int right = 0;
  for (std::size_t row = 0; row < expected.size(); ++row) {
    const std::vector<float> v = input(*validation, static_cast<std::int64_t>(row), 64);
    std::vector<double> distances(5);
    for (std::size_t c = 0; c < 5; ++c) {
      for (std::size_t i = 0; i < 64; ++i) {
        distances[c] += (v[i] - means[c][i]) * (v[i] - means[c][i]);
      }
    }
    const auto best = std::min_element(distances.begin(), distances.end()) - distances.begin();
    right += best == expected[row] ? 1 : 0;
  }
  CHECK(right >= 495);
}

TEST_CASE("synthetic: values are a fixed linear function of the input when there is no noise") {
  const TempFolder folder;
  const Chosen chosen("synthetic", {{"shape", registry::Value::Array{3}},
                                    {"target", "values"},
                                    {"target_values", 2},
                                    {"noise", 0.0},
                                    {"train_size", 500}});
  const Spec spec = chosen.describe(folder.context());
  CHECK(spec.target == TargetKind::values);
  CHECK(spec.target_values == 2);
  CHECK(spec.classes == 0);
  const auto samples = chosen.load(folder.context(), Part::train);
  const std::vector<float> x = inputs(*samples, 3);
  const std::vector<float> y = values(*samples, 2);
  // One of the eight sign patterns must explain each target in all rows.
  for (std::size_t k = 0; k < 2; ++k) {
    int explained = 0;
    for (unsigned signs = 0; signs < 8; ++signs) {
      double worst = 0.0;
      for (std::size_t row = 0; row < 500; ++row) {
        double sum = 0.0;
        for (std::size_t i = 0; i < 3; ++i)
          sum += ((signs >> i) % 2 == 0 ? 1 : -1) * x[row * 3 + i];
        worst = std::max(worst, std::abs(sum / std::sqrt(3.0) - y[row * 2 + k]));
      }
      explained += worst < 1e-5 ? 1 : 0;
    }
    CHECK(explained == 1);
  }
  double squares = 0.0;
  for (const float value : x) squares += value * value;
  CHECK(squares / 1500 == doctest::Approx(1.0).epsilon(0.1));
  std::int64_t label = 0;
  const std::int64_t row = 0;
  CHECK_THROWS_AS(samples->gather_classes(std::span(&row, 1), &label), std::logic_error);
}

TEST_CASE("synthetic: a shape without elements or with too many is refused") {
  const TempFolder folder;
  const auto error = [&](registry::Value::Array shape) {
    return error_of(folder, [&] {
      static_cast<void>(
          Chosen("synthetic", {{"shape", std::move(shape)}}).describe(folder.context()));
    });
  };
  CHECK(error({}) == "2: 'shape' is empty");
  CHECK(error({4294967296, 4294967296, 3}) ==
        "2: 'shape' [4294967296, 4294967296, 3] has more than 2^40 elements a sample");
  CHECK(error({1, 28, 28}) == "no error");
}

}  // namespace
}  // namespace runner::datasets
