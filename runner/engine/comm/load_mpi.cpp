#include <dlfcn.h>

#include "runner/diag/error.h"
#include "runner/engine/comm/backends.h"
#include "runner/engine/comm/mpi.h"

namespace runner::engine {

namespace mpi {

const Api& load(const std::filesystem::path& folder) {
  const std::filesystem::path library = folder / "librunner-mpi.so";
  if (!std::filesystem::exists(library)) {
    throw diag::Error(
        diag::Exit::machine,
        "this build of runner-worker can't use MPI: '" + library.string() + "' is missing",
        "install libopenmpi-dev and openmpi-bin, or another MPI (scripts/setup does), and build "
        "again; or use trainer.backend = \"ddp\"");
  }
  // Never closed: LibTorch keeps pointers into it. Global: Open MPI's plug-ins look there for MPI.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    throw diag::Error(diag::Exit::machine, "cannot load '" + library.string() + "': " + dlerror(),
                      "is the MPI that it was built with (openmpi-bin) still installed?");
  }
  const auto get = reinterpret_cast<const Api* (*)()>(dlsym(handle, "runner_mpi_api"));
  const Api* api = get == nullptr ? nullptr : get();
  if (api == nullptr || api->version != Api::kVersion) {
    throw diag::Error(diag::Exit::machine,
                      "'" + library.string() + "' is of another build than runner-worker");
  }
  return *api;
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
