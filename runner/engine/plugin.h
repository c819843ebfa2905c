// engine: a library that the worker loads only when a plan asks for what it links.
#pragma once

#include <filesystem>
#include <string>

namespace runner::engine {

struct Plugin {
  const char* file;      ///< "librunner-cuda.so"
  const char* symbol;    ///< of its function without arguments that gives its Api
  const char* use;       ///< what it is there for: "GPUs"
  const char* to_build;  ///< help where the build has none
  const char* to_load;   ///< help where it can't be loaded
};

/// What the plug-in's function gives; null if it has none. The library stays loaded. Throws
/// diag::Error (machine) when it isn't in `folder` or can't be loaded.
[[nodiscard]] const void* open_plugin(const std::filesystem::path& folder, const Plugin& plugin);

/// Throws diag::Error (machine) for a library of another build.
[[noreturn]] void refuse_plugin(const std::filesystem::path& folder, const Plugin& plugin);

/// Loads a plug-in whose function gives an `Api`, which says its own version. Throws as above.
template <class Api>
[[nodiscard]] const Api& load_plugin(const std::filesystem::path& folder, const Plugin& plugin) {
  const auto* api = static_cast<const Api*>(open_plugin(folder, plugin));
  if (api == nullptr || api->version != Api::kVersion) refuse_plugin(folder, plugin);
  return *api;
}

}  // namespace runner::engine
