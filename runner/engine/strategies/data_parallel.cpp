#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runner/engine/loader.h"
#include "runner/engine/seed.h"
#include "runner/engine/strategies/across.h"
#include "runner/engine/strategies/team.h"
#include "runner/engine/strategy.h"

namespace runner::engine {

namespace {

/// Brings copies up to date; tensors that share memory are already.
void copy_all(const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (to[i].tensor.is_alias_of(from[i].tensor)) continue;
    to[i].tensor.copy_(from[i].tensor, /*non_blocking=*/true);
  }
}

/// Replica 0 is the network itself, on the root device and the calling thread. The others keep
/// their gradients until a step's last micro-batch, when they are added to the network's in the
/// order of the replicas, so that sums are the same to the bit every time. Batch statistics are
/// each replica's own, and replica 0's are those that last, as in PyTorch.
class DataParallel : public Strategy {
 public:
  explicit DataParallel(const StrategyOptions& options)
      : loss_(options.loss),
        precision_(options.precision),
        group_(options.group),
        trainer_(options.experiment.trainer),
        devices_(options.devices),
        team_(options.devices.size()) {
    for (std::size_t i = 1; i < devices_.size(); ++i) {
      at::Generator generator = at::globalContext().defaultGenerator(devices_[i]).clone();
      const auto stream = group_.rank() + static_cast<std::int64_t>(i) * group_.size();
      generator.set_current_seed(stream_seed(options.experiment.general.seed, stream, 0));
      generators_.push_back(std::move(generator));
    }
  }

  void setup(Network& network, const State& state) override {
    network_ = &network;
    copies_.clear();
    copies_.reserve(generators_.size());
    for (std::size_t i = 1; i < devices_.size(); ++i) {
      copies_.push_back(network.replica(devices_[i]));
      copies_.back().set_dropout_generators([&](std::size_t) { return generators_[i - 1]; });
    }
    weights_changed_ = buffers_changed_ = false;
    if (group_.size() == 1) return;
    Buckets buckets = state.buckets;
    if (buckets.empty()) {
      std::vector<at::Tensor> parameters;
      parameters.reserve(network.parameters().size());
      for (const NamedTensor& parameter : network.parameters()) {
        parameters.push_back(parameter.tensor);
      }
      buckets = make_buckets(parameters, {bucket_bytes(trainer_)});
    }
    mean_.emplace(group_, network, trainer_, std::move(buckets));
  }

  at::Tensor step(const MicroBatch& batch) override {
    update_weights();
    const std::int64_t rows = batch.inputs.size(0);
    const std::size_t working = working_on(rows);
    std::vector<at::Tensor> losses(working);
    team_.run(working, [&](std::size_t replica) {
      const c10::DeviceGuard guard(devices_[replica]);
      const Share share = share_of_replica(rows, replica);
      const at::Tensor outputs = forward(replica, rows_of(batch.inputs, share, replica), true);
      const at::Tensor loss = loss_(outputs, rows_of(batch.targets, share, replica));
      const double part = static_cast<double>(share.count) / static_cast<double>(rows);
      // The weight and the loss scale are the gradient to begin with: the scale lies on the root
      // device, where a loss of another can't be multiplied by it.
      const at::Tensor weight =
          at::full({}, batch.share * part, loss.options().device(devices_.front()));
      loss.backward(precision_.scale(weight).to(loss.device()));
      losses[replica] = (loss.detach() * part).to(devices_.front());
    });
    buffers_changed_ = true;
    if (batch.last) complete_gradients();
    for (std::size_t i = 1; i < working; ++i) losses.front() += losses[i];
    return losses.front();
  }

  void sync() override {
    share_statistics(group_, *network_);
    buffers_changed_ = true;
  }

  at::Tensor predict(const at::Tensor& inputs) override {
    const at::NoGradGuard no_grad;
    update_weights();
    update_buffers();
    const std::int64_t rows = inputs.size(0);
    std::vector<at::Tensor> outputs(working_on(rows));
    team_.run(outputs.size(), [&](std::size_t replica) {
      const c10::DeviceGuard guard(devices_[replica]);
      const Share share = share_of_replica(rows, replica);
      outputs[replica] =
          forward(replica, rows_of(inputs, share, replica), false).to(devices_.front());
    });
    return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
  }

  State state() const override { return mean_ ? State{mean_->buckets()} : State{}; }

  std::vector<NamedGenerator> generators() const override {
    std::vector<NamedGenerator> all;
    all.reserve(generators_.size());
    for (const at::Generator& generator : generators_) {
      all.emplace_back("replica-" + std::to_string(all.size() + 1), generator);
    }
    return all;
  }

 private:
  [[nodiscard]] std::size_t working_on(std::int64_t rows) const {
    return std::min(devices_.size(), static_cast<std::size_t>(std::max<std::int64_t>(rows, 1)));
  }
  [[nodiscard]] Share share_of_replica(std::int64_t rows, std::size_t replica) const {
    return share_of(rows, static_cast<std::int64_t>(replica),
                    static_cast<std::int64_t>(devices_.size()));
  }
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& batch, const Share& share,
                                   std::size_t replica) const {
    return batch.narrow(0, share.first, share.count).to(devices_[replica], /*non_blocking=*/true);
  }
  [[nodiscard]] at::Tensor forward(std::size_t replica, const at::Tensor& inputs, bool training) {
    Network& network = replica == 0 ? *network_ : copies_[replica - 1];
    return precision_.run([&] { return network.forward(inputs, training); });
  }

  void update_weights() {
    if (!std::exchange(weights_changed_, false)) return;
    for (const Network& copy : copies_) copy_all(network_->parameters(), copy.parameters());
  }
  void update_buffers() {
    if (!std::exchange(buffers_changed_, false)) return;
    for (const Network& copy : copies_) copy_all(network_->buffers(), copy.buffers());
  }

  void complete_gradients() {
    const at::NoGradGuard no_grad;
    if (!mean_) {
      for (std::size_t i = 0; i < network_->parameters().size(); ++i) add_up(i);
    } else {
      for (std::size_t bucket = 0; bucket < mean_->buckets().size(); ++bucket) {
        for (const std::size_t parameter : mean_->buckets()[bucket]) add_up(parameter);
        mean_->start(bucket);
      }
      mean_->finish();
    }
    weights_changed_ = true;  // by the optimizer, which comes next
  }

  /// Moves the replicas' gradients of a parameter to the network's.
  void add_up(std::size_t parameter) {
    at::Tensor& sum = network_->parameters()[parameter].tensor.mutable_grad();
    for (const Network& copy : copies_) {
      const at::Tensor part =
          std::exchange(copy.parameters()[parameter].tensor.mutable_grad(), at::Tensor());
      // A replica that had no rows in the whole step has none.
      if (part.defined()) sum.add_(part.to(sum.device(), /*non_blocking=*/true));
    }
  }

  Loss loss_;
  Precision& precision_;
  const Group& group_;
  const config::Trainer& trainer_;
  const std::vector<at::Device> devices_;
  std::vector<at::Generator> generators_;  ///< of the replicas after the first
  Network* network_ = nullptr;
  std::vector<Network> copies_;                             ///< the replicas after the first
  bool weights_changed_ = false, buffers_changed_ = false;  ///< since they were copied
  std::optional<GradientMean> mean_;                        ///< over several processes
  Team team_;  ///< last, so that its threads end before what they work on
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(const StrategyOptions& options) {
  return std::make_unique<DataParallel>(options);
}

}  // namespace runner::engine
