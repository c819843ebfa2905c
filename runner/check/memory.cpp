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

/// Memory but for activations.
Memory state_memory(std::int64_t parameters, std::int64_t buffers, const MemoryTask& task) {
  const std::int64_t weight = weight_bytes(task.precision);
  Memory memory;
  memory.weights = product(parameters + buffers, weight) +
                   (is_autocast(task.precision) ? product(parameters, kHalfBytes) : 0);
  memory.gradients = product(parameters, weight);
  memory.optimizer = product(product(parameters, weight), task.optimizer_tensors);
  return memory;
}

struct Elements {
  std::int64_t parameters = 0, buffers = 0;
};
Elements elements_of(const graph::Layer& layer) {
  Elements elements;
  for (const graph::Parameter& parameter : layer.parameters) {
    (parameter.trainable ? elements.parameters : elements.buffers) +=
        graph::element_count(parameter.shape);
  }
  return elements;
}

/// Bytes that one micro-batch of each layer after the input keeps. Rounded down: the estimate
/// refuses only what is certain not to fit.
std::vector<std::int64_t> micro_batch_bytes(const graph::Graph& graph, const MemoryTask& task,
                                            std::int64_t micro_batches) {
  std::vector<std::int64_t> bytes = graph.activation_counts();
  const std::int64_t samples = std::max<std::int64_t>(task.batch_size / micro_batches, 1);
  for (std::int64_t& each : bytes) {
    each = product(product(each, activation_bytes(task.precision)), samples);
  }
  if (bytes.size() > 1) bytes[1] += bytes[0];
  bytes.erase(bytes.begin());
  return bytes;
}

}  // namespace

MemoryTask memory_task(const config::Experiment& experiment, std::string_view precision,
                       std::int64_t batch_size) {
  MemoryTask task{.precision = precision, .optimizer_tensors = 0, .batch_size = batch_size};
  if (experiment.optimizer.entry != nullptr) {
    const auto& optimizer = static_cast<const components::Optimizer&>(*experiment.optimizer.entry);
    task.optimizer_tensors = optimizer.state_tensors(experiment.optimizer.options);
  }
  return task;
}

Memory estimate_memory(const graph::Graph& graph, const MemoryTask& task) {
  Memory memory = state_memory(graph.parameter_count(), graph.buffer_count(), task);
  memory.activations = product(activations_of_sample(graph, task), task.batch_size);
  return memory;
}

std::vector<graph::LayerCost> layer_costs(const graph::Graph& graph, const MemoryTask& task,
                                          std::int64_t micro_batches) {
  const auto activations = micro_batch_bytes(graph, task, micro_batches);
  std::vector<graph::LayerCost> costs;
  costs.reserve(activations.size());
  for (const std::int64_t bytes : activations) {
    const graph::Layer& layer = graph.layers()[costs.size() + 1];
    const auto [parameters, buffers] = elements_of(layer);
    costs.push_back({.time = static_cast<double>(layer.flops),
                     .state_bytes = state_memory(parameters, buffers, task).total(),
                     .activation_bytes = bytes});
  }
  return costs;
}

std::optional<Pipeline> cut(const graph::Graph& graph, const MemoryTask& task,
                            const graph::PartitionTask& partition) {
  const auto costs = layer_costs(graph, task, partition.micro_batches);
  const auto found = graph::partition(costs, partition);
  if (!found) return std::nullopt;
  Pipeline pipeline{.stages = {}, .balance = found->balance};
  pipeline.stages.reserve(found->ends.size());
  for (std::size_t s = 0; s < found->ends.size(); ++s) {
    const std::size_t begin = found->begin(s);
    const std::size_t end = found->ends[s];
    PipelineStage stage{.first_layer = graph.layers()[begin + 1].name,
                        .last_layer = graph.layers()[end].name,
                        .flops = 0,
                        .parameters = 0,
                        .memory = {}};
    Elements elements;
    std::int64_t activations = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const graph::Layer& layer = graph.layers()[i + 1];
      stage.flops += layer.flops;
      const auto [parameters, buffers] = elements_of(layer);
      elements.parameters += parameters;
      elements.buffers += buffers;
      activations += costs[i].activation_bytes;
    }
    stage.parameters = elements.parameters;
    stage.memory = state_memory(elements.parameters, elements.buffers, task);
    stage.memory.activations =
        product(activations, graph::in_flight(static_cast<std::int64_t>(s), partition));
    pipeline.stages.push_back(std::move(stage));
  }
  return pipeline;
}

std::int64_t checkpoint_size(const graph::Graph& graph, const MemoryTask& task) {
  const std::int64_t elements =
      graph.parameter_count() * (1 + task.optimizer_tensors) + graph.buffer_count();
  return product(elements, weight_bytes(task.precision));
}

std::int64_t largest_batch(const graph::Graph& graph, MemoryTask task, std::int64_t bytes) {
  task.batch_size = 0;
  const std::int64_t left = bytes - estimate_memory(graph, task).total();
  const std::int64_t sample = activations_of_sample(graph, task);
  return left <= 0 || sample == 0 ? 0 : left / sample;
}

namespace {

MemoryTask task_of(const Judgement& j) {
  std::int64_t batch_size = j.experiment.data.batch_size;
  // No batch is larger than the dataset, whatever the file says.
  const std::int64_t samples = j.verdict.data.train_size;
  if (samples > 0) batch_size = std::min(batch_size, samples);
  return memory_task(j.experiment, j.verdict.precision, batch_size);
}

Memory& operator+=(Memory& sum, const Memory& more) {
  sum.weights += more.weights;
  sum.gradients += more.gradients;
  sum.optimizer += more.optimizer;
  sum.activations += more.activations;
  return sum;
}

/// What stages take: on GPUs the largest one's, on the CPU, whose memory they share, all of it.
Memory memory_of(const std::vector<PipelineStage>& stages, bool on_gpu) {
  Memory memory;
  for (const PipelineStage& stage : stages) {
    if (!on_gpu) {
      memory += stage.memory;
    } else if (stage.memory.total() > memory.total()) {
      memory = stage.memory;
    }
  }
  return memory;
}

/// How the model is cut; nothing unless the backend is balanced and the devices are known and not
/// too many.
std::optional<graph::PartitionTask> partition_task(const Judgement& j) {
  const Facts& f = j.facts;
  if (j.verdict.backend != "balanced" || f.gpus_unknown || f.devices() < 2) return std::nullopt;
  if (f.layers < f.devices()) return std::nullopt;
  graph::PartitionTask task{
      .stages = f.devices(), .micro_batches = f.micro_batches.value_or(1), .memory_limit = {}};
  if (f.on_gpu()) task.memory_limit = j.machine.gpu_memory_bytes;
  return task;
}

/// The largest batch, up to the task's, with which the stages fit into `bytes`; 0 if none does.
std::int64_t largest_batch_of_stages(const Judgement& j, MemoryTask task,
                                     graph::PartitionTask partition, std::int64_t bytes) {
  partition.memory_limit.reset();
  if (j.facts.on_gpu()) partition.memory_limit = bytes;
  std::int64_t fits = 0;
  std::int64_t too_large = task.batch_size;
  while (too_large - fits > 1) {
    task.batch_size = fits + (too_large - fits) / 2;
    const auto found = cut(*j.verdict.graph, task, partition);
    const bool has_room = found && memory_of(found->stages, j.facts.on_gpu()).total() <= bytes;
    (has_room ? fits : too_large) = task.batch_size;
  }
  return fits;
}

void cut_model(Judgement& j, const MemoryTask& task, graph::PartitionTask partition) {
  auto pipeline = cut(*j.verdict.graph, task, partition);
  if (!pipeline) {
    // Judged as it is, so that the message can say by how much it doesn't fit.
    partition.memory_limit.reset();
    pipeline = cut(*j.verdict.graph, task, partition);
  }
  j.verdict.stages = std::move(pipeline->stages);
  j.verdict.balance = pipeline->balance;
  j.verdict.memory = memory_of(j.verdict.stages, j.facts.on_gpu());
}

/// The memory that the run's batches lie in: a GPU's, or the machine's.
void judge_memory(Judgement& j, const MemoryTask& task,
                  const std::optional<graph::PartitionTask>& partition) {
  const bool on_gpu = j.facts.on_gpu();
  const auto& room = on_gpu ? j.machine.gpu_memory_bytes : j.machine.host_memory_bytes;
  if (!room || j.verdict.memory.total() <= *room) return;
  const Memory& memory = j.verdict.memory;
  const std::int64_t batch = partition ? largest_batch_of_stages(j, task, *partition, *room)
                                       : largest_batch(*j.verdict.graph, task, *room);
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
  const MemoryTask task = task_of(j);
  if (j.facts.on_gpu()) j.verdict.device_memory = j.machine.gpu_memory_bytes;
  const auto partition = partition_task(j);
  if (partition) {
    cut_model(j, task, *partition);
  } else {
    j.verdict.memory = estimate_memory(*j.verdict.graph, task);
  }
  j.verdict.checkpoint_bytes = checkpoint_size(*j.verdict.graph, task);
  judge_memory(j, task, partition);
  judge_disk(j);
}

}  // namespace runner::check
