#include "runner/engine/lower.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <unordered_map>

#include "runner/diag/error.h"
#include "runner/engine/shared_batch_norm.h"

namespace runner::engine {

namespace {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

/// Elements that one output is summed from, which bounds the initial weights.
std::int64_t fan_in(const graph::Shape& weight) {
  std::int64_t product = 1;
  for (std::size_t i = 1; i < weight.size(); ++i) product *= weight[i];
  return product;
}

bool is_dense(const graph::Op& op) {
  return std::holds_alternative<graph::Linear>(op) || std::holds_alternative<graph::Conv2d>(op);
}

/// Initial value of a layer's tensor. Drawn on the CPU in double's or float's own stream, so that a
/// seed gives the same weights on every device.
at::Tensor initial(const graph::Layer& layer, const graph::Parameter& parameter,
                   const at::TensorOptions& options) {
  const auto cpu = options.device(at::kCPU);
  if (parameter.name == "num_batches_tracked") return at::zeros({}, cpu.dtype(at::kLong));
  if (is_dense(layer.op)) {
    // In torch.nn's own steps, so that the bits are the same: kaiming_uniform(a = sqrt 5) for the
    // weight, 1 / sqrt(fan in) for the bias; both come to the latter.
    const double root = std::sqrt(static_cast<double>(fan_in(layer.parameters.front().shape)));
    const double gain = std::sqrt(2.0 / (1 + std::pow(std::sqrt(5.0), 2)));
    const double bound = parameter.name == "weight" ? std::sqrt(3.0) * (gain / root) : 1 / root;
    return at::empty(parameter.shape, cpu).uniform_(-bound, bound);
  }
  const bool one = parameter.name == "weight" || parameter.name == "running_var";
  return one ? at::ones(parameter.shape, cpu) : at::zeros(parameter.shape, cpu);
}

/// Whether the backward pass of `op` needs its own output, which an in-place step would spoil.
bool keeps_output(const graph::Op& op) {
  return !is_dense(op) && !std::holds_alternative<graph::BatchNorm>(op) &&
         !std::holds_alternative<graph::LayerNorm>(op) && !std::holds_alternative<graph::Add>(op);
}

at::Tensor activate(graph::ActivationKind kind, const at::Tensor& x, bool in_place) {
  switch (kind) {
    case graph::ActivationKind::relu: {
      if (!in_place) return at::relu(x);
      at::Tensor y = x;
      return at::relu_(y);
    }
    case graph::ActivationKind::leaky_relu:
      return at::leaky_relu(x);
    case graph::ActivationKind::elu:
      return at::elu(x);
    case graph::ActivationKind::gelu:
      return at::gelu(x);
    case graph::ActivationKind::silu:
      return at::silu(x);
    case graph::ActivationKind::tanh:
      return at::tanh(x);
    case graph::ActivationKind::sigmoid:
      return at::sigmoid(x);
    case graph::ActivationKind::softplus:
      return at::softplus(x);
  }
  throw std::logic_error("activation without a kernel");
}

at::Tensor batch_norm(const graph::BatchNorm& op, const at::Tensor& x,
                      const std::vector<at::Tensor>& tensors, bool training) {
  if (training) {
    at::Tensor batches = tensors[4];
    batches.add_(1);
  }
  return at::batch_norm(x, tensors[0], tensors[1], tensors[2], tensors[3], training, op.momentum,
                        op.eps, /*cudnn_enabled=*/true);
}

/// at::dropout's own arithmetic, with another source of random numbers.
at::Tensor dropout(const at::Tensor& x, double p, const at::Generator& generator) {
  if (p == 1) return x * at::zeros({}, x.options());
  return x * at::empty_like(x).bernoulli_(1 - p, generator).div_(1 - p);
}

}  // namespace

at::Tensor Network::run(const Step& step, const Values& values, bool in_place,
                        bool training) const {
  const at::Tensor& x = values[step.inputs.front()];
  const auto& t = step.tensors;
  const auto tensor_or_none = [&](std::size_t i) { return i < t.size() ? t[i] : at::Tensor(); };
  return std::visit(
      Overloaded{
          [&](const graph::Input&) { return x; },
          [&](const graph::Linear&) { return at::linear(x, t[0], tensor_or_none(1)); },
          [&](const graph::Conv2d& op) {
            return at::conv2d(x, t[0], tensor_or_none(1), op.stride, op.padding, op.dilation,
                              op.groups);
          },
          [&](const graph::BatchNorm& op) {
            if (training && sum_) return shared_batch_norm(op, x, t, sum_, counts_);
            return batch_norm(op, x, t, training);
          },
          [&](const graph::LayerNorm& op) {
            return at::layer_norm(x, {op.features}, t[0], t[1], op.eps);
          },
          [&](const graph::Activation& op) { return activate(op.kind, x, in_place); },
          [&](const graph::MaxPool2d& op) {
            return at::max_pool2d(x, op.kernel, op.stride, op.padding);
          },
          [&](const graph::AvgPool2d& op) {
            return at::avg_pool2d(x, op.kernel, op.stride, op.padding);
          },
          [&](const graph::GlobalAvgPool&) {
            return x.mean({2, 3});
          },
          [&](const graph::Flatten&) { return x.flatten(1); },
          [&](const graph::Dropout& op) {
            if (!training) return x;
            return step.generator ? dropout(x, op.p, *step.generator) : at::dropout(x, op.p, true);
          },
          [&](const graph::Add&) { return at::add(x, values[step.inputs[1]]); },
      },
      step.op);
}

at::Tensor Network::forward(const at::Tensor& inputs, bool training) {
  values_.front() = inputs;
  forward_part(0, steps_.size(), values_, training);
  at::Tensor output = std::move(values_.back());
  for (at::Tensor& value : values_) value = at::Tensor();
  return output;
}

Network Network::replica(const at::Device& device) const {
  std::unordered_map<at::TensorImpl*, at::Tensor> own;
  const auto copied = [&](const std::vector<NamedTensor>& originals) {
    std::vector<NamedTensor> copies;
    copies.reserve(originals.size());
    for (const auto& [name, tensor] : originals) {
      const bool shared = tensor.requires_grad() && tensor.device() == device;
      at::Tensor copy = tensor.variable_data();
      copy = shared ? copy : copy.to(device, /*non_blocking=*/false, /*copy=*/true);
      copy.set_requires_grad(tensor.requires_grad());
      own.emplace(tensor.unsafeGetTensorImpl(), copy);
      copies.push_back({name, std::move(copy)});
    }
    return copies;
  };
  Network network;
  network.parameters_ = copied(parameters_);
  network.buffers_ = copied(buffers_);
  network.steps_ = steps_;
  for (Step& step : network.steps_) {
    for (at::Tensor& tensor : step.tensors) tensor = own.at(tensor.unsafeGetTensorImpl());
  }
  network.values_.resize(values_.size());
  return network;
}

void Network::forward_part(std::size_t first, std::size_t last, Values& values,
                           bool training) const {
  // What comes from outside isn't this part's to overwrite.
  const std::size_t own = first < last ? steps_[first].output : 0;
  for (std::size_t i = first; i < last; ++i) {
    const Step& step = steps_[i];
    const bool in_place = step.in_place && step.inputs.front() >= own;
    values[step.output] = run(step, values, in_place, training);
    for (std::size_t value : step.released) values[value] = at::Tensor();
  }
}

std::vector<std::size_t> Network::values_across(std::size_t step) const {
  std::vector<bool> is_read(values_.size(), false);
  for (std::size_t i = step; i < steps_.size(); ++i) {
    for (const std::size_t value : steps_[i].inputs) is_read[value] = true;
  }
  std::vector<std::size_t> across;
  for (std::size_t value = 0; value <= step; ++value) {
    if (is_read[value]) across.push_back(value);
  }
  return across;
}

void Network::place(std::size_t first, std::size_t last, const at::Device& device) {
  for (std::size_t i = first; i < last; ++i) {
    for (at::Tensor tensor : steps_[i].tensors) {
      if (tensor.device() != device) tensor.set_data(tensor.detach().to(device));
    }
  }
}

Network Network::copy_step(std::size_t step, const at::Device& device) const {
  Network copy;
  Step own = steps_[step];
  for (at::Tensor& tensor : own.tensors) {
    const bool trains = tensor.requires_grad();
    tensor = tensor.detach().to(device, /*non_blocking=*/false, /*copy=*/true);
    tensor.set_requires_grad(trains);
  }
  if (std::holds_alternative<graph::Dropout>(own.op)) {
    own.generator = at::globalContext().defaultGenerator(device).clone();
  }
  copy.steps_.push_back(std::move(own));
  copy.values_.resize(values_.size());
  return copy;
}

void Network::set_dropout_generators(const std::function<at::Generator(std::size_t)>& of) {
  std::size_t number = 0;
  for (Step& step : steps_) {
    if (std::holds_alternative<graph::Dropout>(step.op)) step.generator = of(number++);
  }
}

std::vector<NamedTensor> Network::state() const {
  std::vector<NamedTensor> all = parameters_;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  return all;
}

void Network::load_state(const std::vector<NamedTensor>& state) {
  std::unordered_map<std::string, at::Tensor> given;
  for (const NamedTensor& entry : state) given.emplace(entry.name, entry.tensor);
  const at::NoGradGuard no_grad;
  const auto fail = [](const std::string& message) {
    throw diag::Error(diag::Exit::incompatible, message,
                      "load it with the model that it was trained with");
  };
  for (const NamedTensor& mine : this->state()) {
    const auto found = given.find(mine.name);
    if (found == given.end()) fail("the checkpoint has no tensor '" + mine.name + "'");
    const at::Tensor& other = found->second;
    if (other.sizes() != mine.tensor.sizes()) {
      fail("tensor '" + mine.name + "' has shape " + graph::to_text(other.sizes().vec()) +
           " in the checkpoint and " + graph::to_text(mine.tensor.sizes().vec()) + " in the model");
    }
    if (other.scalar_type() != mine.tensor.scalar_type()) {
      fail("tensor '" + mine.name + "' is " + std::string(c10::toString(other.scalar_type())) +
           " in the checkpoint and " + c10::toString(mine.tensor.scalar_type()) + " in the model");
    }
    mine.tensor.copy_(other);
    given.erase(found);
  }
  if (!given.empty()) {
    fail("the checkpoint has a tensor '" + given.begin()->first + "' that the model lacks");
  }
}

Network lower(const graph::Graph& graph, const at::TensorOptions& options) {
  const auto& layers = graph.layers();
  std::vector<std::size_t> readers(layers.size(), 0);
  std::vector<std::size_t> last_reader(layers.size(), 0);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (std::size_t input : layers[i].inputs) {
      ++readers[input];
      last_reader[input] = i;
    }
  }

  Network network;
  network.graph_ = graph;
  network.values_.resize(layers.size());
  for (std::size_t i = 1; i < layers.size(); ++i) {
    const graph::Layer& layer = layers[i];
    Network::Step step{layer.op, i, layer.inputs, {}, {}, false};
    for (const graph::Parameter& parameter : layer.parameters) {
      at::Tensor tensor = initial(layer, parameter, options).to(options.device());
      tensor.set_requires_grad(parameter.trainable);
      auto& list = parameter.trainable ? network.parameters_ : network.buffers_;
      list.push_back({layer.name + "." + parameter.name, tensor});
      step.tensors.push_back(std::move(tensor));
    }
    const std::size_t input = layer.inputs.front();
    step.in_place = input != 0 && readers[input] == 1 && !keeps_output(layers[input].op);
    for (std::size_t value : layer.inputs) {
      const bool known = !step.released.empty() && step.released.back() == value;
      if (last_reader[value] == i && !known) step.released.push_back(value);
    }
    network.steps_.push_back(std::move(step));
  }
  return network;
}

}  // namespace runner::engine
