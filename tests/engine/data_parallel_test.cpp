#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>

#include "runner/engine/comm/backends.h"
#include "runner/engine/loader.h"
#include "runner/engine/optimizer.h"
#include "runner/engine/strategies/team.h"
#include "runner/engine/strategy.h"

namespace runner::engine {

namespace {

constexpr std::int64_t kFeatures = 6;
constexpr std::int64_t kClasses = 3;

struct Rows {
  at::Tensor inputs, targets;
  [[nodiscard]] Rows part(std::int64_t first, std::int64_t count) const {
    return {inputs.narrow(0, first, count), targets.narrow(0, first, count)};
  }
};

/// The same for each n and seed, and not from the default generator.
Rows make_rows(std::int64_t n, std::uint64_t seed = 11) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  const at::Tensor inputs = at::empty({n, kFeatures}).normal_(0, 1, generator);
  return {inputs, inputs.narrow(1, 0, kClasses).argmax(1)};
}

enum class Kind { plain, batch_norm, dropout };

Network make_network(Kind kind = Kind::plain, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(5);
  graph::Builder g({kFeatures});
  auto x = g.linear("fc1", g.input(), {.out = 16});
  if (kind == Kind::batch_norm) x = g.batch_norm("bn", x);
  x = g.relu("relu", x);
  if (kind == Kind::dropout) x = g.dropout("drop", x, 0.5);
  x = g.relu("relu2", g.linear("fc2", x, {.out = 8}));
  return lower(std::move(g).finish(g.linear("fc3", x, {.out = kClasses})), dtype);
}

at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::cross_entropy_loss(outputs, targets);
}

/// A strategy of `replicas` on the CPU and what it works with.
struct Parallel {
  explicit Parallel(std::size_t replicas, Network own = make_network(),
                    Loss own_loss = cross_entropy, Group own_group = {},
                    const std::string& precision_name = "32")
      : network(std::move(own)),
        group(std::move(own_group)),
        precision(make_precision(precision_name, at::kCPU)),
        loss(std::move(own_loss)),
        devices(replicas, at::kCPU) {
    experiment.general.seed = 3;
  }
  Strategy& start(const Strategy::State& state = {}) {
    strategy = make_data_parallel({plan, experiment, loss, *precision, group, devices});
    strategy->setup(network, state);
    return *strategy;
  }
  /// An optimizer step's gradients, from micro-batches of equal size.
  at::Tensor group_step(const Rows& rows, std::int64_t micro_batches) {
    const std::int64_t n = rows.inputs.size(0);
    at::Tensor mean = at::zeros({});
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const Share share = share_of(n, i, micro_batches);
      const Rows part = rows.part(share.first, share.count);
      const double weight =
          static_cast<double>(share.count * group.size()) / static_cast<double>(n);
      mean += weight * strategy->step({part.inputs, part.targets, weight, i + 1 == micro_batches});
    }
    return mean;
  }

  plan::Plan plan;
  config::Experiment experiment;
  Network network;
  Group group;
  std::unique_ptr<Precision> precision;
  Loss loss;
  std::vector<at::Device> devices;
  std::unique_ptr<Strategy> strategy;
};

void drop_gradients(const Network& network) {
  for (const NamedTensor& p : network.parameters()) p.tensor.mutable_grad() = at::Tensor();
}

std::map<std::string, at::Tensor> copies(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : tensors) all[name] = tensor.detach().clone();
  return all;
}
std::map<std::string, at::Tensor> gradients(const Network& network) {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, tensor] : network.parameters()) all[name] = tensor.grad().clone();
  return all;
}

/// The gradients of the mean loss over all rows, without a strategy.
std::map<std::string, at::Tensor> expected_gradients(Network network, const Rows& rows) {
  cross_entropy(network.forward(rows.inputs, true), rows.targets).backward();
  return gradients(network);
}

void check_close(const std::map<std::string, at::Tensor>& a,
                 const std::map<std::string, at::Tensor>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    INFO(name);
    CHECK((tensor - b.at(name)).abs().max().item<double>() <= tolerance);
  }
}
void check_equal(const std::map<std::string, at::Tensor>& a,
                 const std::map<std::string, at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    INFO(name);
    CHECK(at::equal(tensor, b.at(name)));
  }
}

/// Notes, for each forward pass, its thread and modes, and its output.
class Watched : public Precision {
 public:
  explicit Watched(std::unique_ptr<Precision> real)
      : Precision(real->dtype()), real_(std::move(real)) {}
  at::Tensor run(const std::function<at::Tensor()>& forward) const override {
    at::Tensor narrow;
    at::Tensor result = real_->run([&] { return narrow = forward(); });
    const std::scoped_lock lock(mutex_);
    threads.insert(std::this_thread::get_id());
    grad_modes.push_back(at::GradMode::is_enabled());
    dtypes.push_back(narrow.scalar_type());
    return result;
  }

  mutable std::set<std::thread::id> threads;
  mutable std::vector<bool> grad_modes;
  mutable std::vector<at::ScalarType> dtypes;

 private:
  std::unique_ptr<Precision> real_;
  mutable std::mutex mutex_;
};

}  // namespace

TEST_CASE("team: all members have the caller's modes and number of threads") {
  // What OpenMP itself would use: at::get_num_threads() sets a new thread's number when asked.
  const auto omp_threads = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  REQUIRE((omp_threads != nullptr));
  at::set_num_threads(3);
  Team team(3);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  std::vector<bool> grad(3, true), autocast(3, false);
  std::vector<int> threads(3);
  std::vector<std::thread::id> ids(3);
  {
    const at::NoGradGuard no_grad;
    std::mutex mutex;
    team.run(3, [&](std::size_t i) {
      const std::scoped_lock lock(mutex);
      grad[i] = at::GradMode::is_enabled();
      autocast[i] = at::autocast::is_autocast_enabled(at::kCPU);
      threads[i] = omp_threads();
      ids[i] = std::this_thread::get_id();
    });
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(grad == std::vector<bool>{false, false, false});
  CHECK(autocast == std::vector<bool>{true, true, true});
  CHECK(threads == std::vector<int>{3, 3, 3});
  CHECK(ids[0] == std::this_thread::get_id());
  CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == 3);
  at::set_num_threads(1);

  std::vector<bool> later(3, false);
  std::mutex mutex;
  team.run(2, [&](std::size_t i) {
    const std::scoped_lock lock(mutex);
    later[i] = at::GradMode::is_enabled();
  });
  CHECK(later == std::vector<bool>{true, true, false});
}

TEST_CASE("team: the first member's error arrives when all are done, and the team goes on") {
  Team team(4);
  std::atomic<int> done = 0;
  const auto work = [&](std::size_t i) {
    if (i >= 2) throw std::runtime_error("member " + std::to_string(i));
    ++done;
  };
  CHECK_THROWS_WITH_AS(team.run(4, work), "member 2", std::runtime_error);
  CHECK(done == 2);
  team.run(2, work);
  CHECK(done == 4);
}

TEST_CASE("data parallel: gradients are those of one device") {
  at::set_num_threads(1);
  for (const std::size_t replicas : {2, 3, 4}) {
    for (const std::int64_t n : {12, 13, 14, 3, 1}) {
      for (const std::int64_t micro_batches : {1, 3}) {
        if (n < micro_batches) continue;
        CAPTURE(replicas);
        CAPTURE(n);
        CAPTURE(micro_batches);
        const Rows rows = make_rows(n);
        Parallel p(replicas);
        p.start();
        const at::Tensor loss = p.group_step(rows, micro_batches);
        check_close(gradients(p.network), expected_gradients(make_network(), rows), 1e-6);
        Network whole = make_network();
        const at::Tensor expected = cross_entropy(whole.forward(rows.inputs, true), rows.targets);
        CHECK(loss.item<double>() == doctest::Approx(expected.item<double>()).epsilon(1e-6));
        CHECK_FALSE(loss.requires_grad());
      }
    }
  }
}

TEST_CASE("data parallel: a replica that has no rows in the last micro-batch keeps its part") {
  const Rows rows = make_rows(5);
  Parallel p(3);
  Strategy& strategy = p.start();
  const Rows many = rows.part(0, 4);
  const Rows one = rows.part(4, 1);
  (void)strategy.step({many.inputs, many.targets, 0.8, false});
  (void)strategy.step({one.inputs, one.targets, 0.2, true});
  const auto expected = expected_gradients(make_network(), rows);
  check_close(gradients(p.network), expected, 1e-6);

  // Nothing of it is left for the next step.
  drop_gradients(p.network);
  (void)p.group_step(rows, 1);
  check_close(gradients(p.network), expected, 1e-6);
}

TEST_CASE("data parallel: fifty steps give the weights of one device") {
  at::set_num_threads(1);
  const std::vector<std::pair<std::string, std::any>> optimizers = {
      {"sgd", components::Sgd{.momentum = 0.9}}, {"adamw", components::AdamW{}}};
  for (const auto& [name, options] : optimizers) {
    for (const std::size_t replicas : {2, 3}) {
      for (const std::int64_t micro_batches : {1, 3}) {
        CAPTURE(name);
        CAPTURE(replicas);
        CAPTURE(micro_batches);
        Parallel p(replicas, make_network(Kind::plain, at::kDouble), cross_entropy, {}, "64");
        p.start();
        Network alone = make_network(Kind::plain, at::kDouble);
        const auto of_p = make_optimizer(name, options, p.network.parameters());
        const auto of_alone = make_optimizer(name, options, alone.parameters());
        const auto before = copies(alone.state());
        for (std::uint64_t step = 0; step < 50; ++step) {
          Rows rows = make_rows(11, step);
          rows.inputs = rows.inputs.to(at::kDouble);
          (void)p.group_step(rows, micro_batches);
          of_p->step(0.05);
          drop_gradients(p.network);
          cross_entropy(alone.forward(rows.inputs, true), rows.targets).backward();
          of_alone->step(0.05);
          drop_gradients(alone);
        }
        check_close(copies(p.network.state()), copies(alone.state()), 1e-9);
        CHECK((before.at("fc1.weight") - copies(alone.state()).at("fc1.weight"))
                  .abs()
                  .max()
                  .item<double>() > 0.01);
      }
    }
  }
}

TEST_CASE("data parallel: running statistics are replica 0's, and all replicas predict with them") {
  const Rows rows = make_rows(10);
  Parallel p(2, make_network(Kind::batch_norm));
  Strategy& strategy = p.start();
  (void)p.group_step(rows, 1);

  Network first = make_network(Kind::batch_norm);
  (void)first.forward(rows.part(0, 5).inputs, true);
  check_equal(copies(p.network.buffers()), copies(first.buffers()));

  const at::NoGradGuard no_grad;
  const at::Tensor outputs = strategy.predict(rows.inputs);
  const at::Tensor expected = first.forward(rows.inputs, false);
  CHECK(at::allclose(outputs, expected, 1e-6, 1e-6));
}

TEST_CASE("data parallel: gradients of batch normalisation are those of each replica's rows") {
  const Rows rows = make_rows(10);
  Parallel p(2, make_network(Kind::batch_norm));
  p.start();
  (void)p.group_step(rows, 1);

  Network expected = make_network(Kind::batch_norm);
  for (const std::int64_t first : {0, 5}) {
    const Rows part = rows.part(first, 5);
    (cross_entropy(expected.forward(part.inputs, true), part.targets) / 2).backward();
  }
  check_close(gradients(p.network), gradients(expected), 1e-6);
}

TEST_CASE("data parallel: predictions come in the rows' order, without gradients") {
  Parallel p(3);
  auto watched = std::make_unique<Watched>(std::move(p.precision));
  const Watched& seen = *watched;
  p.precision = std::move(watched);
  Strategy& strategy = p.start();
  for (const std::int64_t n : {7, 2}) {
    const Rows rows = make_rows(n);
    const at::Tensor outputs = strategy.predict(rows.inputs);
    CHECK_FALSE(outputs.requires_grad());
    Network alone = make_network();
    CHECK(at::allclose(outputs, alone.forward(rows.inputs, false), 1e-6, 1e-6));
  }
  CHECK(seen.grad_modes == std::vector<bool>(5, false));
  CHECK(seen.threads.size() == 3);
}

TEST_CASE("data parallel: predictions follow the weights") {
  const Rows rows = make_rows(8);
  Parallel p(2);
  Strategy& strategy = p.start();
  const at::Tensor before = strategy.predict(rows.inputs);
  {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& parameter : p.network.parameters()) parameter.tensor.mul_(2);
  }
  const at::Tensor after = strategy.predict(rows.inputs);
  CHECK(at::allclose(after, p.network.forward(rows.inputs, false), 1e-6, 1e-6));
  CHECK_FALSE(at::allclose(after, before));
}

TEST_CASE("data parallel: replicas on the CPU share the memory of the weights") {
  const Network network = make_network(Kind::batch_norm);
  const Network replica = network.replica(at::kCPU);
  REQUIRE(replica.parameters().size() == network.parameters().size());
  for (std::size_t i = 0; i < network.parameters().size(); ++i) {
    const at::Tensor &own = network.parameters()[i].tensor, &its = replica.parameters()[i].tensor;
    CHECK(replica.parameters()[i].name == network.parameters()[i].name);
    CHECK(its.const_data_ptr() == own.const_data_ptr());
    CHECK(its.is_leaf());
    CHECK(its.requires_grad());
    its.mutable_grad() = at::zeros_like(its);
    CHECK_FALSE(own.grad().defined());
  }
  for (std::size_t i = 0; i < network.buffers().size(); ++i) {
    const at::Tensor &own = network.buffers()[i].tensor, &its = replica.buffers()[i].tensor;
    CHECK(its.const_data_ptr() != own.const_data_ptr());
    CHECK(at::equal(its, own));
  }
}

TEST_CASE("data parallel: all replicas compute in the precision that was asked for") {
  Parallel p(3, make_network(), cross_entropy, {}, "bf16");
  auto watched = std::make_unique<Watched>(std::move(p.precision));
  const Watched& seen = *watched;
  p.precision = std::move(watched);
  p.start();
  const Rows rows = make_rows(30);
  (void)p.group_step(rows, 1);
  CHECK((seen.dtypes == std::vector<at::ScalarType>(3, at::kBFloat16)));
  CHECK(seen.grad_modes == std::vector<bool>(3, true));
  CHECK(seen.threads.size() == 3);
  check_close(gradients(p.network), expected_gradients(make_network(), rows), 0.01);
}

TEST_CASE("data parallel: a loss scale is in the gradients and not in the loss") {
  const Rows rows = make_rows(9);
  Parallel p(2);
  p.precision = make_precision("16", at::kCPU);
  p.start();
  const at::Tensor loss = p.group_step(rows, 1);
  std::vector<at::Tensor> scaled;
  for (const NamedTensor& parameter : p.network.parameters()) {
    scaled.push_back(parameter.tensor.grad());
  }
  REQUIRE(p.precision->unscale(scaled));
  check_close(gradients(p.network), expected_gradients(make_network(), rows), 0.01);
  Network alone = make_network();
  const at::Tensor expected = cross_entropy(alone.forward(rows.inputs, false), rows.targets);
  CHECK(loss.item<double>() == doctest::Approx(expected.item<double>()).epsilon(0.01));
}

TEST_CASE("data parallel: dropout gives the same bits again, and after a resume") {
  at::set_num_threads(1);
  constexpr int kSteps = 6;
  constexpr int kResumeAt = 3;
  struct Saved {
    std::vector<NamedTensor> weights;
    std::vector<std::pair<std::string, at::Tensor>> generators;
  };
  const auto all_generators = [](const Strategy& strategy) {
    auto all = strategy.generators();
    all.emplace_back("cpu", at::globalContext().defaultGenerator(at::kCPU));
    return all;
  };
  const auto train = [&](int from, int to, Saved* load, Saved* save) {
    Parallel p(3, make_network(Kind::dropout));
    if (load != nullptr) p.network.load_state(load->weights);
    Strategy& strategy = p.start();
    if (load != nullptr) {
      for (auto& [name, generator] : all_generators(strategy)) {
        for (const auto& [saved, state] : load->generators) {
          if (saved == name) generator.set_state(state);
        }
      }
    }
    for (int step = from; step < to; ++step) {
      (void)p.group_step(make_rows(8, static_cast<std::uint64_t>(step)), 2);
      const at::NoGradGuard no_grad;
      for (const NamedTensor& parameter : p.network.parameters()) {
        parameter.tensor.sub_(parameter.tensor.grad(), 0.1);
      }
      drop_gradients(p.network);
    }
    if (save != nullptr) {
      for (const auto& [name, tensor] : p.network.state()) {
        save->weights.push_back({name, tensor.detach().clone()});
      }
      for (const auto& [name, generator] : all_generators(strategy)) {
        save->generators.emplace_back(name, generator.get_state().clone());
      }
    }
    return copies(p.network.state());
  };
  const auto once = train(0, kSteps, nullptr, nullptr);
  check_equal(train(0, kSteps, nullptr, nullptr), once);
  Saved half;
  (void)train(0, kResumeAt, nullptr, &half);
  CHECK(half.generators.size() == 3);
  check_equal(train(kResumeAt, kSteps, &half, nullptr), once);
  // The replicas' own generators are needed for that.
  half.generators.erase(half.generators.begin());
  CHECK_FALSE(
      at::equal(train(kResumeAt, kSteps, &half, nullptr).at("fc1.weight"), once.at("fc1.weight")));
}

TEST_CASE("data parallel: replicas drop different units, other ones for another seed") {
  const Rows one = make_rows(1);
  const Rows rows{one.inputs.repeat({4, 1}), one.targets.repeat({4})};
  const auto outputs_of = [&](std::int64_t seed) {
    std::mutex mutex;
    std::vector<at::Tensor> outputs;
    const Loss noting = [&](const at::Tensor& out, const at::Tensor& targets) {
      const std::scoped_lock lock(mutex);
      outputs.push_back(out.detach().clone());
      return cross_entropy(out, targets);
    };
    Parallel p(4, make_network(Kind::dropout), noting);
    p.experiment.general.seed = seed;
    p.start();
    (void)p.group_step(rows, 1);
    REQUIRE(outputs.size() == 4);
    std::set<std::vector<float>> different;
    for (const at::Tensor& out : outputs) {
      different.emplace(out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel());
    }
    return different;
  };
  const auto outputs = outputs_of(3);
  CHECK(outputs.size() == 4);
  CHECK(outputs_of(3) == outputs);
  CHECK(outputs_of(4) != outputs);
}

TEST_CASE("data parallel: an error in a replica reaches the caller") {
  const Rows rows = make_rows(6);
  const std::thread::id caller = std::this_thread::get_id();
  bool fails = true;
  const Loss failing = [&](const at::Tensor& outputs, const at::Tensor& targets) {
    if (fails && std::this_thread::get_id() != caller) {
      throw std::runtime_error("class " + std::to_string(targets.numel()));
    }
    return cross_entropy(outputs, targets);
  };
  Parallel p(2, make_network(), failing);
  Strategy& strategy = p.start();
  CHECK_THROWS_WITH_AS((void)strategy.step({rows.inputs, rows.targets, 1, true}), "class 3",
                       std::runtime_error);
  // A wrong shape is LibTorch's own error, in all replicas.
  CHECK_THROWS_AS((void)strategy.predict(at::zeros({6, kFeatures + 1})), c10::Error);
  fails = false;
  CHECK_NOTHROW((void)strategy.predict(rows.inputs));
}

namespace {

/// Runs `work` as each of the ranks of a group over gloo, a thread each.
void as_ranks(int size, const std::function<void(Group)>& work) {
  // c10d's recorder of exchanges is one for a process and not made for several ranks in it.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const BackendOptions options{.store = store,
                                     .rank = rank,
                                     .size = size,
                                     .address = "127.0.0.1",
                                     .timeout = std::chrono::seconds(20)};
        auto processes = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
        using Type = c10d::ProcessGroup::BackendType;
        processes->setBackend(c10::DeviceType::CPU, Type::GLOO, make_gloo(options));
        processes->setDefaultBackend(Type::GLOO);
        work(Group(std::move(processes)));
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// A step of two processes with two replicas each; what both have then.
std::vector<std::map<std::string, at::Tensor>> ddp2_gradients(
    const Rows& rows, std::int64_t micro_batches,
    const std::function<void(config::Trainer&)>& change) {
  std::vector<std::map<std::string, at::Tensor>> results(2);
  std::vector<Network> networks;
  for (int i = 0; i < 2; ++i) networks.push_back(make_network());
  as_ranks(2, [&](Group group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const Share mine = share_of(rows.inputs.size(0), group.rank(), 2);
    Parallel p(2, std::move(networks[rank]), cross_entropy, std::move(group));
    change(p.experiment.trainer);
    Strategy& strategy = p.start();
    // As the trainer weights them: by their part in all samples, times the number of processes.
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const Share share = share_of(mine.count, i, micro_batches);
      const Rows part = rows.part(mine.first + share.first, share.count);
      const double weight =
          2.0 * static_cast<double>(share.count) / static_cast<double>(rows.inputs.size(0));
      (void)strategy.step({part.inputs, part.targets, weight, i + 1 == micro_batches});
    }
    results[rank] = gradients(p.network);
    CHECK_FALSE(strategy.state().buckets.empty());
  });
  return results;
}

}  // namespace

TEST_CASE("ddp2: gradients are those of one device, the same on all ranks") {
  at::set_num_threads(1);
  for (const std::int64_t n : {16, 15}) {
    for (const std::int64_t micro_batches : {1, 3}) {
      for (const bool views : {true, false}) {
        CAPTURE(n);
        CAPTURE(micro_batches);
        CAPTURE(views);
        const Rows rows = make_rows(n);
        const auto results = ddp2_gradients(rows, micro_batches, [&](config::Trainer& trainer) {
          trainer.gradient_as_bucket_view = views;
        });
        check_close(results[0], expected_gradients(make_network(), rows), 1e-6);
        check_equal(results[0], results[1]);
      }
    }
  }
}

TEST_CASE("ddp2: only a step's last micro-batch is followed by an exchange") {
  const Rows rows = make_rows(12);
  std::vector<Network> networks;
  for (int i = 0; i < 2; ++i) networks.push_back(make_network());
  std::vector<std::map<std::string, at::Tensor>> results(2);
  as_ranks(2, [&](Group group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const Rows mine = rows.part(6 * group.rank(), 6);
    Parallel p(2, std::move(networks[rank]), cross_entropy, std::move(group));
    Strategy& strategy = p.start();
    // Rank 1 has fewer micro-batches, so an exchange more would be one without a partner.
    const std::int64_t micro_batches = rank == 0 ? 3 : 1;
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      const Share share = share_of(6, i, micro_batches);
      const Rows part = mine.part(share.first, share.count);
      const double weight = static_cast<double>(share.count) / 6;
      (void)strategy.step({part.inputs, part.targets, weight, i + 1 == micro_batches});
    }
    results[rank] = gradients(p.network);
  });
  check_close(results[0], expected_gradients(make_network(), rows), 1e-6);
  check_equal(results[0], results[1]);
}

TEST_CASE("ddp2: gradients travel in the format that was asked for") {
  const Rows rows = make_rows(16);
  const auto expected = expected_gradients(make_network(), rows);
  for (const auto& [format, dtype, tolerance] :
       {std::tuple{"fp16", at::kHalf, 1e-3}, std::tuple{"bf16", at::kBFloat16, 1e-2}}) {
    CAPTURE(format);
    const char* const name = format;
    const auto results = ddp2_gradients(
        rows, 1, [&](config::Trainer& trainer) { trainer.gradient_compression = name; });
    check_close(results[0], expected, tolerance);
    check_equal(results[0], results[1]);
    for (const auto& [parameter, gradient] : results[0]) {
      INFO(parameter);
      CHECK((gradient.scalar_type() == at::kFloat));
      CHECK(at::equal(gradient.to(dtype).to(at::kFloat), gradient));
    }
  }
}

TEST_CASE(
    "ddp2: buckets go from the last parameter to the first, and a resumed run keeps its own") {
  std::vector<Network> networks;
  for (int i = 0; i < 2; ++i) networks.push_back(make_network());
  std::vector<std::vector<std::vector<std::size_t>>> fresh(2), resumed(2);
  as_ranks(2, [&](Group group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Parallel p(2, std::move(networks[rank]), cross_entropy, std::move(group));
    fresh[rank] = p.start().state().buckets;
    resumed[rank] = p.start({{{5, 3}, {4, 2, 1, 0}}}).state().buckets;
    (void)p.group_step(make_rows(8), 1);
  });
  CHECK(fresh[0] == std::vector<std::vector<std::size_t>>{{5, 4, 3, 2, 1, 0}});
  CHECK(resumed[0] == std::vector<std::vector<std::size_t>>{{5, 3}, {4, 2, 1, 0}});
  CHECK(resumed[1] == resumed[0]);
}

TEST_CASE("ddp2: statistics are rank 0's after a sync, for all replicas") {
  const Rows rows = make_rows(16);
  std::vector<Network> networks;
  for (int i = 0; i < 2; ++i) networks.push_back(make_network(Kind::batch_norm));
  std::vector<at::Tensor> before(2), after(2), outputs(2);
  as_ranks(2, [&](Group group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const Rows mine = rows.part(8 * group.rank(), 8);
    Parallel p(2, std::move(networks[rank]), cross_entropy, std::move(group));
    Strategy& strategy = p.start();
    (void)strategy.step({mine.inputs, mine.targets, 1, true});
    (void)strategy.predict(rows.inputs);
    before[rank] = copies(p.network.buffers()).at("bn.running_mean");
    strategy.sync();
    after[rank] = copies(p.network.buffers()).at("bn.running_mean");
    outputs[rank] = strategy.predict(rows.inputs);
  });
  CHECK_FALSE(at::equal(before[0], before[1]));
  CHECK(at::equal(after[0], before[0]));
  CHECK(at::equal(after[1], before[0]));
  CHECK(at::equal(outputs[0], outputs[1]));
}

}  // namespace runner::engine
