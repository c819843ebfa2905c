#include "runner/diag/error.h"
#include "runner/engine/comm/backends.h"
#include "runner/engine/comm/mpi.h"
#include "runner/engine/plugin.h"

namespace runner::engine {

namespace mpi {

const Api& load(const std::filesystem::path& folder) {
  return load_plugin<Api>(
      folder,
      {.file = "librunner-mpi.so",
       .symbol = "runner_mpi_api",
       .use = "MPI",
       .to_build = "install libopenmpi-dev and openmpi-bin, or another MPI (scripts/setup does), "
                   "and build again; or use trainer.backend = \"ddp\"",
       .to_load = "is the MPI that it was built with (openmpi-bin) still installed?"});
}

}  // namespace mpi

namespace {

std::string place(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_mpi(const BackendOptions& options,
                                           const std::filesystem::path& folder) {
  auto backend = mpi::load(folder).join(options.timeout);
  if (backend->getRank() != options.rank || backend->getSize() != options.size) {
    throw diag::Error(
        diag::Exit::invalid,
        "this process is " + place(options.rank, options.size) + " in the plan and " +
            place(backend->getRank(), backend->getSize()) + " for MPI",
        "start all ranks with MPI: mpirun -np " + std::to_string(options.size) + " runner …");
  }
  return backend;
}

}  // namespace runner::engine
