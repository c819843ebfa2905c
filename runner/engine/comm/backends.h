// engine/comm: what makes a c10d backend, one function for each library that may be missing.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace runner::engine {

struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0, size = 1;
  std::string address;  ///< of this machine, towards the others
  std::chrono::milliseconds timeout{0};
};

/// gloo over TCP, for tensors in main memory. Throws diag::Error (machine) where the build has
/// none.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendOptions& options);

}  // namespace runner::engine
