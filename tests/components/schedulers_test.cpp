#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "runner/components/component.h"

using namespace runner::components;
using doctest::Approx;
using runner::registry::Value;

namespace {

/// The rates of the first `count` steps (each epoch has `per_epoch` steps).
std::vector<double> rates(std::string_view name, const std::any& options, double base_lr,
                          std::int64_t count, std::int64_t per_epoch = 1) {
  const Scheduler& scheduler = *schedulers().find(name);
  std::vector<double> result;
  for (std::int64_t step = 0; step < count; ++step) {
    result.push_back(scheduler.lr(options,
                                  {.step = step,
                                   .epoch = step / per_epoch,
                                   .total_steps = count,
                                   .steps_per_epoch = per_epoch},
                                  base_lr));
  }
  return result;
}

void check_equal(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(found[i] == Approx(expected[i]).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("schedules: every scheduler is registered, with its options' defaults") {
  const std::vector<std::string_view> expected = {
      "none", "step", "multistep", "cosine", "linear_warmup", "one_cycle", "plateau"};
  CHECK(schedulers().names() == expected);
  for (const Scheduler& scheduler : schedulers().entries()) {
    CAPTURE(scheduler.name);
    CHECK((scheduler.name == "plateau") == !scheduler.lr);
  }
}

TEST_CASE("schedules: none leaves the rate alone") {
  check_equal(rates("none", NoSchedule{}, 0.3, 3), {0.3, 0.3, 0.3});
}

TEST_CASE("schedules: step changes every step_size epochs (StepLR's documented example)") {
  const StepSchedule options{.step_size = 30, .gamma = 0.1};
  const auto lr = rates("step", options, 0.05, 90);
  for (std::size_t epoch = 0; epoch < 90; ++epoch) {
    CAPTURE(epoch);
    CHECK(lr[epoch] == Approx(epoch < 30 ? 0.05 : epoch < 60 ? 0.005 : 0.0005));
  }
}

TEST_CASE("schedules: an interval of epochs holds the rate through the steps of an epoch") {
  check_equal(rates("step", StepSchedule{.step_size = 1, .gamma = 0.5}, 1, 6, /*per_epoch=*/2),
              {1, 1, 0.5, 0.5, 0.25, 0.25});
  check_equal(rates("step", StepSchedule{.step_size = 1, .gamma = 0.5, .interval = "step"}, 1, 3,
                    /*per_epoch=*/2),
              {1, 0.5, 0.25});
}

TEST_CASE("schedules: multistep changes at its milestones (MultiStepLR's documented example)") {
  const auto lr = rates("multistep", MultiStep{.milestones = {30, 80}, .gamma = 0.1}, 0.05, 100);
  CHECK(lr[29] == Approx(0.05));
  CHECK(lr[30] == Approx(0.005));
  CHECK(lr[79] == Approx(0.005));
  CHECK(lr[80] == Approx(0.0005));
}

TEST_CASE("schedules: cosine equals CosineAnnealingLR's recursion") {
  constexpr double kBase = 0.4;
  constexpr double kMin = 0.01;
  constexpr std::int64_t kPeriod = 25;
  std::vector<double> expected = {kBase};
  for (std::int64_t t = 1; t < kPeriod; ++t) {
    const double up = 1 + std::cos(std::numbers::pi * static_cast<double>(t) / kPeriod);
    const double down = 1 + std::cos(std::numbers::pi * static_cast<double>(t - 1) / kPeriod);
    expected.push_back(up / down * (expected.back() - kMin) + kMin);
  }
  check_equal(rates("cosine", Cosine{.min_lr = kMin}, kBase, kPeriod), expected);
  check_equal(rates("cosine", Cosine{.min_lr = kMin, .period = kPeriod}, kBase, kPeriod), expected);
}

TEST_CASE("schedules: cosine comes up again after its period") {
  const auto lr = rates("cosine", Cosine{.period = 4}, 1, 9);
  CHECK(lr[4] == Approx(0).epsilon(1e-12));
  CHECK(lr[8] == Approx(1));
}

TEST_CASE("schedules: cosine over epochs spans the epochs of the run") {
  const auto lr = rates("cosine", Cosine{.interval = "epoch"}, 1, /*count=*/8, /*per_epoch=*/2);
  const double quarter = (1 + std::cos(std::numbers::pi / 4)) / 2;
  check_equal({lr[0], lr[1], lr[2], lr[4]}, {1, 1, quarter, 0.5});
}

TEST_CASE("schedules: warm-up equals LinearLR from its second step, and tops at step `steps`") {
  // LinearLR's documented example: lr 0.05, start_factor 0.5, total_iters 4.
  check_equal(rates("linear_warmup", LinearWarmup{.steps = 4, .start_factor = 0.5}, 0.05, 6),
              {0.03125, 0.0375, 0.04375, 0.05, 0.05, 0.05});
  const auto lr = rates("linear_warmup", LinearWarmup{.steps = 9}, 0.1, 12);
  CHECK(lr[0] == Approx(0.1 / 9));
  CHECK(lr[7] < 0.1);
  CHECK(lr[8] == 0.1);  // the ninth step
}

TEST_CASE("schedules: one_cycle equals OneCycleLR") {
  // From PyTorch's own test: max_lr 25, final_div_factor 2, 10 steps, linear.
  check_equal(
      rates("one_cycle", OneCycle{.max_lr = 25, .final_div_factor = 2, .anneal = "linear"}, 1, 10),
      {1, 13, 25, 21.5, 18, 14.5, 11, 7.5, 4, 0.5});
  // The cosine form of the same: half way between two ends is their mean.
  const auto lr = rates("one_cycle", OneCycle{.max_lr = 25, .final_div_factor = 2}, 1, 10);
  CHECK(lr[0] == Approx(1));
  CHECK(lr[1] == Approx(13));
  CHECK(lr[2] == Approx(25));
  CHECK(lr[9] == Approx(0.5));
  CHECK(lr[3] == Approx(0.5 + 24.5 / 2 * (1 + std::cos(std::numbers::pi / 7))));
}

TEST_CASE("schedules: one_cycle stays finite in runs of a few steps") {
  for (const std::int64_t total : {1, 2, 3}) {
    for (const double share : {0.0, 0.3, 0.5, 1.0}) {
      CAPTURE(total);
      CAPTURE(share);
      for (const double lr : rates("one_cycle", OneCycle{.warmup_fraction = share}, 1, total)) {
        CHECK(lr > 0);
        CHECK(lr <= 0.1 + 1e-12);
      }
    }
  }
}

TEST_CASE("plateau: the rate falls after more than `patience` checks without improvement") {
  Plateau plateau({.factor = 0.1, .patience = 2}, /*maximise=*/false, /*base_lr=*/1);
  CHECK(plateau.observe(1.0) == 1);
  CHECK(plateau.observe(1.0) == 1);
  CHECK(plateau.observe(1.0) == 1);
  CHECK(plateau.observe(1.0) == Approx(0.1));
  CHECK(plateau.observe(1.0) == Approx(0.1));  // counting starts again
}

TEST_CASE("plateau: the threshold is relative") {
  Plateau down({.factor = 0.5, .patience = 0, .threshold = 0.1}, false, 1);
  down.observe(10);
  CHECK(down.observe(8.9) == 1);    // better by more than a tenth
  CHECK(down.observe(8.1) == 0.5);  // 8.01 would have been needed
  Plateau up({.factor = 0.5, .patience = 0, .threshold = 0.1}, true, 1);
  up.observe(10);
  CHECK(up.observe(11.1) == 1);
  CHECK(up.observe(12.2) == 0.5);
}

TEST_CASE("plateau: no check counts as bad while it cools down") {
  Plateau plateau({.factor = 0.5, .patience = 0, .cooldown = 2}, false, 1);
  plateau.observe(1);
  CHECK(plateau.observe(1) == 0.5);
  CHECK(plateau.observe(1) == 0.5);
  CHECK(plateau.observe(1) == 0.5);
  CHECK(plateau.observe(1) == 0.25);
}

TEST_CASE("plateau: min_lr is the floor, and a change below 1e-8 is none") {
  Plateau floor({.factor = 0.1, .patience = 0, .min_lr = 0.3}, false, 1);
  floor.observe(1);
  CHECK(floor.observe(1) == 0.3);
  CHECK(floor.observe(1) == 0.3);
  Plateau tiny({.factor = 0.5, .patience = 0}, false, 1e-8);
  tiny.observe(1);
  CHECK(tiny.observe(1) == 1e-8);
}

TEST_CASE("plateau: a value that is not finite is no improvement, and the state is restorable") {
  Plateau plateau({.factor = 0.5, .patience = 1}, false, 1);
  CHECK(plateau.observe(std::nan("")) == 1);
  Plateau other({.factor = 0.5, .patience = 1}, false, 1);
  other.restore(plateau.state());
  CHECK(other.observe(std::numeric_limits<double>::infinity()) == 0.5);
}
