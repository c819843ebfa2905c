// Every rank runs all of this under mpirun, in the same order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "runner/diag/error.h"
#include "runner/engine/comm/backends.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/strategy.h"
#include "runner/host/environment.h"

namespace runner::engine {

using registry::Value;

namespace {

constexpr int kElements = 5;

int number(const char* name) {
  return std::atoi(host::system_environment().get(name).value_or("").c_str());
}

/// Of exchanges; a test that waits for its end sets it.
std::chrono::milliseconds timeout() {
  const auto text = host::system_environment().get("RUNNER_TEST_TIMEOUT_MS");
  return std::chrono::milliseconds(std::atoi(text.value_or("60000").c_str()));
}

/// All ranks; MPI starts once a process.
const Group& world() {
  static const Group group = [] {
    const BackendOptions options{.store = {},
                                 .rank = number("OMPI_COMM_WORLD_RANK"),
                                 .size = number("OMPI_COMM_WORLD_SIZE"),
                                 .address = {},
                                 .timeout = timeout()};
    auto processes = c10::make_intrusive<c10d::ProcessGroup>(options.rank, options.size);
    using Type = c10d::ProcessGroup::BackendType;
    processes->setBackend(at::kCPU, Type::MPI, make_mpi(options, RUNNER_BINARY_DIR));
    processes->setDefaultBackend(Type::MPI);
    return Group(std::move(processes));
  }();
  return group;
}

int rank() { return world().rank(); }
int size() { return world().size(); }

/// What `rank` brings: [1, 2, …] + 10 * rank. Small whole numbers, which all dtypes hold and
/// add up without rounding.
at::Tensor brought(int rank, at::ScalarType dtype, std::int64_t elements = kElements) {
  return (at::arange(1, elements + 1, at::kLong).remainder(100) + 10 * rank).to(dtype);
}

c10::intrusive_ptr<c10d::Work> start(at::Tensor tensor, c10d::ReduceOp::RedOpType reduction) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = reduction;
  return world().processes()->allreduce(tensors, options);
}

/// Numbers of many magnitudes, whose sum depends on the order of adding.
at::Tensor rough(std::int64_t elements, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank()) + 1);
  return at::randn({elements}, generator)
      .mul(at::randn({elements}, generator).mul(4).exp())
      .to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                             at::kInt,   at::kLong,   at::kByte};

}  // namespace

TEST_CASE("mpi: sums, means, least and largest of every dtype are those of the closed forms") {
  for (const at::ScalarType dtype : kDtypes) {
    CAPTURE(c10::toString(dtype));
    // Less than a vector, many vectors, more than MPI takes at once without a pipeline.
    for (const std::int64_t elements : {1, kElements, 100003}) {
      CAPTURE(elements);
      const at::Tensor first = brought(0, at::kLong, elements);
      const auto check = [&](c10d::ReduceOp::RedOpType reduction, const at::Tensor& expected) {
        const at::Tensor tensor = brought(rank(), dtype, elements);
        start(tensor, reduction)->wait();
        CHECK((tensor.scalar_type() == dtype));
        CHECK(at::equal(tensor.to(at::kDouble), expected.to(at::kDouble)));
      };
      using Reduction = c10d::ReduceOp::RedOpType;
      const at::Tensor sum = first * size() + 5 * size() * (size() - 1);
      // bfloat16 has no room for larger sums than 256.
      if (dtype != at::kBFloat16 || sum.max().item<std::int64_t>() <= 256) {
        check(Reduction::SUM, dtype == at::kByte ? sum.remainder(256) : sum);
      }
      check(Reduction::MIN, first);
      check(Reduction::MAX, first + 10 * (size() - 1));
      if (dtype == at::kFloat || dtype == at::kDouble) {
        check(Reduction::AVG, sum.to(dtype) / size());
      }
    }
  }
}

TEST_CASE("mpi: bfloat16 sums of two ranks are rounded once") {
  if (size() != 2) return;
  const at::Tensor mine = rough(50001, at::kBFloat16);
  const std::vector<at::Tensor> all = world().gather(mine);
  const at::Tensor sum = mine.clone();
  world().sum(sum);
  CHECK(same_bits(
      sum, all[0].to(at::kDouble).add(all[1].to(at::kDouble)).to(at::kFloat).to(at::kBFloat16)));
}

TEST_CASE("mpi: a broadcast gives everybody the root's tensor, whoever the root is") {
  for (const at::ScalarType dtype : kDtypes) {
    CAPTURE(c10::toString(dtype));
    for (int root = 0; root < size(); ++root) {
      std::vector<at::Tensor> tensors{brought(rank(), dtype)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      world().processes()->broadcast(tensors, options)->wait();
      CHECK(at::equal(tensors.front(), brought(root, dtype)));
    }
  }
}

TEST_CASE("mpi: an allgather gives everybody all tensors in the order of the ranks") {
  for (const at::ScalarType dtype : kDtypes) {
    CAPTURE(c10::toString(dtype));
    const std::vector<at::Tensor> all = world().gather(brought(rank(), dtype));
    REQUIRE(std::ssize(all) == size());
    for (int r = 0; r < size(); ++r) {
      CHECK(at::equal(all[static_cast<std::size_t>(r)], brought(r, dtype)));
    }
  }
}

TEST_CASE("mpi: texts of different lengths, empty ones too, reach everybody") {
  const auto text = [](int r) { return std::string(static_cast<std::size_t>(r) * 7, 'a'); };
  const std::vector<std::string> all = world().gather(text(rank()));
  for (int r = 0; r < size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == text(r));
  CHECK(world().broadcast("from " + std::to_string(rank())) == "from 0");
}

TEST_CASE("mpi: tensors that are larger than a piece, not contiguous, or empty") {
  constexpr std::int64_t kLarge = (std::int64_t{4} << 20) + 3;  // numbers, of more than one piece
  const auto large = [](int r) {
    at::Tensor tensor = at::full({kLarge}, 7 - r, at::kDouble);
    tensor[0] = r;
    tensor[kLarge - 3] = 10 + r;
    tensor[kLarge - 1] = 20 + r;
    return tensor;
  };
  at::Tensor most = large(size() - 1);
  most.narrow(0, 1, kLarge - 4).fill_(7);
  most[kLarge - 2] = 7;
  at::Tensor tensor = large(rank());
  world().max(tensor);
  CHECK(at::equal(tensor, most));
  tensor = large(rank());
  world().broadcast({tensor});
  CHECK(at::equal(tensor, large(0)));
  const std::vector<at::Tensor> all = world().gather(large(rank()));
  for (int r = 0; r < size(); ++r) CHECK(at::equal(all[static_cast<std::size_t>(r)], large(r)));

  const at::Tensor whole = at::zeros({4, 3}, at::kFloat);
  const at::Tensor column = whole.select(1, 1);
  column.fill_(rank() + 1);
  world().sum(column);
  CHECK(at::equal(column, at::full({4}, size() * (size() + 1) / 2.0, at::kFloat)));
  CHECK(whole.sum().item<float>() == column.sum().item<float>());

  const at::Tensor none = at::zeros({0}, at::kFloat);
  world().sum(none);
  CHECK(none.numel() == 0);
}

TEST_CASE("mpi: exchanges that nobody waits for happen in the order of their calls") {
  constexpr int kExchanges = 60;
  std::vector<at::Tensor> tensors;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  tensors.reserve(kExchanges);
  works.reserve(kExchanges);
  std::mutex mutex;
  std::vector<int> order;
  for (int i = 0; i < kExchanges; ++i) {
    // Sizes go up and down, so that a later one would be done sooner.
    tensors.push_back(brought(rank() + i, at::kFloat, 1 + (kExchanges - i) % 7 * 30000));
    works.push_back(start(tensors.back(), c10d::ReduceOp::MAX));
    works.back()->getFuture()->addCallback([&, i](c10::ivalue::Future& done) {
      const std::scoped_lock lock(mutex);
      order.push_back(done.hasError() ? -1 : i);
    });
  }
  for (int i = kExchanges - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    CHECK(works[at]->wait());
    CHECK(works[at]->isSuccess());
    CHECK(at::equal(tensors[at], brought(size() - 1 + i, at::kFloat, tensors[at].numel())));
    const std::vector<at::Tensor> result = works[at]->getFuture()->value().toTensorVector();
    REQUIRE(result.size() == 1);
    CHECK(result.front().is_same(tensors[at]));
  }
  world().barrier();  // behind the last callback
  const std::scoped_lock lock(mutex);
  std::vector<int> expected(kExchanges);
  for (int i = 0; i < kExchanges; ++i) expected[static_cast<std::size_t>(i)] = i;
  CHECK(order == expected);
}

TEST_CASE("mpi: a thousand small exchanges") {
  for (int i = 0; i < 1000; ++i) {
    const at::Tensor tensor = at::full({1}, i + rank(), at::kLong);
    world().sum(tensor);
    REQUIRE(tensor.item<std::int64_t>() == i * size() + size() * (size() - 1) / 2);
  }
}

TEST_CASE("mpi: sums have the same bits in every repetition and on every rank") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    CAPTURE(c10::toString(dtype));
    // Open MPI takes another algorithm for each of these.
    for (const std::int64_t elements : {7, 1000, 5000, 100001, 3000017}) {
      if (elements > 1000000 && dtype != at::kFloat) continue;
      CAPTURE(elements);
      const at::Tensor mine = rough(elements, dtype);
      at::Tensor first;
      for (int i = 0; i < 20; ++i) {
        at::Tensor sum = mine.clone();
        world().sum(sum);
        if (i == 0)
          first = std::move(sum);
        else
          REQUIRE(same_bits(sum, first));
      }
      for (const at::Tensor& other : world().gather(first)) CHECK(same_bits(other, first));
    }
  }
}

namespace {

constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 4, kFeatures = 6;

/// Weights after 20 steps of plain gradient descent, on samples made from a seed. With several
/// processes each takes its part of every batch.
at::Tensor train(const Group& group, const std::string& compression) {
  Value::Table values{{"seed", 1},
                      {"model", Value::Table{{"name", "mlp"}}},
                      {"dataset", Value::Table{{"name", "digits"}}},
                      {"optimizer", Value::Table{{"name", "sgd"}}},
                      {"loss", Value::Table{{"name", "mse"}}},
                      {"trainer", Value::Table{{"gradient_compression", compression}}}};
  diag::Sink sink;
  const config::Experiment experiment = config::decode(values, {}, sink);
  for (const auto& diagnostic : sink.all()) MESSAGE(diagnostic.message);
  REQUIRE(sink.errors() == 0);
  plan::Plan plan;
  plan.backend = group.size() == 1 ? "none" : "horovod";
  plan.world_size = group.size();

  at::manual_seed(5);
  graph::Builder g({kFeatures});
  // Larger than the first bucket of 1 MB, so that there are several.
  auto x = g.relu("relu1", g.linear("fc1", g.input(), {.out = 700}));
  x = g.relu("relu2", g.linear("fc2", x, {.out = 500}));
  Network network = lower(std::move(g).finish(g.linear("fc3", x, {.out = 2})), at::kFloat);
  const auto precision = make_precision("32", at::kCPU);
  const auto strategy = make_strategy(
      {plan, experiment, make_loss("mse", experiment.loss.options), *precision, group, {at::kCPU}});
  strategy->setup(network, {});
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor inputs = at::randn({kBatch * size(), kFeatures});
    const at::Tensor targets = inputs.narrow(1, 0, 2).sin();
    const std::int64_t part = kBatch * size() / group.size();
    const std::int64_t from = part * group.rank();
    strategy->step(
        {.inputs = inputs.narrow(0, from, part), .targets = targets.narrow(0, from, part)});
    const at::NoGradGuard no_grad;
    for (const NamedTensor& parameter : network.parameters()) {
      at::Tensor tensor = parameter.tensor;
      tensor.sub_(tensor.grad(), 0.05);
      tensor.mutable_grad().zero_();
    }
  }
  std::vector<at::Tensor> all;
  for (const NamedTensor& tensor : network.state()) all.push_back(tensor.tensor.detach().flatten());
  return at::cat(all);
}

double furthest(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace

TEST_CASE("mpi: processes that share batches train what one process trains") {
  const at::Tensor alone = train(Group(), "none");
  const at::Tensor together = train(world(), "none");
  CHECK(furthest(alone, together) < 1e-6);
  // The training did something that a step more or less would show.
  at::manual_seed(5);
  CHECK(same_bits(train(world(), "none"), together));
  for (const at::Tensor& other : world().gather(together)) CHECK(same_bits(other, together));
}

TEST_CASE(
    "mpi: compressed gradients train the same weights on all ranks, and nearly those of full "
    "ones") {
  const at::Tensor full = train(world(), "none");
  for (const auto& [compression, tolerance] : {std::pair{"fp16", 2e-4}, std::pair{"bf16", 2e-3}}) {
    CAPTURE(compression);
    const at::Tensor compressed = train(world(), compression);
    CHECK(furthest(full, compressed) < tolerance);
    CHECK(furthest(full, compressed) > 0);
    for (const at::Tensor& other : world().gather(compressed)) {
      CHECK(same_bits(other, compressed));
    }
  }
}

TEST_CASE("mpi: an exchange that can't be is refused, and later ones go through") {
  std::vector<at::Tensor> two{at::zeros({1}), at::zeros({1})};
  CHECK_THROWS_WITH_AS((void)world().processes()->allreduce(two),
                       doctest::Contains("MPI_Allreduce: takes one tensor"), c10::Error);
  CHECK_THROWS_WITH_AS(world().sum(at::zeros({2}, at::kComplexFloat)),
                       doctest::Contains("MPI_Allreduce: tensors of ComplexFloat can't be reduced"),
                       ExchangeError);
  world().barrier();
}

TEST_CASE("mpi: a build without MPI says how to get it") {
  CHECK_THROWS_WITH_AS((void)make_mpi({}, "/nonexistent"),
                       "this build of runner-worker can't use MPI: "
                       "'/nonexistent/librunner-mpi.so' is missing",
                       diag::Error);
}

// Of a program of their own, since nothing comes after them.

TEST_CASE("mpi: a rank that doesn't come fails the exchange, and all after it" * doctest::skip()) {
  const std::filesystem::path done = host::system_environment().get("RUNNER_TEST_DONE").value();
  if (rank() == 0) std::filesystem::remove(done);  // of an earlier test
  world().barrier();
  if (rank() != 0) {
    while (!std::filesystem::exists(done)) usleep(10000);
    return;
  }
  std::vector<at::Tensor> tensors{at::zeros({3})};
  const auto work = world().processes()->allreduce(tensors);
  CHECK_THROWS_WITH_AS(work->wait(), "MPI_Allreduce: not all ranks came within 1000 ms",
                       std::runtime_error);
  CHECK(work->isCompleted());
  CHECK_FALSE(work->isSuccess());
  CHECK_THROWS_AS(work->getFuture()->value(), std::runtime_error);
  try {
    world().barrier();
    CHECK(false);
  } catch (const ExchangeError& error) {
    CHECK(is_exchange_failure(error.what()));
  }
  CHECK_THROWS_AS(world().leave(), ExchangeError);
  std::ofstream(done) << "done";
}

TEST_CASE("mpi: ranks that MPI counts otherwise are an error" * doctest::skip()) {
  const BackendOptions options{.store = {}, .rank = 0, .size = 2, .address = {}};  // it is alone
  CHECK_THROWS_WITH_AS((void)make_mpi(options, RUNNER_BINARY_DIR),
                       "this process is rank 0 of 2 in the plan and rank 0 of 1 for MPI",
                       diag::Error);
}

}  // namespace runner::engine

int main(int argc, char** argv) {
  at::set_num_threads(1);
  doctest::Context context(argc, argv);
  // A rank that goes on after a failure makes other exchanges than the rest.
  context.setOption("abort-after", 1);
  const int status = context.run();
  // Tests of failures say so, since nobody may be left to take leave of.
  if (status == 0 && std::getenv("RUNNER_TEST_FAILS") == nullptr) runner::engine::world().leave();
  std::cout.flush();
  // As runner-worker ends: without waiting for threads in MPI.
  std::_Exit(status);
}
