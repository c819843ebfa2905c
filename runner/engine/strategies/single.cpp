#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "runner/engine/strategy.h"

namespace runner::engine {

namespace {

class Single : public Strategy {
 public:
  Single(Loss loss, Precision& precision) : loss_(std::move(loss)), precision_(precision) {}

  void setup(Network& network, const State& /*state*/) override { network_ = &network; }

  at::Tensor step(const MicroBatch& batch) override {
    const at::Tensor outputs =
        precision_.run([&] { return network_->forward(batch.inputs, /*training=*/true); });
    const at::Tensor loss = loss_(outputs, batch.targets);
    const at::Tensor shared = batch.share == 1 ? loss : loss * batch.share;
    precision_.scale(shared).backward();
    return loss.detach();
  }

  at::Tensor predict(const at::Tensor& inputs) override {
    const at::NoGradGuard no_grad;
    return precision_.run([&] { return network_->forward(inputs, /*training=*/false); });
  }

 private:
  Loss loss_;
  Precision& precision_;
  Network* network_ = nullptr;
};

}  // namespace

std::unique_ptr<Strategy> make_single(const StrategyOptions& options) {
  return std::make_unique<Single>(options.loss, options.precision);
}

}  // namespace runner::engine
