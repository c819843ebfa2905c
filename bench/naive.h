// What both naive loops share: a dataset in two tensors, and a plain training loop over them.
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "datasets/dataset.h"
#include "runner/host/process.h"

namespace runner::bench {

struct Tensors {
  torch::Tensor inputs;
  torch::Tensor classes;
};

/// The training part of a dataset with its default options.
inline Tensors load(std::string_view name) {
  const datasets::Dataset* dataset = datasets::all().find(name);
  const datasets::Context context{".", host::data_folder() / "datasets" / "data"};
  const datasets::Spec spec = dataset->describe(dataset->defaults, context);
  const auto samples = dataset->load(dataset->defaults, context, datasets::Part::train);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(samples->size()));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::int64_t> shape{samples->size()};
  shape.insert(shape.end(), spec.input.begin(), spec.input.end());
  Tensors tensors{torch::empty(shape), torch::empty({samples->size()}, torch::kLong)};
  samples->gather_inputs(rows, tensors.inputs.data_ptr<float>());
  samples->gather_classes(rows, tensors.classes.data_ptr<std::int64_t>());
  return tensors;
}

/// Trains with torch::optim::Adam on shuffled batches and prints "<steps/s> <samples/s>".
inline void train(torch::nn::Sequential& model, const Tensors& data, std::int64_t batch_size,
                  int epochs) {
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  const std::int64_t n = data.inputs.size(0);
  std::int64_t steps = 0;
  double loss_sum = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const auto order = torch::randperm(n, torch::kLong);
    for (std::int64_t first = 0; first < n; first += batch_size) {
      const auto rows = order.slice(0, first, std::min(first + batch_size, n));
      const auto outputs = model->forward(data.inputs.index_select(0, rows));
      const auto loss =
          torch::nn::functional::cross_entropy(outputs, data.classes.index_select(0, rows));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
      ++steps;
    }
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  std::printf("%.1f %.1f %.4f\n", static_cast<double>(steps) / time.count(),
              static_cast<double>(n) * epochs / time.count(),
              loss_sum / static_cast<double>(steps));
}

}  // namespace runner::bench
