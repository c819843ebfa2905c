// engine: how a step's work is spread over devices and processes.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runner/config/experiment.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/loss.h"
#include "runner/engine/lower.h"
#include "runner/engine/precision.h"
#include "runner/plan/plan.h"

namespace runner::engine {

/// One batch of the group whose gradients are added up for one optimizer step.
struct MicroBatch {
  at::Tensor inputs;
  at::Tensor targets;
  /// Weight of its mean loss. Strategies of one process add up gradients, those of several average
  /// them over the processes; over all micro-batches and processes of a step the weights, so
  /// combined, come to 1.
  double share = 1;
  bool last = true;  ///< of the group: gradients are complete after it
};

/// Owns what happens between a batch and complete gradients.
class Strategy {
 public:
  /// What a resumed run needs, beside weights, to go on bit for bit.
  struct State {
    /// Parameters whose gradients are sent together, by their position; the order of sums depends
    /// on it. Empty: nothing is sent.
    std::vector<std::vector<std::size_t>> buckets;
  };
  using NamedGenerator = std::pair<std::string, at::Generator>;

  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// Called once, before the first step, when weights are initialised or loaded and equal on all
  /// processes. `state`: of an earlier run with as many processes and devices, or empty.
  virtual void setup(Network& network, const State& state) = 0;
  /// Forward and backward pass, and the exchange that this micro-batch needs; adds `share` times
  /// the mean loss's gradient to the parameters' gradients. Returns the batch's mean loss, detached
  /// and unscaled.
  virtual at::Tensor step(const MicroBatch& batch) = 0;
  /// Makes weights and statistics on this process those that an evaluation or a checkpoint uses.
  /// Collective.
  virtual void sync() {}
  /// Forward pass without gradients, as in evaluation.
  [[nodiscard]] virtual at::Tensor predict(const at::Tensor& inputs) = 0;
  [[nodiscard]] virtual State state() const { return {}; }
  /// Sources of random numbers of its own, beside the devices' default ones.
  [[nodiscard]] virtual std::vector<NamedGenerator> generators() const { return {}; }

  /// What setup() decided that the plan doesn't say, for the run's manifest; "" if nothing.
  [[nodiscard]] virtual std::string describe() const { return {}; }

 protected:
  Strategy() = default;
};

/// What all strategies are made of.
struct StrategyOptions {
  const plan::Plan& plan;
  const config::Experiment& experiment;
  Loss loss;
  Precision& precision;
  const Group& group;
  std::vector<at::Device> devices;  ///< of this process, root first; CPU devices stand for threads
};

/// Devices that a process splits each batch among.
[[nodiscard]] std::int64_t replicas_of(const plan::Plan& plan);

/// The plan's backend. Throws std::logic_error for one without an implementation.
[[nodiscard]] std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options);

/// One process, one device.
[[nodiscard]] std::unique_ptr<Strategy> make_single(const StrategyOptions& options);
/// One process a device; gradients are averaged over the processes while they are computed.
[[nodiscard]] std::unique_ptr<Strategy> make_distributed(const StrategyOptions& options);
/// One replica of the network a device, within a process: `dp`, and with a group of several
/// processes `ddp2`.
[[nodiscard]] std::unique_ptr<Strategy> make_data_parallel(const StrategyOptions& options);
/// Consecutive parts of the network, one a device, with several micro-batches on their way through.
[[nodiscard]] std::unique_ptr<Strategy> make_balanced(const StrategyOptions& options);

}  // namespace runner::engine
