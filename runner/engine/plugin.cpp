#include "runner/engine/plugin.h"

#include <dlfcn.h>

#include "runner/diag/error.h"

namespace runner::engine {

const void* open_plugin(const std::filesystem::path& folder, const Plugin& plugin) {
  const std::filesystem::path library = folder / plugin.file;
  if (!std::filesystem::exists(library)) {
    throw diag::Error(diag::Exit::machine,
                      "this build of runner-worker can't use " + std::string(plugin.use) + ": '" +
                          library.string() + "' is missing",
                      plugin.to_build);
  }
  // Never closed: LibTorch keeps pointers into it. Global: Open MPI's plug-ins look there for MPI.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    throw diag::Error(diag::Exit::machine, "cannot load '" + library.string() + "': " + dlerror(),
                      plugin.to_load);
  }
  const auto get = reinterpret_cast<const void* (*)()>(dlsym(handle, plugin.symbol));
  return get == nullptr ? nullptr : get();
}

void refuse_plugin(const std::filesystem::path& folder, const Plugin& plugin) {
  throw diag::Error(diag::Exit::machine, "'" + (folder / plugin.file).string() +
                                             "' is of another build than runner-worker");
}

}  // namespace runner::engine
