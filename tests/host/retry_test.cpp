#include "runner/host/retry.h"

#include <doctest/doctest.h>

#include <random>
#include <stdexcept>
#include <string>

#include "tests/fakes/fake_clock.h"

namespace runner::host {
namespace {

TEST_CASE("retry: a first success neither sleeps nor repeats") {
  FakeClock clock;
  int calls = 0;
  CHECK(retry_jittered_backoff([&] { return ++calls; }, 5, clock) == 1);
  CHECK(clock.sleeps().empty());
}

TEST_CASE("retry: sleeps after each failure, in bounds that double up to the longest") {
  const Backoff backoff{.first = Seconds{1}, .longest = Seconds{6}};
  const double bounds[] = {1, 2, 4, 6, 6};
  double sum = 0;
  double largest_share = 0;
  constexpr int kRounds = 400;
  std::mt19937_64 random(7);
  for (int round = 0; round < kRounds; ++round) {
    FakeClock clock;
    int calls = 0;
    const auto fail_five_times = [&] {
      if (++calls <= 5) throw std::runtime_error("busy");
      return calls;
    };
    REQUIRE(retry_jittered_backoff(fail_five_times, 5, clock, random, backoff) == 6);
    REQUIRE(clock.sleeps().size() == 5);
    for (std::size_t i = 0; i < 5; ++i) {
      REQUIRE(clock.sleeps()[i].count() >= 0);
      REQUIRE(clock.sleeps()[i].count() <= bounds[i]);
      sum += clock.sleeps()[i].count() / bounds[i];
      largest_share = std::max(largest_share, clock.sleeps()[i].count() / bounds[i]);
    }
  }
  // Full jitter: uniform between 0 and the bound; 0.026 is four standard errors of 2,000 draws.
  CHECK(sum / (5 * kRounds) == doctest::Approx(0.5).epsilon(0.052));
  CHECK(largest_share > 0.99);
}

TEST_CASE("retry: gives up after the retries with the last error") {
  FakeClock clock;
  int calls = 0;
  const auto fail = [&]() -> int {
    throw std::runtime_error("failure " + std::to_string(++calls));
  };
  CHECK_THROWS_WITH_AS(retry_jittered_backoff(fail, 3, clock), "failure 4", std::runtime_error);
  CHECK(clock.sleeps().size() == 3);
  CHECK_THROWS_WITH(retry_jittered_backoff(fail, 0, clock), "failure 5");
  CHECK(clock.sleeps().size() == 3);
}

TEST_CASE("retry: really sleeps on the machine's clock") {
  const Seconds before = system_clock().now();
  struct Always1 {  // the longest jitter
    using result_type = std::uint32_t;
    static constexpr result_type min() { return 0; }
    static constexpr result_type max() { return 0xFFFFFFFF; }
    result_type operator()() const { return max(); }
  } random;
  int calls = 0;
  retry_jittered_backoff(
      [&] {
        if (++calls == 1) throw std::runtime_error("busy");
      },
      1, system_clock(), random, {.first = Seconds{0.004}, .longest = Seconds{1}});
  CHECK((system_clock().now() - before).count() >= 0.0039);
}

}  // namespace
}  // namespace runner::host
