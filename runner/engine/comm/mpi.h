// engine/comm: exchanges over MPI, loaded only when a plan asks for them.
//
// Which MPI there is, and where, differs between machines, so the worker doesn't link one.
// librunner-mpi.so does, and what it gives is a c10d backend like gloo's and NCCL's.
#pragma once

#include <chrono>
#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace runner::engine::mpi {

struct Api {
  static constexpr int kVersion = 1;
  int version;
  /// Joins the processes that mpirun started and returns when all have; rank and size are MPI's.
  /// To be called once a process.
  ///
  /// Exchanges of tensors in main memory or on a GPU (through main memory) run in the order of
  /// their calls, on a thread of their own; each fails with "MPI_…: why" in its text, also when the
  /// other ranks don't come within `timeout`, and all after a failed one fail likewise.
  ///
  /// shutdown() takes leave of the others (MPI_Finalize), is collective, and must be called before
  /// a process of a run that went well ends. A process that ends without it makes mpirun end the
  /// others, so a failed one leaves it out.
  c10::intrusive_ptr<c10d::Backend> (*join)(std::chrono::milliseconds timeout);
};

/// Loads librunner-mpi.so from `folder`. Throws diag::Error (machine) when it wasn't built or can't
/// be loaded.
const Api& load(const std::filesystem::path& folder);

}  // namespace runner::engine::mpi
