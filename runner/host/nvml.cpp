#include "runner/host/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace runner::host {

namespace {

// The part of NVML's binary interface that we use; 0 is NVML_SUCCESS, 7 is
// NVML_ERROR_INSUFFICIENT_SIZE.
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;

struct Memory {
  unsigned long long total, free, used;
};

/// nvmlProcessInfo_v2_t, which the _v2 and _v3 functions fill.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

struct Functions {
  int (*init)();
  int (*shutdown)();
  int (*device_count)(unsigned*);
  int (*device_by_index)(unsigned, Device*);
  int (*memory_info)(Device, Memory*);
  int (*name)(Device, char*, unsigned);
  int (*uuid)(Device, char*, unsigned);
  int (*compute_capability)(Device, int*, int*);
  int (*compute_processes)(Device, unsigned*, ProcessInfo*);  ///< may be absent
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Functions& f) {
  const bool has_processes =
      find(library, "nvmlDeviceGetComputeRunningProcesses_v3", f.compute_processes) ||
      find(library, "nvmlDeviceGetComputeRunningProcesses_v2", f.compute_processes);
  if (!has_processes) f.compute_processes = nullptr;
  return find(library, "nvmlInit_v2", f.init) && find(library, "nvmlShutdown", f.shutdown) &&
         find(library, "nvmlDeviceGetCount_v2", f.device_count) &&
         find(library, "nvmlDeviceGetHandleByIndex_v2", f.device_by_index) &&
         find(library, "nvmlDeviceGetMemoryInfo", f.memory_info) &&
         find(library, "nvmlDeviceGetName", f.name) && find(library, "nvmlDeviceGetUUID", f.uuid) &&
         find(library, "nvmlDeviceGetCudaComputeCapability", f.compute_capability);
}

std::string text_of(int (*get)(Device, char*, unsigned), Device device) {
  std::array<char, 128> buffer{};
  if (get(device, buffer.data(), buffer.size()) != kSuccess) return {};
  buffer.back() = '\0';
  return buffer.data();
}

class LoadedNvml final : public Nvml {
 public:
  LoadedNvml(void* library, const Functions& functions) : library_(library), f_(functions) {}
  LoadedNvml(const LoadedNvml&) = delete;
  LoadedNvml& operator=(const LoadedNvml&) = delete;
  ~LoadedNvml() override {
    f_.shutdown();
    ::dlclose(library_);
  }

  std::vector<Gpu> gpus() const override {
    unsigned count = 0;
    if (f_.device_count(&count) != kSuccess) return {};
    std::vector<Gpu> gpus;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      Memory memory{};
      if (f_.device_by_index(i, &device) != kSuccess) continue;
      if (f_.memory_info(device, &memory) != kSuccess) continue;
      gpus.push_back({.index = static_cast<int>(i),
                      .name = text_of(f_.name, device),
                      .memory_bytes = static_cast<std::int64_t>(memory.total),
                      .free_bytes = static_cast<std::int64_t>(memory.free),
                      .uuid = text_of(f_.uuid, device),
                      .capability_major = 0,
                      .capability_minor = 0,
                      .processes = processes(device)});
      Gpu& gpu = gpus.back();
      int major = 0;
      int minor = 0;
      if (f_.compute_capability(device, &major, &minor) != kSuccess) continue;
      gpu.capability_major = major;
      gpu.capability_minor = minor;
    }
    return gpus;
  }

 private:
  std::vector<std::int64_t> processes(Device device) const {
    if (f_.compute_processes == nullptr) return {};
    std::vector<ProcessInfo> infos(64);
    auto count = static_cast<unsigned>(infos.size());
    int status = f_.compute_processes(device, &count, infos.data());
    if (status == kInsufficientSize) {
      infos.resize(count + 64);  // room for those that start between the two calls
      count = static_cast<unsigned>(infos.size());
      status = f_.compute_processes(device, &count, infos.data());
    }
    if (status != kSuccess) return {};
    std::vector<std::int64_t> ids;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, infos.size()); ++i) {
      ids.push_back(infos[i].pid);
    }
    return ids;
  }

  void* library_;
  Functions f_;
};

}  // namespace

std::unique_ptr<Nvml> Nvml::load(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  Functions functions{};
  if (!find_all(handle, functions) || functions.init() != kSuccess) {
    ::dlclose(handle);
    return nullptr;
  }
  return std::make_unique<LoadedNvml>(handle, functions);
}

}  // namespace runner::host
