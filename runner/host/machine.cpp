#include "runner/host/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <fstream>
#include <mutex>
#include <string_view>

#include "runner/host/nvml.h"

namespace runner::host {

namespace {

/// The container's memory limit under cgroup v2 or v1; nullopt if there is none. (v1 says
/// "unlimited" by a huge number, which the caller's min() drops.)
std::optional<std::int64_t> container_memory_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) return limit;  // "max" isn't a number
  }
  return std::nullopt;
}

class SystemMachine final : public Machine {
 public:
  explicit SystemMachine(std::string nvml_library) : nvml_library_(std::move(nvml_library)) {}

  std::vector<Gpu> gpus() const override {
    std::call_once(nvml_once_, [this] { nvml_ = Nvml::load(nvml_library_); });
    return nvml_ ? nvml_->gpus() : std::vector<Gpu>{};
  }

  int cpu_count() const override {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  }

  std::int64_t memory_bytes() const override {
    const std::int64_t physical =
        std::int64_t{::sysconf(_SC_PHYS_PAGES)} * std::int64_t{::sysconf(_SC_PAGESIZE)};
    return std::min(physical, container_memory_limit().value_or(physical));
  }

  std::string hostname() const override {
    std::array<char, HOST_NAME_MAX + 1> buffer{};
    if (::gethostname(buffer.data(), buffer.size() - 1) != 0) return "localhost";
    return buffer.data();
  }

 private:
  std::string nvml_library_;
  mutable std::once_flag nvml_once_;
  mutable std::unique_ptr<Nvml> nvml_;
};

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

const Gpu* find_gpu(const std::vector<Gpu>& gpus, std::string_view entry) {
  int index = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  const bool is_number = error == std::errc{} && end == entry.data() + entry.size();
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    if (is_number) return gpu.index == index;
    return entry.starts_with("GPU-") && gpu.uuid.starts_with(entry);
  });
  return found == gpus.end() ? nullptr : &*found;
}

}  // namespace

const Machine& system_machine() {
  static const SystemMachine machine("libnvidia-ml.so.1");
  return machine;
}

std::unique_ptr<Machine> make_machine(const std::string& nvml_library) {
  return std::make_unique<SystemMachine>(nvml_library);
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus,
                              const std::optional<std::string>& mask) {
  if (!mask) return gpus;
  std::vector<Gpu> visible;
  std::string_view rest = *mask;
  for (;;) {
    const std::size_t comma = rest.find(',');
    const Gpu* gpu = find_gpu(gpus, trim(rest.substr(0, comma)));
    if (gpu == nullptr) return visible;
    const bool repeated = std::any_of(visible.begin(), visible.end(),
                                      [&](const Gpu& seen) { return seen.index == gpu->index; });
    if (repeated) return {};
    visible.push_back(*gpu);
    if (comma == std::string_view::npos) return visible;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace runner::host
