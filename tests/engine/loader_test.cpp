#include "runner/engine/loader.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/engine/memory_samples.h"

namespace runner::engine {

using test::classes_spec;
using test::MemorySamples;

namespace {

constexpr std::int64_t kFeatures = 4;

LoaderOptions options(std::int64_t batch, std::int64_t batches, bool shuffle, int threads) {
  return {
      .batch_size = batch, .batches = batches, .shuffle = shuffle, .seed = 5, .threads = threads};
}

/// Copies of the first numbers of all samples of `count` batches.
std::vector<std::vector<float>> take(Loader& loader, int count) {
  std::vector<std::vector<float>> result;
  for (int i = 0; i < count; ++i) {
    const Batch& batch = loader.next();
    const at::Tensor column = batch.inputs.select(1, 0).contiguous();
    const auto* data = column.const_data_ptr<float>();
    result.emplace_back(data, data + column.numel());
  }
  return result;
}

std::vector<std::vector<float>> expected(const std::vector<std::int64_t>& order, std::int64_t batch,
                                         std::int64_t batches) {
  std::vector<std::vector<float>> result;
  for (std::int64_t b = 0; b < batches; ++b) {
    result.emplace_back();
    const auto end =
        std::min<std::int64_t>((b + 1) * batch, static_cast<std::int64_t>(order.size()));
    for (std::int64_t i = b * batch; i < end; ++i) {
      result.back().push_back(MemorySamples::feature(order[static_cast<std::size_t>(i)], 0));
    }
  }
  return result;
}

std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed) {
  const at::Tensor order = at::randperm(n, at::detail::createCPUGenerator(seed), at::kLong);
  const auto* data = order.const_data_ptr<std::int64_t>();
  return {data, data + n};
}

}  // namespace

TEST_CASE("loader: without shuffling, batches are the samples in order, the last one short") {
  const MemorySamples samples(10, kFeatures);
  Loader loader(samples, classes_spec(10, kFeatures), options(4, 3, false, 1));
  std::vector<std::int64_t> order(10);
  for (std::size_t i = 0; i < 10; ++i) order[i] = static_cast<std::int64_t>(i);
  CHECK(loader.batch_size(0) == 4);
  CHECK(loader.batch_size(2) == 2);
  const auto epoch = expected(order, 4, 3);
  CHECK(take(loader, 3) == epoch);
  CHECK(take(loader, 3) == epoch);  // and again
}

TEST_CASE(
    "loader: epoch e is torch.randperm of a generator seeded seed + e, whatever the threads") {
  const std::int64_t n = 103;
  const MemorySamples samples(n, kFeatures);
  for (const int threads : {1, 2, 5}) {
    CAPTURE(threads);
    Loader loader(samples, classes_spec(n, kFeatures), options(7, 15, true, threads));
    for (std::uint64_t epoch = 0; epoch < 12; ++epoch) {
      CAPTURE(epoch);
      CHECK(take(loader, 15) == expected(permutation(n, 5 + epoch), 7, 15));
    }
  }
}

TEST_CASE("loader: starting at any position gives what follows it") {
  const MemorySamples samples(50, kFeatures);
  const datasets::Spec spec = classes_spec(50, kFeatures);
  Loader whole(samples, spec, options(8, 7, true, 2));
  const auto all = take(whole, 21);
  for (const int position : {0, 1, 6, 7, 13, 20}) {
    CAPTURE(position);
    Loader rest(samples, spec, options(8, 7, true, 2), position / 7, position % 7);
    CHECK(take(rest, 21 - position) == std::vector(all.begin() + position, all.end()));
  }
}

TEST_CASE("loader: a batch larger than the dataset needs memory for the dataset only") {
  const MemorySamples samples(10, kFeatures);
  const std::int64_t huge = std::int64_t{1} << 50;
  Loader loader(samples, classes_spec(10, kFeatures), options(huge, 1, true, 2));
  CHECK(loader.batch_size(0) == 10);
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    CHECK(take(loader, 1) == expected(permutation(10, 5 + epoch), 10, 1));
  }
}

TEST_CASE("loader: targets belong to their inputs") {
  const MemorySamples samples(30, kFeatures);
  datasets::Spec spec = test::values_spec(30, kFeatures);
  Loader loader(samples, spec, options(8, 4, true, 3));
  for (int i = 0; i < 8; ++i) {
    const Batch& batch = loader.next();
    const at::Tensor want = batch.inputs.select(1, 0) * 2 - batch.inputs.select(1, 1) + 0.25;
    CHECK(at::allclose(batch.targets.select(1, 0), want));
  }
}

TEST_CASE("loader: what a thread throws arrives at the batch that it concerns") {
  MemorySamples samples(20, kFeatures);
  samples.broken_row = 13;
  Loader loader(samples, classes_spec(20, kFeatures), options(5, 4, false, 2));
  CHECK_NOTHROW((void)loader.next());
  CHECK_NOTHROW((void)loader.next());
  CHECK_THROWS_WITH((void)loader.next(), "row 13 is broken");
}

TEST_CASE("loader: can be dropped at any moment") {
  const MemorySamples samples(1000, kFeatures);
  for (int taken = 0; taken < 40; ++taken) {
    Loader loader(samples, classes_spec(1000, kFeatures), options(2, 500, true, 3));
    take(loader, taken);
  }
}

}  // namespace runner::engine
