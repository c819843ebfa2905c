#include "runner/graph/partition.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>

using namespace runner::graph;

namespace {

using Ends = std::vector<std::size_t>;

/// Calls `use` with every cut of `layers` into `stages`.
void each_cut(std::size_t layers, std::size_t stages, const std::function<void(const Ends&)>& use,
              const Ends& begun = {}) {
  if (stages == 1) {
    Ends ends = begun;
    ends.push_back(layers);
    use(ends);
    return;
  }
  const std::size_t first = begun.empty() ? 1 : begun.back() + 1;
  for (std::size_t end = first; end + stages <= layers + 1; ++end) {
    Ends ends = begun;
    ends.push_back(end);
    each_cut(layers, stages - 1, use, ends);
  }
}

/// The largest stage's time and bytes, added up layer by layer.
struct Largest {
  double time = 0;
  std::int64_t bytes = 0;
};
Largest largest_of(const std::vector<LayerCost>& layers, const Ends& ends,
                   std::int64_t micro_batches) {
  Largest largest;
  std::size_t layer = 0;
  for (std::size_t stage = 0; stage < ends.size(); ++stage) {
    // Of the stages after it, each holds one micro-batch that this one must keep as well.
    const auto kept =
        std::min<std::int64_t>(micro_batches, static_cast<std::int64_t>(ends.size() - stage));
    Largest own;
    for (; layer < ends[stage]; ++layer) {
      own.time += layers[layer].time;
      own.bytes += layers[layer].state_bytes + kept * layers[layer].activation_bytes;
    }
    largest.time = std::max(largest.time, own.time);
    largest.bytes = std::max(largest.bytes, own.bytes);
  }
  return largest;
}

/// Whole numbers, so that sums are exact in whatever order; few values, so that there are ties.
std::vector<LayerCost> random_costs(std::mt19937& random, std::size_t layers) {
  std::vector<LayerCost> costs(layers);
  for (LayerCost& cost : costs) {
    cost = {static_cast<double>(random() % 8), static_cast<std::int64_t>(random() % 50),
            static_cast<std::int64_t>(random() % 20)};
  }
  return costs;
}

std::vector<LayerCost> times(std::initializer_list<double> all) {
  std::vector<LayerCost> costs;
  costs.reserve(all.size());
  for (const double time : all) costs.push_back({.time = time});
  return costs;
}

}  // namespace

TEST_CASE("partition: no other cut is faster, nor as fast with less memory") {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    const std::size_t layers = 1 + random() % 9;
    const auto costs = random_costs(random, layers);
    const auto stages = static_cast<std::int64_t>(1 + random() % layers);
    PartitionTask task{.stages = stages, .micro_batches = 1 + static_cast<int>(random() % 6)};
    if (random() % 2 == 0) task.memory_limit = 20 + static_cast<std::int64_t>(random() % 300);
    Largest best{std::numeric_limits<double>::max(), std::numeric_limits<std::int64_t>::max()};
    bool any = false;
    each_cut(layers, static_cast<std::size_t>(stages), [&](const Ends& ends) {
      const Largest cut = largest_of(costs, ends, task.micro_batches);
      if (task.memory_limit && cut.bytes > *task.memory_limit) return;
      any = true;
      if (cut.time < best.time || (cut.time == best.time && cut.bytes < best.bytes)) best = cut;
    });
    const auto found = partition(costs, task);
    CAPTURE(round);
    REQUIRE(found.has_value() == any);
    if (!found) continue;
    REQUIRE(found->ends.size() == static_cast<std::size_t>(stages));
    CHECK(found->ends.back() == layers);
    CHECK(std::adjacent_find(found->ends.begin(), found->ends.end(), std::greater_equal<>()) ==
          found->ends.end());
    const Largest cut = largest_of(costs, found->ends, task.micro_batches);
    CHECK(cut.time == best.time);
    CHECK(cut.bytes == best.bytes);
  }
}

TEST_CASE("partition: balance is the mean stage time over the largest") {
  const auto costs = times({3, 1, 1, 3});
  const auto two = partition(costs, {.stages = 2});
  CHECK(two->ends == Ends{2, 4});
  CHECK(two->balance == doctest::Approx(1));
  const auto three = partition(costs, {.stages = 3});
  CHECK(three->balance == doctest::Approx(8.0 / 3 / 3));
  CHECK(three->begin(0) == 0);
  CHECK(three->begin(2) == three->ends[1]);
  CHECK(balance(costs, Ends{1, 4}) == doctest::Approx(4.0 / 5));
  CHECK(partition(times({0, 0}), {.stages = 2})->balance == 1);
}

TEST_CASE("partition: a memory limit moves the cut, and one too small leaves none") {
  std::vector<LayerCost> costs = times({4, 4, 4, 4});
  costs[0].state_bytes = costs[1].state_bytes = 100;
  CHECK(partition(costs, {.stages = 2})->ends == Ends{2, 4});
  CHECK(partition(costs, {.stages = 2, .memory_limit = 199})->ends == Ends{1, 4});
  CHECK_FALSE(partition(costs, {.stages = 2, .memory_limit = 99}).has_value());
}

TEST_CASE("partition: an early stage holds more micro-batches than a late one") {
  const PartitionTask task{.stages = 4, .micro_batches = 3};
  CHECK(in_flight(0, task) == 3);
  CHECK(in_flight(2, task) == 2);
  CHECK(in_flight(3, task) == 1);
  const std::vector<LayerCost> costs(2, {.time = 1, .state_bytes = 10, .activation_bytes = 7});
  CHECK(stage_bytes(costs, 0, 2, 0, task) == 20 + 3 * 14);
  CHECK(stage_bytes(costs, 1, 2, 3, task) == 10 + 7);
}

TEST_CASE("partition: fewer layers than stages is an error that names both") {
  CHECK_THROWS_WITH_AS((void)partition(times({1, 2}), {.stages = 3}),
                       "2 layers can't be cut into 3 stages", std::invalid_argument);
  CHECK_THROWS_AS((void)partition(times({1, 2}), {.stages = 0}), std::invalid_argument);
}
