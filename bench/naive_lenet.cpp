// LeNet on Fashion-MNIST, batch 128, Adam, two threads: bench_naive_lenet [epochs].
#include "bench/naive.h"

int main(int argc, char** argv) {
  namespace nn = torch::nn;
  torch::set_num_threads(2);
  torch::manual_seed(1);
  const auto data = runner::bench::load("fashion_mnist");
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(1, 6, 5).padding(2)), nn::ReLU(),
                       nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(6, 16, 5)), nn::ReLU(),
                       nn::MaxPool2d(2), nn::Flatten(), nn::Linear(400, 120), nn::ReLU(),
                       nn::Linear(120, 84), nn::ReLU(), nn::Linear(84, 10));
  runner::bench::train(model, data, 128, argc > 1 ? std::atoi(argv[1]) : 1);
}
