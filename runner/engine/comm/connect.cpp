#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "runner/diag/error.h"
#include "runner/engine/comm/backends.h"
#include "runner/engine/comm/group.h"
#include "runner/engine/cuda/cuda.h"
#include "runner/host/environment.h"
#include "runner/host/process.h"

namespace runner::engine {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The launcher ends a run whose ranks wait for longer than the plan allows, and knows who is
/// missing; an exchange by itself gives up later.
constexpr auto kAfterLauncher = seconds(30);

std::string need(const char* name) {
  const auto value = host::system_environment().get(name);
  if (!value || value->empty()) {
    throw diag::Error(diag::Exit::invalid, std::string(name) + " is not set",
                      "runner starts runner-worker, people don't");
  }
  return *value;
}

int need_number(const char* name) { return std::atoi(need(name).c_str()); }

c10::intrusive_ptr<c10d::Store> open_store(int rank, int size, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(need_number("MASTER_PORT"));
  options.isServer = rank == 0;
  options.numWorkers = static_cast<std::size_t>(size);
  options.waitWorkers = false;
  options.timeout = timeout;
  if (rank == 0) options.masterListenFd = need_number("RUNNER_STORE_FD");
  auto store = c10::make_intrusive<c10d::TCPStore>(need("MASTER_ADDR"), options);
  return c10::make_intrusive<c10d::PrefixStore>(need("RUNNER_STORE_PREFIX"), std::move(store));
}

/// No store: mpirun's daemons bring the ranks together.
Group connect_over_mpi(const plan::Plan& plan) {
  const BackendOptions options{.store = {},
                               .rank = need_number("RANK"),
                               .size = static_cast<int>(plan.world_size),
                               .address = {},
                               .timeout = seconds(plan.timeout_seconds) + kAfterLauncher};
  const auto backend = make_mpi(options, host::self_exe_folder());
  using Type = c10d::ProcessGroup::BackendType;
  auto processes = c10::make_intrusive<c10d::ProcessGroup>(options.rank, options.size);
  processes->setBackend(c10::DeviceType::CPU, Type::MPI, backend);
  processes->setBackend(c10::DeviceType::CUDA, Type::MPI, backend);
  processes->setDefaultBackend(Type::MPI);
  return Group(std::move(processes));
}

}  // namespace

Group connect(const plan::Plan& plan, const std::string& communication, const at::Device& device) {
  if (plan.world_size == 1) return {};
  const milliseconds at_start = seconds(plan.start_timeout_seconds) + kAfterLauncher;
  try {
    if (plan.backend == "horovod") return connect_over_mpi(plan);
    const int rank = need_number("RANK");
    const auto size = static_cast<int>(plan.world_size);
    const BackendOptions options{.store = open_store(rank, size, at_start),
                                 .rank = rank,
                                 .size = size,
                                 .address = need("RUNNER_ADDRESS"),
                                 .timeout = seconds(plan.timeout_seconds) + kAfterLauncher};
    auto processes = c10::make_intrusive<c10d::ProcessGroup>(options.store, rank, size);
    using Type = c10d::ProcessGroup::BackendType;
    // Always there: what ranks agree on lies in main memory, whatever carries the gradients.
    const auto gloo = make_gloo(options);
    processes->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
    processes->setDefaultBackend(Type::GLOO);
    if (device.is_cuda() && communication == "gloo") {
      processes->setBackend(c10::DeviceType::CUDA, Type::GLOO, gloo);
    } else if (device.is_cuda()) {
      const cuda::Api& api = cuda::load(host::self_exe_folder());
      processes->setBackend(c10::DeviceType::CUDA, Type::NCCL,
                            api.make_nccl(options, device.index()));
    }
    return Group(std::move(processes));
  } catch (const c10::Error& error) {
    throw ExchangeError(error.what_without_backtrace());
  }
}

}  // namespace runner::engine
