// MLP 64-128-10 on UCI digits, batch 32, Adam, one thread: bench_naive_digits [epochs].
#include "bench/naive.h"

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const auto data = runner::bench::load("digits");
  torch::nn::Sequential model(torch::nn::Flatten(), torch::nn::Linear(64, 128), torch::nn::ReLU(),
                              torch::nn::Linear(128, 10));
  runner::bench::train(model, data, 32, argc > 1 ? std::atoi(argv[1]) : 100);
}
