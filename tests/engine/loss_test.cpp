#include "runner/engine/loss.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "runner/engine/precision.h"

namespace runner::engine {

namespace {

at::Tensor row_major(std::vector<double> numbers, std::int64_t columns) {
  const auto rows = static_cast<std::int64_t>(numbers.size()) / columns;
  return at::tensor(numbers, at::kDouble).reshape({rows, columns});
}

}  // namespace

TEST_CASE("loss: every catalog entry has a kernel and the reverse") {
  std::set<std::string_view> catalog, kernels;
  for (const std::string_view name : components::losses().names()) catalog.insert(name);
  for (const std::string_view name : loss_names()) kernels.insert(name);
  CHECK(catalog == kernels);
}

TEST_CASE("loss: cross entropy with label smoothing follows its formula") {
  const at::Tensor outputs = row_major({1, 2, 0.5, -1, 0, 3}, 3);
  const at::Tensor targets = at::tensor({1, 0}, at::kLong);
  for (const double smoothing : {0.0, 0.1, 0.4}) {
    CAPTURE(smoothing);
    double want = 0;
    const double rows[2][3] = {{1, 2, 0.5}, {-1, 0, 3}};
    const int classes[2] = {1, 0};
    for (int i = 0; i < 2; ++i) {
      const double norm =
          std::log(std::exp(rows[i][0]) + std::exp(rows[i][1]) + std::exp(rows[i][2]));
      for (int c = 0; c < 3; ++c) {
        const double q = (c == classes[i] ? 1 - smoothing : 0) + smoothing / 3;
        want -= q * (rows[i][c] - norm) / 2;
      }
    }
    const Loss loss = make_loss("cross_entropy", components::CrossEntropy{smoothing});
    CHECK(loss(outputs, targets).item<double>() == doctest::Approx(want).epsilon(1e-12));
  }
}

TEST_CASE("loss: mse, l1 and bce follow their formulas") {
  const at::Tensor outputs = row_major({0.5, -2, 3}, 1);
  const at::Tensor targets = row_major({1, 0, 1}, 1);
  CHECK(make_loss("mse", components::Mse{})(outputs, targets).item<double>() ==
        doctest::Approx((0.25 + 4 + 4) / 3));
  CHECK(make_loss("l1", components::L1{})(outputs, targets).item<double>() ==
        doctest::Approx((0.5 + 2 + 2) / 3));
  const double bce =
      std::log1p(std::exp(-0.5)) + std::log1p(std::exp(-2.0)) + std::log1p(std::exp(-3.0));
  CHECK(make_loss("bce", components::Bce{})(outputs, targets).item<double>() ==
        doctest::Approx(bce / 3));
}

TEST_CASE("metrics: accuracy and top-k over uneven batches count each sample once") {
  const at::Tensor outputs =
      row_major({5, 1, 0, 0, 1, 5, 0, 0, 3, 2, 1, 0, 0, 1, 2, 3, 9, 8, 7, 6}, 4);
  const at::Tensor targets = at::tensor({0, 0, 2, 3, 3}, at::kLong);
  // Ranks of the targets: 1, 2, 3, 1, 4.
  const std::map<std::string, double> want = {
      {"accuracy", 2 / 5.0}, {"top2", 3 / 5.0}, {"top3", 4 / 5.0}, {"top9", 1}};
  for (const auto& [name, value] : want) {
    CAPTURE(name);
    const auto metric = make_metric(name, false, at::kCPU);
    CHECK(std::isnan(metric->value()));
    for (int repeat = 0; repeat < 2; ++repeat) {
      metric->reset();
      metric->add(outputs.narrow(0, 0, 3), targets.narrow(0, 0, 3));
      metric->add(outputs.narrow(0, 3, 2), targets.narrow(0, 3, 2));
      CHECK(metric->value() == doctest::Approx(value));
    }
  }
}

TEST_CASE("metrics: accuracy of binary targets is that of the logit's sign") {
  const auto metric = make_metric("accuracy", true, at::kCPU);
  metric->add(row_major({-1, 2, 0.1, -3}, 1), row_major({0, 1, 0, 1}, 1));
  CHECK(metric->value() == doctest::Approx(0.5));
}

TEST_CASE("metrics: r2 and mae equal their closed forms, also far from zero and batch by batch") {
  for (const double offset : {0.0, 1e9}) {
    CAPTURE(offset);
    const at::Tensor targets = row_major({3, -0.5, 2, 7}, 1) + offset;
    const at::Tensor outputs = row_major({2.5, 0, 2, 8}, 1) + offset;
    const auto r2 = make_metric("r2", false, at::kCPU);
    const auto mae = make_metric("mae", false, at::kCPU);
    for (const auto& metric : {r2.get(), mae.get()}) {
      metric->add(outputs.narrow(0, 0, 3), targets.narrow(0, 0, 3));
      metric->add(outputs.narrow(0, 3, 1), targets.narrow(0, 3, 1));
    }
    // Mean 2.875, squared deviations 29.1875, squared residuals 1.5.
    CHECK(r2->value() == doctest::Approx(1 - 1.5 / 29.1875).epsilon(1e-9));
    CHECK(mae->value() == doctest::Approx(0.5).epsilon(1e-9));
  }
}

TEST_CASE("precision: an overflow halves the loss scale and skips the step") {
  const auto precision = make_precision("16", at::kCPU);
  CHECK(precision->state().scale == 65536);
  const at::Tensor gradient = at::full({3}, 65536.0F);
  CHECK(precision->unscale({gradient}));
  CHECK(gradient[0].item<float>() == 1.0F);
  CHECK(precision->state().good_steps == 1);
  CHECK_FALSE(precision->unscale({at::full({3}, INFINITY)}));
  CHECK(precision->state().scale == 32768);
  CHECK(precision->state().good_steps == 0);
  precision->restore({1024, 1999});
  CHECK(precision->unscale({at::ones({1})}));  // the 2,000th good step
  CHECK(precision->state().scale == 2048);
}

TEST_CASE("precision: gradients that never are finite end in an error, not in a loop") {
  const auto precision = make_precision("16", at::kCPU);
  for (int i = 0; i < 16; ++i) CHECK_FALSE(precision->unscale({at::full({1}, NAN)}));
  CHECK_THROWS_WITH((void)precision->unscale({at::full({1}, NAN)}),
                    "gradients are not finite even with the fp16 loss scale lowered from 65,536 to "
                    "below 1");
}

}  // namespace runner::engine
