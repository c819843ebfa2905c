#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

#include "runner/engine/strategies/across.h"
#include "runner/engine/strategy.h"

namespace runner::engine {

namespace {

/// The first bucket is smaller, so that the first exchange begins early (PyTorch's own number).
constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

/// Sends gradients as bfloat16. They are divided by the number of processes before they are summed,
/// as PyTorch's hook for fp16 does, so that the sum stays in range.
class Bf16Hook : public c10d::CommHookInterface {
 public:
  explicit Bf16Hook(c10::intrusive_ptr<c10d::ProcessGroup> processes)
      : processes_(std::move(processes)) {}

  Future runHook(c10d::GradBucket& bucket) override {
    const at::Tensor full = bucket.getBuffer();
    std::vector<at::Tensor> narrow{full.to(at::kBFloat16).div_(processes_->getSize())};
    return processes_->allreduce(narrow)->getFuture()->then(
        [full, narrow](c10::ivalue::Future& done) -> c10::IValue {
          (void)done.value();  // throws what the exchange threw
          at::Tensor result = full;
          result.copy_(narrow.front());
          return result;
        },
        c10::TensorType::get());
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> processes_;
};

class Distributed : public Strategy {
 public:
  explicit Distributed(const StrategyOptions& options)
      : loss_(options.loss),
        precision_(options.precision),
        group_(options.group),
        trainer_(options.experiment.trainer) {}

  void setup(Network& network, const State& state) override {
    network_ = &network;
    if (trainer_.sync_batchnorm) {
      network.share_batch_statistics([this](at::Tensor t) { group_.sum(std::move(t)); });
    }
    std::vector<at::Tensor> parameters;
    std::unordered_map<std::size_t, std::string> names;
    for (const NamedTensor& parameter : network.parameters()) {
      names.emplace(parameters.size(), parameter.name);
      parameters.push_back(parameter.tensor);
    }
    Buckets buckets = state.buckets;
    if (buckets.empty()) {
      buckets = make_buckets(parameters, {kFirstBucketBytes, bucket_bytes(trainer_)});
    }
    const std::vector<bool> dense(parameters.size(), false);
    reducer_ = std::make_shared<c10d::Reducer>(
        std::move(parameters), std::move(buckets), group_.processes(), dense,
        static_cast<std::int64_t>(bucket_bytes(trainer_)), trainer_.find_unused_parameters,
        trainer_.gradient_as_bucket_view, std::move(names),
        static_cast<std::int64_t>(kFirstBucketBytes), /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<std::int64_t>{});
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    if (trainer_.gradient_compression == "fp16") {
      reducer_->register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
    } else if (trainer_.gradient_compression == "bf16") {
      reducer_->register_comm_hook(std::make_unique<Bf16Hook>(group_.processes()));
    }
  }

  at::Tensor step(const MicroBatch& batch) override {
    network_->set_counts(batch.share != 0);
    // A reducer that isn't prepared lets gradients add up without sending them.
    if (batch.last) reducer_->prepare_for_forward();
    const at::Tensor outputs =
        precision_.run([&] { return network_->forward(batch.inputs, /*training=*/true); });
    const at::Tensor loss = loss_(outputs, batch.targets);
    const at::Tensor shared = batch.share == 1 ? loss : loss * batch.share;
    if (batch.last) {
      const bool searches = trainer_.find_unused_parameters;
      reducer_->prepare_for_backward(searches ? std::vector<at::Tensor>{outputs}
                                              : std::vector<at::Tensor>{});
    }
    precision_.scale(shared).backward();
    // At once, not before the next step: a checkpoint taken now must hold the buckets that the next
    // step uses.
    if (batch.last && reducer_->should_rebuild_buckets()) reducer_->rebuild_buckets();
    return loss.detach();
  }

  /// Nothing reads running statistics while training, so they are sent only when they are used.
  void sync() override {
    if (!trainer_.sync_batchnorm) share_statistics(group_, *network_);
  }

  at::Tensor predict(const at::Tensor& inputs) override {
    const at::NoGradGuard no_grad;
    return precision_.run([&] { return network_->forward(inputs, /*training=*/false); });
  }

  State state() const override { return {logger_->get_per_bucket_variable_indices()}; }

 private:
  Loss loss_;
  Precision& precision_;
  const Group& group_;
  const config::Trainer& trainer_;
  Network* network_ = nullptr;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

}  // namespace

std::unique_ptr<Strategy> make_distributed(const StrategyOptions& options) {
  return std::make_unique<Distributed>(options);
}

}  // namespace runner::engine
