// A driver library with two GPUs, one of them busy and with 100 processes, to be loaded in the
// place of libnvidia-ml.so.1. A third GPU has fallen off the bus.
#include <cstdio>

namespace {
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kGpuIsLost = 15;
int devices[3];
bool initialised = false;

int index_of(void* device) { return static_cast<int>(static_cast<int*>(device) - devices); }
}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2() {
  initialised = true;
  return kSuccess;
}
int nvmlShutdown() { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (!initialised) return 1;
  *count = 3;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index == 1) return kGpuIsLost;
  *device = &devices[index];
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {1000, index_of(device) == 0 ? 900u : 100u, 0};
  return kSuccess;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "Fake %d", index_of(device));
  return kSuccess;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  std::snprintf(uuid, length, "GPU-abc%d", index_of(device));
  return kSuccess;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  if (index_of(device) != 0) return kNotSupported;
  *major = 9;
  *minor = 1;
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* infos) {
  const unsigned running = index_of(device) == 0 ? 0 : 100;
  const unsigned room = *count;
  *count = running;
  if (room < running) return kInsufficientSize;
  for (unsigned i = 0; i < running; ++i)
    infos[i] = {.pid = 500 + i, .used_memory = 1, .gpu_instance = 0, .compute_instance = 0};
  return kSuccess;
}

}  // extern "C"
