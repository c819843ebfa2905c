#include "runner/engine/strategies/across.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

namespace runner::engine {

namespace {

at::ScalarType sent_as(std::string_view compression, at::ScalarType full) {
  if (compression == "fp16") return at::kHalf;
  if (compression == "bf16") return at::kBFloat16;
  return full;
}

}  // namespace

Buckets make_buckets(const std::vector<at::Tensor>& parameters,
                     const std::vector<std::size_t>& limits) {
  const std::vector<at::Tensor> reversed(parameters.rbegin(), parameters.rend());
  Buckets buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(reversed, limits));
  for (auto& bucket : buckets) {
    for (std::size_t& index : bucket) index = parameters.size() - 1 - index;
  }
  return buckets;
}

std::size_t bucket_bytes(const config::Trainer& trainer) {
  return static_cast<std::size_t>(trainer.bucket_mb) << 20;
}

void share_statistics(const Group& group, const Network& network) {
  std::vector<at::Tensor> statistics;
  for (const NamedTensor& buffer : network.buffers()) {
    if (buffer.tensor.is_floating_point()) statistics.push_back(buffer.tensor);
  }
  group.broadcast(statistics);
}

GradientMean::GradientMean(const Group& group, const Network& network,
                           const config::Trainer& trainer, Buckets buckets)
    : group_(group), network_(network), trainer_(trainer), buckets_(std::move(buckets)) {}

std::vector<at::Tensor> GradientMean::with_gradients(std::size_t bucket) const {
  std::vector<at::Tensor> parameters;
  parameters.reserve(buckets_[bucket].size());
  for (const std::size_t index : buckets_[bucket]) {
    const at::Tensor& parameter = network_.parameters()[index].tensor;
    if (parameter.grad().defined()) parameters.push_back(parameter);
  }
  return parameters;
}

void GradientMean::start(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : with_gradients(bucket)) {
    gradients.push_back(parameter.grad().reshape(-1));
  }
  if (gradients.empty()) return;
  const at::Tensor full = at::cat(gradients);
  const auto dtype = sent_as(trainer_.gradient_compression, full.scalar_type());
  // Divided before they are summed, so that the sum stays in the range of a narrow format.
  std::vector<at::Tensor> values{full.to(dtype).div_(group_.size())};
  exchanges_.push_back({bucket, values.front(), group_.processes()->allreduce(values)});
}

void GradientMean::finish() {
  const at::NoGradGuard no_grad;
  for (const Exchange& exchange : exchanges_) {
    exchange.work->wait();
    std::int64_t first = 0;
    at::Tensor full;
    for (const at::Tensor& parameter : with_gradients(exchange.bucket)) {
      if (!full.defined()) full = exchange.values.to(parameter.scalar_type());
      const at::Tensor mean = full.narrow(0, first, parameter.numel()).view(parameter.sizes());
      if (trainer_.gradient_as_bucket_view) {
        parameter.mutable_grad() = mean;
      } else {
        parameter.mutable_grad().copy_(mean);
      }
      first += parameter.numel();
    }
  }
  exchanges_.clear();
}

}  // namespace runner::engine
