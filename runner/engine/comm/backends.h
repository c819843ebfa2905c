// engine/comm: what makes a c10d backend, one function for each library that may be missing.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace runner::engine {

struct BackendOptions {
  c10::intrusive_ptr<c10d::Store> store;  ///< not for MPI
  int rank = 0, size = 1;
  std::string address;  ///< of this machine, towards the others; not for MPI
  std::chrono::milliseconds timeout{0};
};

/// gloo over TCP, for tensors in main memory. Throws diag::Error (machine) where the build has
/// none.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendOptions& options);

/// MPI, for tensors in main memory and on GPUs, by the library in `folder`. Throws diag::Error:
/// machine where the build has none, invalid where MPI gives this process another rank or has
/// another number of ranks. Once a process.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_mpi(const BackendOptions& options,
                                                         const std::filesystem::path& folder);

}  // namespace runner::engine
