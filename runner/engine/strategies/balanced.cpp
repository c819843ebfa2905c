// Backend balanced: a pipeline of consecutive parts of the network.
//
// A batch is split into micro-batches that follow each other through the stages, each worked on by
// a thread of its own. A stage's graph ends where the next one's begins: values that cross a cut
// are detached, and their gradients are sent back by hand. Forward and backward passes alternate as
// early as they can (1F1B), so that a stage keeps the activations of few micro-batches; in every
// stage both come in the order of the micro-batches, which makes the sums of gradients, and the
// random numbers of a layer, the same in every run and for every cut.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "runner/check/memory.h"
#include "runner/engine/loader.h"
#include "runner/engine/seed.h"
#include "runner/engine/strategies/channel.h"
#include "runner/engine/strategies/team.h"
#include "runner/engine/strategy.h"
#include "runner/graph/partition.h"
#include "runner/report/log.h"
#include "runner/report/terminal.h"

namespace runner::engine {

namespace {

using Tensors = std::vector<at::Tensor>;
using Clock = std::chrono::steady_clock;

/// Passes over a layer that are timed, after one that isn't.
constexpr int kTimedPasses = 3;

void wait_for(const at::Device& device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Seconds of a layer's forward and backward pass, the shortest of a few; `values` holds its inputs
/// and takes its output.
double time_step(const Network& network, std::size_t step, Network::Values& values,
                 const at::Device& device, const Precision& precision) {
  Network layer = network.copy_step(step, device);
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass <= kTimedPasses; ++pass) {
    Network::Values own(values.size());
    for (const std::size_t input : network.graph().layers()[step + 1].inputs) {
      own[input] = values[input].detach().set_requires_grad(input != 0);
    }
    wait_for(device);
    const auto start = Clock::now();
    precision.run_part([&] { layer.forward_part(0, 1, own, /*training=*/true); });
    const at::Tensor& output = own[step + 1];
    if (output.requires_grad()) torch::autograd::backward({output}, {at::ones_like(output)});
    wait_for(device);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    // The first pass allocates and chooses kernels.
    if (pass > 0) best = std::min(best, seconds);
    values[step + 1] = output.detach();
  }
  return best;
}

/// Seconds of each layer on copies of them, so that weights, statistics and random numbers stay as
/// they are.
std::vector<double> time_steps(const Network& network, at::Tensor inputs, const at::Device& device,
                               const Precision& precision) {
  const auto& layers = network.graph().layers();
  std::vector<std::size_t> last_reader(layers.size(), layers.size());
  for (std::size_t i = 1; i < layers.size(); ++i) {
    for (const std::size_t input : layers[i].inputs) last_reader[input] = i;
  }
  Network::Values values(layers.size());
  values.front() = std::move(inputs);
  std::vector<double> seconds;
  seconds.reserve(layers.size() - 1);
  for (std::size_t step = 0; step + 1 < layers.size(); ++step) {
    seconds.push_back(time_step(network, step, values, device, precision));
    for (const std::size_t input : layers[step + 1].inputs) {
      if (last_reader[input] == step + 1) values[input] = at::Tensor();
    }
  }
  return seconds;
}

class Balanced : public Strategy {
 public:
  explicit Balanced(const StrategyOptions& options)
      : plan_(options.plan),
        experiment_(options.experiment),
        loss_(options.loss),
        precision_(options.precision),
        devices_(options.devices),
        micro_batches_(options.experiment.trainer.micro_batches.value_or(
            2 * static_cast<std::int64_t>(options.devices.size()))),
        team_(devices_.size() + 1) {
    for (std::size_t i = 1; i < devices_.size(); ++i) {
      // No stage is further ahead of the next than the first one of the last, so only forward
      // passes without backward ones ever wait for room.
      forward_.emplace_back(devices_.size());
      backward_.emplace_back(devices_.size());
    }
    share_threads();
  }

  void setup(Network& network, const State& /*state*/) override {
    network_ = &network;
    cut();
    for (std::size_t stage = 0; stage < size(); ++stage) {
      network.place(partition_.begin(stage), partition_.ends[stage], devices_[stage]);
      across_.push_back(network.values_across(partition_.begin(stage)));
    }
    make_generators();
    report::log::info("backend balanced: " + describe());
  }

  at::Tensor step(const MicroBatch& batch) override {
    const std::vector<Share> shares = shares_of(batch.inputs.size(0));
    const auto samples = static_cast<double>(batch.inputs.size(0));
    Tensors losses(shares.size());
    run([&](std::size_t stage) {
      Worker worker(*this, stage, batch.inputs, shares);
      const bool is_last = stage + 1 == size();
      const auto forward = [&](std::size_t i) {
        if (!is_last) return worker.forward();
        const at::Tensor targets =
            batch.targets.narrow(0, shares[i].first, shares[i].count).to(devices_[stage]);
        const double weight = batch.share * static_cast<double>(shares[i].count) / samples;
        losses[i] = worker.forward(targets, weight);
      };
      const auto ahead = static_cast<std::size_t>(
          graph::in_flight(static_cast<std::int64_t>(stage),
                           {.stages = static_cast<std::int64_t>(size()),
                            .micro_batches = static_cast<std::int64_t>(shares.size())}));
      for (std::size_t i = 0; i < shares.size(); ++i) {
        forward(i);
        if (i + 1 >= ahead) worker.backward();
      }
      for (std::size_t i = 1; i < ahead; ++i) worker.backward();
    });
    at::Tensor mean;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const at::Tensor part = losses[i] * (static_cast<double>(shares[i].count) / samples);
      mean = mean.defined() ? mean + part : part;
    }
    return mean.to(devices_.front());
  }

  at::Tensor predict(const at::Tensor& inputs) override {
    const std::vector<Share> shares = shares_of(inputs.size(0));
    Tensors outputs(shares.size());
    run([&](std::size_t stage) {
      const at::NoGradGuard no_grad;
      Worker worker(*this, stage, inputs, shares);
      for (at::Tensor& output : outputs) {
        const at::Tensor result = worker.predict();
        if (stage + 1 == size()) output = result.to(devices_.front());
      }
    });
    return at::cat(outputs);
  }

  [[nodiscard]] std::vector<NamedGenerator> generators() const override {
    std::vector<NamedGenerator> all;
    all.reserve(generators_.size());
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      all.emplace_back("dropout-" + std::to_string(i), generators_[i]);
    }
    return all;
  }

  [[nodiscard]] std::string describe() const override {
    std::string text = std::to_string(size()) + " stages (";
    const auto& layers = network_->graph().layers();
    for (std::size_t stage = 0; stage < size(); ++stage) {
      const std::string& first = layers[partition_.begin(stage) + 1].name;
      const std::string& last = layers[partition_.ends[stage]].name;
      text += (stage == 0 ? "" : ", ") + first + (first == last ? "" : " to " + last);
    }
    return text + "), balance " + report::format_metric(partition_.balance) +
           (is_measured_ ? " as measured, " : " by FLOPs, ") + std::to_string(micro_batches_) +
           (micro_batches_ == 1 ? " micro-batch" : " micro-batches");
  }

 private:
  /// What a stage makes of a micro-batch, kept until its gradients come.
  struct Pass {
    Tensors received;  ///< leaves
    Tensors sent;      ///< for the last stage, what to differentiate
  };

  /// One stage's work on one batch, on its thread.
  class Worker {
   public:
    Worker(Balanced& owner, std::size_t stage, const at::Tensor& inputs,
           const std::vector<Share>& shares)
        : o_(owner),
          stage_(stage),
          device_(owner.devices_[stage]),
          guard_(device_),
          inputs_(inputs),
          shares_(shares) {}

    /// Forward pass of the next micro-batch, to the next stage.
    void forward() {
      Pass pass = receive();
      o_.precision_.run_part([&] { run_steps(/*training=*/true); });
      send(pass);
      passes_.push_back(std::move(pass));
    }

    /// Forward pass of the next micro-batch in the last stage, and the mean loss. `weight` is the
    /// micro-batch's part in what is differentiated.
    at::Tensor forward(const at::Tensor& targets, double weight) {
      Pass pass = receive();
      const at::Tensor loss = o_.loss_(outputs(/*training=*/true), targets);
      pass.sent = {o_.precision_.scale(weight == 1 ? loss : loss * weight)};
      passes_.push_back(std::move(pass));
      return loss.detach();
    }

    /// Backward pass of the oldest micro-batch that hasn't had one.
    void backward() {
      Pass pass = std::move(passes_.front());
      passes_.pop_front();
      if (is_last()) {
        torch::autograd::backward(pass.sent);
      } else {
        backward(pass.sent, o_.backward_[stage_].pop());
      }
      if (stage_ == 0) return;
      Tensors gradients;
      gradients.reserve(pass.received.size());
      for (const at::Tensor& leaf : pass.received) gradients.push_back(leaf.grad());
      o_.backward_[stage_ - 1].push(std::move(gradients));
    }

    /// Forward pass of the next micro-batch without gradients; the last stage's outputs.
    at::Tensor predict() {
      Pass pass = receive();
      if (is_last()) return outputs(/*training=*/false);
      o_.precision_.run_part([&] { run_steps(/*training=*/false); });
      send(pass);
      return {};
    }

   private:
    [[nodiscard]] bool is_last() const { return stage_ + 1 == o_.size(); }

    /// Fills in what this stage reads of a micro-batch.
    Pass receive() {
      values_.assign(o_.network_->graph().layers().size(), at::Tensor());
      if (stage_ == 0) {
        const Share& share = shares_[next_++];
        values_.front() = inputs_.narrow(0, share.first, share.count).to(device_);
        return {};
      }
      Pass pass;
      const Tensors came = o_.forward_[stage_ - 1].pop();
      for (std::size_t i = 0; i < came.size(); ++i) {
        pass.received.push_back(came[i].detach().to(device_));
        pass.received.back().set_requires_grad(came[i].requires_grad());
        values_[o_.across_[stage_][i]] = pass.received.back();
      }
      return pass;
    }

    void run_steps(bool training) {
      o_.network_->forward_part(o_.partition_.begin(stage_), o_.partition_.ends[stage_], values_,
                                training);
    }

    at::Tensor outputs(bool training) {
      return o_.precision_.run([&] {
        run_steps(training);
        return std::move(values_.back());
      });
    }

    void send(Pass& pass) {
      for (const std::size_t value : o_.across_[stage_ + 1]) pass.sent.push_back(values_[value]);
      values_.clear();
      o_.forward_[stage_].push(pass.sent);
    }

    /// Of what was sent, as far as it has a gradient.
    void backward(const Tensors& sent, const Tensors& gradients) {
      Tensors roots;
      Tensors incoming;
      for (std::size_t i = 0; i < sent.size(); ++i) {
        if (!gradients[i].defined()) continue;
        roots.push_back(sent[i]);
        incoming.push_back(gradients[i].to(device_));
      }
      if (!roots.empty()) torch::autograd::backward(roots, incoming);
    }

    Balanced& o_;
    const std::size_t stage_;
    const at::Device device_;
    const c10::DeviceGuard guard_;
    const at::Tensor& inputs_;
    const std::vector<Share>& shares_;
    std::size_t next_ = 0;  ///< micro-batch of the first stage
    Network::Values values_;
    std::deque<Pass> passes_;
  };

  [[nodiscard]] std::size_t size() const { return devices_.size(); }

  /// Micro-batches of a batch of so many samples; one of few samples makes fewer.
  [[nodiscard]] std::vector<Share> shares_of(std::int64_t samples) const {
    const std::int64_t count = std::min(micro_batches_, samples);
    std::vector<Share> shares;
    shares.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) shares.push_back(share_of(samples, i, count));
    return shares;
  }

  /// Calls work(stage) on the thread of each stage. A stage that fails wakes those that wait for
  /// it, and its exception is thrown, not theirs.
  void run(const std::function<void(std::size_t)>& work) {
    std::mutex mutex;
    std::exception_ptr first;
    const auto fail = [&] {
      const std::scoped_lock lock(mutex);
      if (!first) first = std::current_exception();
      for (auto& channel : forward_) channel.close();
      for (auto& channel : backward_) channel.close();
    };
    // The calling thread, which is the team's first, takes no stage: its number of threads is also
    // the optimizer's.
    team_.run(size() + 1, [&](std::size_t member) {
      if (member == 0) return;
      try {
        work(member - 1);
      } catch (...) {
        fail();
      }
    });
    if (!first) return;
    for (auto& channel : forward_) channel.reset();
    for (auto& channel : backward_) channel.reset();
    std::rethrow_exception(first);
  }

  /// Gives each stage's thread the number of threads of arithmetic that this one has.
  void share_threads() {
    run([own = at::get_num_threads()](std::size_t) {
      // A thread's first look at its number replaces what was set before.
      (void)at::get_num_threads();
      at::set_num_threads(own);
    });
  }

  /// Cuts by the layers' FLOPs, then by their measured times.
  void cut() {
    const auto batch_size = std::max<std::int64_t>(plan_.batch_size, micro_batches_);
    auto costs = check::layer_costs(network_->graph(),
                                    check::memory_task(experiment_, plan_.precision, batch_size),
                                    micro_batches_);
    graph::PartitionTask task{.stages = static_cast<std::int64_t>(size()),
                              .micro_batches = micro_batches_,
                              .memory_limit = plan_.device_memory};
    partition_ = fitting(costs, task);
    // An evaluation alone is over before a better cut has paid for being looked for.
    if (plan_.mode == plan::Mode::test) return;
    std::vector<double> seconds;
    run([&](std::size_t stage) {
      if (stage == 0) seconds = measure();
    });
    for (std::size_t i = 0; i < costs.size(); ++i) costs[i].time = seconds[i];
    partition_ = fitting(costs, task);
    is_measured_ = true;
  }

  /// The best cut within the memory limit or, as the estimate has been wrong before, without it.
  static graph::Partition fitting(const std::vector<graph::LayerCost>& costs,
                                  graph::PartitionTask task) {
    auto found = graph::partition(costs, task);
    if (!found) {
      task.memory_limit.reset();
      found = graph::partition(costs, task);
    }
    return *found;
  }

  /// Seconds of each layer for a micro-batch of a full batch, on the root device.
  [[nodiscard]] std::vector<double> measure() const {
    const c10::DeviceGuard guard(devices_.front());
    std::vector<std::int64_t> shape = network_->graph().input();
    const std::int64_t batch = std::max<std::int64_t>(plan_.batch_size, micro_batches_);
    shape.insert(shape.begin(), share_of(batch, 0, micro_batches_).count);
    const auto options = at::TensorOptions(devices_.front()).dtype(precision_.dtype());
    return time_steps(*network_, at::ones(shape, options), devices_.front(), precision_);
  }

  void make_generators() {
    const auto& layers = network_->graph().layers();
    for (std::size_t stage = 0; stage < size(); ++stage) {
      for (std::size_t i = partition_.begin(stage); i < partition_.ends[stage]; ++i) {
        if (!std::holds_alternative<graph::Dropout>(layers[i + 1].op)) continue;
        at::Generator own = at::globalContext().defaultGenerator(devices_[stage]).clone();
        own.set_current_seed(stream_seed(experiment_.general.seed,
                                         static_cast<std::int64_t>(generators_.size()) + 1, 0));
        generators_.push_back(std::move(own));
      }
    }
    network_->set_dropout_generators([this](std::size_t number) { return generators_[number]; });
  }

  const plan::Plan& plan_;
  const config::Experiment& experiment_;
  Loss loss_;
  Precision& precision_;
  const std::vector<at::Device> devices_;
  const std::int64_t micro_batches_;
  Network* network_ = nullptr;
  graph::Partition partition_;
  bool is_measured_ = false;
  std::vector<std::vector<std::size_t>>
      across_;                             ///< values that each stage gets from the one before
  std::vector<at::Generator> generators_;  ///< of the dropout layers, in their order
  std::deque<Channel<Tensors>> forward_;   ///< from each stage to the next
  std::deque<Channel<Tensors>> backward_;  ///< gradients, from each stage's next to it
  Team team_;  ///< last, so that the threads end before what they work with
};

}  // namespace

std::unique_ptr<Strategy> make_balanced(const StrategyOptions& options) {
  return std::make_unique<Balanced>(options);
}

}  // namespace runner::engine
