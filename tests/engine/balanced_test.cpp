#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "runner/engine/by_device.h"
#include "runner/engine/optimizer.h"
#include "runner/engine/strategies/channel.h"
#include "runner/engine/strategy.h"

namespace runner::engine {

namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kBatch = 13;
constexpr std::int64_t kClasses = 5;

graph::Graph mlp(double dropout = 0) {
  graph::Builder g({6});
  auto x = g.relu("relu1", g.linear("fc1", g.input(), {.out = 16}));
  x = g.relu("relu2", g.linear("fc2", g.dropout("drop1", x, dropout), {.out = 12}));
  x = g.linear("fc3", g.dropout("drop2", x, dropout), {.out = kClasses});
  return std::move(g).finish(x);
}

graph::Graph lenet() {
  graph::Builder g({1, 12, 12});
  auto x = g.relu("relu1", g.conv2d("conv1", g.input(), {.out = 4, .kernel = {5, 5}}));
  x = g.max_pool2d("pool1", x);
  x = g.relu("relu2", g.conv2d("conv2", x, {.out = 6}));
  x = g.flatten("flatten", x);
  x = g.linear("fc2", g.relu("relu3", g.linear("fc1", x, {.out = 20})), {.out = kClasses});
  return std::move(g).finish(x);
}

/// Blocks with shortcuts, one shortcut over all of them, and the input read once more near the end:
/// any cut is crossed by several values.
graph::Graph residual() {
  graph::Builder g({3, 6, 6});
  const auto stem = g.conv2d("stem", g.input(), {.out = 3, .padding = {1, 1}});
  auto x = stem;
  for (const std::string name : {"a", "b", "c"}) {
    auto y = g.relu(name + ".relu1", g.conv2d(name + ".conv1", x, {.out = 3, .padding = {1, 1}}));
    y = g.conv2d(name + ".conv2", y, {.out = 3, .padding = {1, 1}});
    x = g.relu(name + ".relu2", g.add(name + ".add", x, y));
  }
  x = g.add("far", x, stem);
  x = g.add("input_again", x, g.input());
  x = g.linear("fc", g.global_avg_pool("pool", x), {.out = kClasses});
  return std::move(g).finish(x);
}

/// The first layers have nothing to learn, so no gradient goes back to them.
graph::Graph late_parameters() {
  graph::Builder g({2, 4, 4});
  auto x = g.max_pool2d("pool", g.activation("tanh", g.input(), graph::ActivationKind::tanh));
  x = g.linear("fc1", g.flatten("flatten", x), {.out = 8});
  x = g.linear("fc2", g.layer_norm("norm", x), {.out = kClasses});
  return std::move(g).finish(x);
}

/// A strategy with all that it works on.
struct Made {
  Made(const graph::Graph& graph, std::size_t stages, std::int64_t micro_batches,
       const std::string& number_format = "64", Loss with_loss = {})
      : precision(make_precision(number_format, at::kCPU)),
        network(seeded(graph, precision->dtype())) {
    plan.backend = "balanced";
    plan.precision = number_format;
    plan.batch_size = kBatch;
    experiment.general.seed = 7;
    experiment.trainer.micro_batches = micro_batches;
    loss = with_loss ? std::move(with_loss)
                     : make_loss("cross_entropy", std::any(components::CrossEntropy{}));
    const StrategyOptions options{
        plan, experiment, loss, *precision, group, std::vector<at::Device>(stages, at::kCPU)};
    strategy = stages == 1 ? make_single(options) : make_balanced(options);
    strategy->setup(network, {});
  }

  static Network seeded(const graph::Graph& graph, at::ScalarType dtype) {
    at::set_num_threads(1);
    at::manual_seed(3);
    return lower(graph, dtype);
  }

  /// Gradients, which are dropped.
  Tensors take_gradients() {
    Tensors gradients;
    for (const NamedTensor& parameter : network.parameters()) {
      gradients.push_back(parameter.tensor.grad());
      parameter.tensor.mutable_grad() = at::Tensor();
    }
    return gradients;
  }

  plan::Plan plan;
  config::Experiment experiment;
  Group group;
  std::unique_ptr<Precision> precision;
  Network network;
  Loss loss;
  std::unique_ptr<Strategy> strategy;
};

MicroBatch batch_for(const graph::Graph& graph, at::ScalarType dtype, std::int64_t samples = kBatch,
                     std::uint64_t seed = 1) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<std::int64_t> shape = graph.input();
  shape.insert(shape.begin(), samples);
  return {at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype),
          at::randint(0, kClasses, {samples}, generator, at::TensorOptions().dtype(at::kLong))};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

void check_near(const Tensors& found, const Tensors& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    REQUIRE(found[i].defined());
    CHECK(distance(found[i], expected[i]) < tolerance);
  }
}

bool equal(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

Tensors copies(const std::vector<NamedTensor>& named) {
  Tensors result;
  for (const NamedTensor& each : named) result.push_back(each.tensor.detach().clone());
  return result;
}

struct Model {
  const char* name;
  graph::Graph graph;
};
std::vector<Model> models() {
  return {{"mlp", mlp()},
          {"lenet", lenet()},
          {"residual", residual()},
          {"late parameters", late_parameters()}};
}

}  // namespace

TEST_CASE("network: two parts, cut anywhere, give the outputs and gradients of the whole") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const auto batch = batch_for(model.graph, at::kDouble);
    Network whole = Made::seeded(model.graph, at::kDouble);
    const at::Tensor expected = whole.forward(batch.inputs, true);
    expected.sum().backward();
    const std::size_t steps = model.graph.layers().size() - 1;
    for (std::size_t cut = 1; cut < steps; ++cut) {
      CAPTURE(cut);
      Network network = Made::seeded(model.graph, at::kDouble);
      Network::Values values(model.graph.layers().size());
      values.front() = batch.inputs;
      network.forward_part(0, cut, values, true);
      Network::Values after(values.size());
      Tensors sent;
      Tensors leaves;
      for (const std::size_t value : network.values_across(cut)) {
        REQUIRE(values[value].defined());
        if (values[value].requires_grad()) {
          sent.push_back(values[value]);
          leaves.push_back(values[value].detach().requires_grad_());
          after[value] = leaves.back();
        } else {
          after[value] = values[value];
        }
      }
      network.forward_part(cut, steps, after, true);
      CHECK(at::equal(after.back(), expected));
      after.back().sum().backward();
      Tensors gradients;
      for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
      if (!sent.empty()) torch::autograd::backward(sent, gradients);
      for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
        CHECK(distance(network.parameters()[i].tensor.grad(), whole.parameters()[i].tensor.grad()) <
              1e-12);
      }
    }
  }
}

TEST_CASE("balanced: losses and gradients are those of one device, however the batch is split") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const auto batch = batch_for(model.graph, at::kDouble);
    Made one(model.graph, 1, 1);
    const double loss = one.strategy->step(batch).item<double>();
    const Tensors expected = one.take_gradients();
    for (const std::size_t stages : {2, 3, 4}) {
      for (const std::int64_t micro_batches : {1, 2, 5, 13}) {
        CAPTURE(stages);
        CAPTURE(micro_batches);
        Made made(model.graph, stages, micro_batches);
        const at::Tensor found = made.strategy->step(batch);
        CHECK(found.item<double>() == doctest::Approx(loss));
        CHECK_FALSE(found.requires_grad());
        check_near(made.take_gradients(), expected, 1e-12);
      }
    }
  }
}

TEST_CASE("balanced: fifty steps lead to the weights of one device") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const auto train = [&model](std::size_t stages) {
      Made made(model.graph, stages, 4, "32");
      components::Sgd options;
      options.momentum = 0.9;
      const auto optimizer = make_optimizer("sgd", options, made.network.parameters());
      for (std::uint64_t step = 0; step < 50; ++step) {
        (void)made.strategy->step(batch_for(model.graph, at::kFloat, kBatch, step));
        optimizer->step(0.01);
        (void)made.take_gradients();
      }
      return copies(made.network.parameters());
    };
    const Tensors expected = train(1);
    for (const std::size_t stages : {2, 3, 4}) check_near(train(stages), expected, 1e-5);
  }
}

TEST_CASE(
    "balanced: batches of a step add up by their shares, a short one in fewer micro-batches") {
  const graph::Graph graph = mlp();
  MicroBatch whole = batch_for(graph, at::kDouble, 16);
  Made one(graph, 1, 1);
  (void)one.strategy->step(whole);
  Made made(graph, 3, 5);
  for (const auto& [first, count] : {std::pair{0, 13}, std::pair{13, 3}}) {
    (void)made.strategy->step({whole.inputs.narrow(0, first, count),
                               whole.targets.narrow(0, first, count), count / 16.0, first > 0});
  }
  check_near(made.take_gradients(), one.take_gradients(), 1e-12);
}

TEST_CASE(
    "balanced: dropout is the same in each run and for every cut, and goes on from its state") {
  const graph::Graph graph = mlp(0.4);
  const auto batch = batch_for(graph, at::kFloat);
  const auto first_gradients = [&](std::size_t stages) {
    Made made(graph, stages, 4, "32");
    (void)made.strategy->step(batch);
    return made.take_gradients();
  };
  const Tensors expected = first_gradients(2);
  for (const std::size_t stages : {2, 3, 4}) {
    CAPTURE(stages);
    CHECK(equal(first_gradients(stages), expected));
  }
  Made made(graph, 2, 4, "32");
  (void)made.strategy->step(batch);
  CHECK(equal(made.take_gradients(), expected));
  Tensors states;
  std::set<std::string> names;
  for (auto& [name, generator] : made.strategy->generators()) {
    names.insert(name);
    states.push_back(generator.get_state());
  }
  CHECK(names == std::set<std::string>{"dropout-0", "dropout-1"});
  CHECK_FALSE(at::equal(states[0], states[1]));
  (void)made.strategy->step(batch);
  const Tensors second = made.take_gradients();
  CHECK_FALSE(equal(second, expected));

  Made later(graph, 4, 4, "32");
  for (std::size_t i = 0; i < states.size(); ++i) {
    later.strategy->generators()[i].second.set_state(states[i]);
  }
  (void)later.strategy->step(batch);
  CHECK(equal(later.take_gradients(), second));
}

TEST_CASE("balanced: measuring the layers leaves weights, statistics and random numbers alone") {
  graph::Builder g({6});
  auto x = g.batch_norm("bn", g.linear("fc1", g.input(), {.out = 8}));
  x = g.linear("fc2", g.dropout("drop", x, 0.5), {.out = kClasses});
  const graph::Graph graph = std::move(g).finish(x);
  const Tensors fresh = copies(Made::seeded(graph, at::kFloat).state());
  const at::Tensor random = at::detail::getDefaultCPUGenerator().get_state();
  Made made(graph, 2, 2, "32");
  CHECK(made.strategy->describe().find("as measured") != std::string::npos);
  CHECK(equal(copies(made.network.state()), fresh));
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), random));
  for (const NamedTensor& parameter : made.network.parameters()) {
    CHECK_FALSE(parameter.tensor.grad().defined());
  }
}

TEST_CASE("balanced: an evaluation is that of one device, without gradients") {
  for (const Model& model : models()) {
    CAPTURE(model.name);
    const auto batch = batch_for(model.graph, at::kDouble);
    const at::Tensor expected = Made(model.graph, 1, 1).strategy->predict(batch.inputs);
    Made made(model.graph, 3, 5);
    for (const std::int64_t samples : {kBatch, std::int64_t{2}, std::int64_t{1}}) {
      const at::Tensor found = made.strategy->predict(batch.inputs.narrow(0, 0, samples));
      CHECK(distance(found, expected.narrow(0, 0, samples)) < 1e-12);
      CHECK_FALSE(found.requires_grad());
    }
  }
}

TEST_CASE("balanced: many more micro-batches than queues hold pass through an evaluation") {
  const graph::Graph graph = mlp();
  const auto batch = batch_for(graph, at::kDouble, 200);
  Made made(graph, 4, 200);
  const at::Tensor expected = Made(graph, 1, 1).strategy->predict(batch.inputs);
  CHECK(distance(made.strategy->predict(batch.inputs), expected) < 1e-12);
}

TEST_CASE(
    "balanced: stages work at the same time, the first at most so far ahead as there are stages") {
  graph::Builder g({6});
  auto x = g.batch_norm("bn", g.input());
  x = g.linear("fc2", g.linear("fc1", x, {.out = 8}), {.out = kClasses});
  const graph::Graph graph = std::move(g).finish(x);

  // The normalisation, which no cut can take from the first stage, tells of each of its passes.
  std::atomic<int> first_stage{0};
  std::atomic<std::thread::id> first_thread;
  std::atomic<std::thread::id> last_thread;
  int losses = 0;
  const Loss mean = make_loss("cross_entropy", std::any(components::CrossEntropy{}));
  const Loss waiting = [&](const at::Tensor& outputs, const at::Tensor& targets) {
    last_thread = std::this_thread::get_id();
    if (losses++ == 0) {
      // Without a second thread the second forward pass would never begin.
      const auto end = std::chrono::steady_clock::now() + 20s;
      while (first_stage < 2 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(1ms);
      }
      CHECK(first_stage == 2);
      std::this_thread::sleep_for(20ms);
      CHECK(first_stage == 2);
    }
    return mean(outputs, targets);
  };
  Made made(graph, 2, 6, "64", waiting);
  made.network.share_batch_statistics([&](const at::Tensor&) {
    first_thread = std::this_thread::get_id();
    ++first_stage;
  });
  (void)made.strategy->step(batch_for(graph, at::kDouble));
  CHECK(losses == 6);
  CHECK(first_stage == 6);
  CHECK(first_thread.load() != last_thread.load());
  CHECK(first_thread.load() != std::this_thread::get_id());
}

TEST_CASE("balanced: a stage has as many threads of arithmetic as the thread that made it") {
  const graph::Graph graph = mlp();
  int in_stage = 0;
  const Loss mean = make_loss("cross_entropy", std::any(components::CrossEntropy{}));
  const Loss looking = [&](const at::Tensor& outputs, const at::Tensor& targets) {
    in_stage = at::get_num_threads();
    return mean(outputs, targets);
  };
  Made made(graph, 2, 2);
  at::set_num_threads(3);
  const auto strategy = make_balanced({made.plan, made.experiment, looking, *made.precision,
                                       made.group, std::vector<at::Device>(2, at::kCPU)});
  strategy->setup(made.network, {});
  (void)strategy->step(batch_for(graph, at::kDouble));
  CHECK(in_stage == 3);
  CHECK(at::get_num_threads() == 3);
  at::set_num_threads(1);
}

TEST_CASE("balanced: an error of any stage comes out, and the next step works") {
  const graph::Graph graph = mlp();
  const auto batch = batch_for(graph, at::kDouble);
  int calls = 0;
  const Loss mean = make_loss("cross_entropy", std::any(components::CrossEntropy{}));
  const Loss failing = [&](const at::Tensor& outputs, const at::Tensor& targets) {
    if (++calls == 3) throw std::runtime_error("the third loss");
    return mean(outputs, targets);
  };
  Made one(graph, 1, 1);
  (void)one.strategy->step(batch);
  const Tensors expected = one.take_gradients();

  Made made(graph, 3, 5, "64", failing);
  CHECK_THROWS_WITH_AS((void)made.strategy->step(batch), "the third loss", std::runtime_error);
  (void)made.take_gradients();
  CHECK_THROWS_AS((void)made.strategy->step({at::ones({kBatch, 9}, at::kDouble), batch.targets}),
                  c10::Error);
  (void)made.take_gradients();
  CHECK_THROWS_AS((void)made.strategy->predict(at::ones({kBatch, 9}, at::kDouble)), c10::Error);
  (void)made.strategy->step(batch);
  check_near(made.take_gradients(), expected, 1e-12);
}

TEST_CASE("balanced: number formats are those of one device") {
  for (const char* format : {"bf16", "16"}) {
    CAPTURE(format);
    for (const Model& model : models()) {
      CAPTURE(model.name);
      const auto batch = batch_for(model.graph, at::kFloat);
      Made one(model.graph, 1, 1, format);
      Made made(model.graph, 3, 1, format);
      const double loss = one.strategy->step(batch).item<double>();
      CHECK(made.strategy->step(batch).item<double>() == loss);
      const Tensors expected = one.take_gradients();
      const Tensors found = made.take_gradients();
      // The loss scale is in both.
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const bool is_float = found[i].scalar_type() == at::kFloat;
        CHECK(is_float);
        const double size = expected[i].abs().max().item<double>();
        CHECK(distance(found[i], expected[i]) <= 1e-6 * size);
      }
      CHECK(at::equal(made.strategy->predict(batch.inputs), one.strategy->predict(batch.inputs)));
    }
  }
}

TEST_CASE("channel: elements keep their order, and a closed one wakes both ends") {
  Channel<int> channel(1);
  std::vector<int> found;
  std::thread reader([&] {
    for (int i = 0; i < 50; ++i) found.push_back(channel.pop());
  });
  std::vector<int> expected;
  for (int i = 0; i < 50; ++i) {
    expected.push_back(i);
    channel.push(i);
  }
  reader.join();
  CHECK(found == expected);
  channel.push(1);
  std::thread writer([&] { CHECK_THROWS_AS(channel.push(2), Channel<int>::Closed); });
  channel.close();
  writer.join();
  CHECK_THROWS_AS((void)channel.pop(), Channel<int>::Closed);
  channel.reset();
  channel.push(3);
  CHECK(channel.pop() == 3);
}

TEST_CASE("devices: tensors are grouped in their order, and an optimizer works on each group") {
  const auto on = [](c10::DeviceType device) { return at::ones({2}, at::TensorOptions(device)); };
  const Tensors tensors{on(at::kMeta), on(at::kCPU), on(at::kMeta)};
  const auto groups = by_device(tensors);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].first == at::Device(at::kMeta));
  CHECK(groups[0].second.size() == 2);
  CHECK(groups[1].second.at(0).is_same(tensors[1]));

  std::vector<NamedTensor> parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back({"p" + std::to_string(i), tensors[i].clone().requires_grad_()});
    parameters.back().tensor.mutable_grad() = tensors[i] * 0.5;
  }
  const NamedTensor alone{"p1", tensors[1].clone().requires_grad_()};
  alone.tensor.mutable_grad() = tensors[1] * 0.5;
  const components::RmsProp options;
  const auto spread = make_optimizer("rmsprop", options, parameters);
  const auto single = make_optimizer("rmsprop", options, {alone});
  spread->step(0.1);
  single->step(0.1);
  CHECK(at::equal(parameters[1].tensor, alone.tensor));
  std::set<std::string> names;
  for (const NamedTensor& state : spread->state()) names.insert(state.name);
  CHECK(names == std::set<std::string>{"square_avg.p0", "square_avg.p1", "square_avg.p2"});
  CHECK(spread->steps() == 1);
}

}  // namespace runner::engine
