#include "runner/plan/make.h"

#include <limits>

namespace runner::plan {

namespace {

/// The product, or the largest number where it doesn't fit.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

}  // namespace

Plan make(const config::Experiment& experiment, const check::Verdict& verdict, Mode mode) {
  Plan plan;
  plan.mode = mode;
  plan.name = experiment.general.name;
  plan.experiment = config::resolved_values(experiment);

  plan.backend = verdict.backend;
  plan.precision = verdict.precision;
  plan.devices.type = verdict.device_type;
  plan.devices.ids = verdict.gpu_ids;
  plan.num_nodes = verdict.num_nodes;
  plan.processes_per_node = verdict.processes_per_node;
  plan.world_size = verdict.num_nodes * verdict.processes_per_node;
  plan.devices_per_process = verdict.devices_per_process;
  plan.timeout_seconds = experiment.trainer.timeout;
  plan.start_timeout_seconds = experiment.trainer.start_timeout;
  plan.max_restarts = experiment.trainer.max_restarts;

  plan.batch_size = experiment.data.batch_size;
  plan.effective_batch =
      product(product(plan.batch_size, verdict.replicas), experiment.trainer.accumulate);
  plan.train_samples = verdict.data.train_size;
  plan.validation_samples = verdict.data.validation_size;
  plan.test_samples = verdict.data.test_size;
  plan.batches_per_epoch = verdict.batches_per_epoch;
  plan.validation_batches = verdict.validation_batches;
  plan.steps_per_epoch = verdict.steps_per_epoch;
  plan.max_epochs = verdict.max_epochs;
  if (verdict.total_steps > 0) plan.max_steps = verdict.total_steps;
  plan.max_seconds = verdict.max_seconds;

  plan.loss = verdict.loss;
  plan.metrics = verdict.metrics;
  plan.monitor = verdict.monitor;
  plan.monitor_max = verdict.monitor_max;

  if (verdict.graph) {
    plan.parameters = verdict.graph->parameter_count();
    plan.flops_per_sample = verdict.graph->flops();
  }
  plan.memory = verdict.memory;
  plan.stages = verdict.stages;
  plan.balance = verdict.balance;
  plan.device_memory = verdict.device_memory;
  plan.checkpoint_bytes = verdict.checkpoint_bytes;
  plan.inferred = verdict.inferred;
  return plan;
}

}  // namespace runner::plan
