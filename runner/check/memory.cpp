#include "runner/check/memory.h"

#include <algorithm>

#include "runner/check/passes.h"
#include "runner/check/steps.h"
#include "runner/check/text.h"

namespace runner::check {

namespace {

constexpr std::int64_t kHalfBytes = 2;

bool is_autocast(std::string_view precision) { return precision == "16" || precision == "bf16"; }
/// Of a weight; autocast keeps weights in 32 bits.
std::int64_t weight_bytes(std::string_view precision) { return precision == "64" ? 8 : 4; }
std::int64_t activation_bytes(std::string_view precision) {
  return is_autocast(precision) ? kHalfBytes : weight_bytes(precision);
}

std::int64_t activations_of_sample(const graph::Graph& graph, const MemoryTask& task) {
  return product(graph.activation_count(), activation_bytes(task.precision));
}

}  // namespace

Memory estimate_memory(const graph::Graph& graph, const MemoryTask& task) {
  const std::int64_t weight = weight_bytes(task.precision);
  const std::int64_t parameters = graph.parameter_count();
  const auto part = [&task](std::int64_t bytes) { return divided_up(bytes, task.parts); };
  Memory memory;
  memory.weights = part(product(parameters + graph.buffer_count(), weight) +
                        (is_autocast(task.precision) ? product(parameters, kHalfBytes) : 0));
  memory.gradients = part(product(parameters, weight));
  memory.optimizer = part(product(product(parameters, weight), task.optimizer_tensors));
  memory.activations = part(product(activations_of_sample(graph, task), task.batch_size));
  return memory;
}

std::int64_t checkpoint_size(const graph::Graph& graph, const MemoryTask& task) {
  const std::int64_t elements =
      graph.parameter_count() * (1 + task.optimizer_tensors) + graph.buffer_count();
  return product(elements, weight_bytes(task.precision));
}

std::int64_t largest_batch(const graph::Graph& graph, MemoryTask task, std::int64_t bytes) {
  task.batch_size = 0;
  const std::int64_t left = bytes - estimate_memory(graph, task).total();
  const std::int64_t sample = divided_up(activations_of_sample(graph, task), task.parts);
  return left <= 0 || sample == 0 ? 0 : left / sample;
}

namespace {

MemoryTask memory_task(const Judgement& j) {
  const config::Experiment& e = j.experiment;
  MemoryTask task{.precision = j.verdict.precision,
                  .optimizer_tensors = 0,
                  .batch_size = e.data.batch_size,
                  .parts = 1};
  // No batch is larger than the dataset, whatever the file says.
  const std::int64_t samples = j.verdict.data.train_size;
  if (samples > 0) task.batch_size = std::min(task.batch_size, samples);
  if (e.optimizer.entry != nullptr) {
    const auto& optimizer = static_cast<const components::Optimizer&>(*e.optimizer.entry);
    task.optimizer_tensors = optimizer.state_tensors(e.optimizer.options);
  }
  if (j.verdict.backend == "balanced" && !j.facts.gpus_unknown) task.parts = j.facts.devices();
  return task;
}

/// The memory that the run's batches lie in: a GPU's, or the machine's.
void judge_memory(Judgement& j, const MemoryTask& task) {
  const bool on_gpu = j.facts.on_gpu();
  const auto& room = on_gpu ? j.machine.gpu_memory_bytes : j.machine.host_memory_bytes;
  if (!room || j.verdict.memory.total() <= *room) return;
  const Memory& memory = j.verdict.memory;
  const std::int64_t batch = largest_batch(*j.verdict.graph, task, *room);
  j.report(on_gpu ? diag::Code::gpu_memory : diag::Code::host_memory,
           "the run needs about " + bytes_text(memory.total()) + (on_gpu ? " on a GPU, " : ", ") +
               bytes_text(memory.activations) + " of it for a batch of " +
               std::to_string(task.batch_size) + ", and " +
               (on_gpu ? "the smallest GPU" : "this machine") + " has " + bytes_text(*room),
           "dataset.batch_size",
           batch > 0 ? "the largest batch_size that fits is about " + std::to_string(batch) +
                           "; accumulate makes up for a smaller one"
                     : "weights, gradients and optimizer state alone don't fit: use a smaller "
                       "model, or an optimizer with less state",
           {"model.name", "optimizer.name"});
}

/// Checkpoints that lie on the disk at once: those ranked best, the last two (the older goes when
/// the newer is whole), and the one being written.
std::int64_t checkpoints_at_once(const Judgement& j) {
  const config::Checkpoint& c = j.experiment.checkpoint;
  std::int64_t ranked = c.keep;
  if (c.keep < 0) ranked = j.facts.validations;
  if (ranked == 0 && !c.last) return 0;
  return ranked + (c.last ? 2 : 0) + 1;
}

void judge_disk(Judgement& j) {
  if (!j.machine.free_disk_bytes) return;
  const std::int64_t count = checkpoints_at_once(j);
  const std::int64_t needed = product(count, j.verdict.checkpoint_bytes);
  if (needed <= *j.machine.free_disk_bytes) return;
  j.report(diag::Code::disk_space,
           counted(count, "checkpoint") + " of " + bytes_text(j.verdict.checkpoint_bytes) +
               " need " + bytes_text(needed) + ", and " + bytes_text(*j.machine.free_disk_bytes) +
               " are free",
           "checkpoint.keep", "keep fewer checkpoints, make room, or write root = a larger disk",
           {"root"});
}

}  // namespace

void judge_costs(Judgement& j) {
  if (!j.verdict.graph) return;
  const MemoryTask task = memory_task(j);
  j.verdict.memory = estimate_memory(*j.verdict.graph, task);
  j.verdict.checkpoint_bytes = checkpoint_size(*j.verdict.graph, task);
  judge_memory(j, task);
  judge_disk(j);
}

}  // namespace runner::check
