#include "runner/check/memory.h"

#include <doctest/doctest.h>

using namespace runner;

namespace {

/// 4 -> 3 -> 2 with a batch normalisation: 4*3 + 3*2 + 2 weights, 2*3 of the normalisation, and
/// buffers of 2*3 + 1.
graph::Graph small() {
  graph::Builder g({4});
  auto x = g.linear("fc1", g.input(), {.out = 3, .bias = false});
  x = g.batch_norm("bn1", x);
  x = g.linear("fc2", g.relu("relu1", x), {.out = 2});
  return std::move(g).finish(x);
}
constexpr std::int64_t kParameters = 12 + 6 + 8;
constexpr std::int64_t kBuffers = 7;

}  // namespace

TEST_CASE("memory: weights, gradients and optimizer state follow the precision") {
  const graph::Graph graph = small();
  struct Row {
    const char* precision;
    std::int64_t weights, gradients, optimizer;
  };
  for (const Row& row : {Row{"32", 4 * (kParameters + kBuffers), 4 * kParameters, 8 * kParameters},
                         Row{"64", 8 * (kParameters + kBuffers), 8 * kParameters, 16 * kParameters},
                         // Autocast keeps the weights and adds a copy in 16 bits.
                         Row{"16", 4 * (kParameters + kBuffers) + 2 * kParameters, 4 * kParameters,
                             8 * kParameters}}) {
    CAPTURE(row.precision);
    const check::Memory memory =
        check::estimate_memory(graph, {.precision = row.precision, .optimizer_tensors = 2});
    CHECK(memory.weights == row.weights);
    CHECK(memory.gradients == row.gradients);
    CHECK(memory.optimizer == row.optimizer);
  }
}

TEST_CASE("memory: activations grow with the batch, and halve with autocast") {
  const graph::Graph graph = small();
  const auto activations = [&graph](const char* precision, std::int64_t batch) {
    return check::estimate_memory(graph, {.precision = precision, .batch_size = batch}).activations;
  };
  CHECK(activations("32", 1) == 4 * graph.activation_count());
  CHECK(activations("32", 10) == 10 * activations("32", 1));
  CHECK(activations("64", 1) == 2 * activations("32", 1));
  CHECK(2 * activations("bf16", 1) == activations("32", 1));
}

TEST_CASE("memory: the largest batch fits, and one more doesn't") {
  const graph::Graph graph = small();
  check::MemoryTask task{.optimizer_tensors = 1};
  constexpr std::int64_t kBytes = 10'000;
  task.batch_size = check::largest_batch(graph, task, kBytes);
  REQUIRE(task.batch_size > 0);
  CHECK(check::estimate_memory(graph, task).total() <= kBytes);
  ++task.batch_size;
  CHECK(check::estimate_memory(graph, task).total() > kBytes);
  CHECK(check::largest_batch(graph, task, 10) == 0);
}

TEST_CASE("memory: a checkpoint holds weights, buffers and optimizer state") {
  CHECK(check::checkpoint_size(small(), {.optimizer_tensors = 2}) ==
        4 * (3 * kParameters + kBuffers));
}
