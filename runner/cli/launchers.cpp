#include "runner/cli/launchers.h"

#include <iostream>
#include <utility>

#include "registry/value.h"
#include "runner/cli/version.h"
#include "runner/diag/error.h"
#include "runner/host/environment.h"
#include "runner/host/machine.h"
#include "runner/host/process.h"
#include "runner/host/program.h"
#include "runner/store/digest.h"

namespace runner::cli {

namespace {

namespace fs = std::filesystem;

bool is_slurm(const launch::Topology& topology) {
  return topology.started.starter == launch::Starter::slurm;
}

/// This machine, to people who know its SLURM name.
std::string name_of_machine(const launch::Started& started) {
  if (started.starter == launch::Starter::slurm) {
    if (const auto node = host::system_environment().get("SLURMD_NODENAME")) return *node;
  }
  return host::host_name();
}

/// torchrun's store speaks LibTorch's protocol, which only the worker knows.
host::ProgramEnd ask_store(const launch::Started& started, std::vector<std::string> request) {
  std::vector<std::string> command = {worker_path().string(), "--store", started.master_addr,
                                      std::to_string(started.master_port.value_or(0))};
  command.insert(command.end(), std::make_move_iterator(request.begin()),
                 std::make_move_iterator(request.end()));
  return host::run_program(command);
}

/// MPI knows only processes that its own launcher has started, one a rank.
void need_mpi(const plan::Plan& plan, const launch::Topology& topology) {
  using launch::Starter;
  if (plan.backend != "horovod" || plan.world_size == 1) return;
  const Starter starter = topology.started.starter;
  const bool has_mpi =
      starter == Starter::open_mpi || starter == Starter::mpi || starter == Starter::slurm;
  if (has_mpi && topology.ranks_here == 1) return;
  throw diag::Error(diag::Exit::incompatible,
                    "backend 'horovod' needs MPI's launcher to start its " +
                        std::to_string(plan.world_size) + " processes",
                    "mpirun -np " + std::to_string(plan.world_size) + " " + plan.command_line);
}

launch::MeetingOptions meeting_options(const plan::Plan& plan, const launch::Started& started) {
  launch::MeetingOptions options;
  options.host = name_of_machine(started);
  options.version = kVersion;
  options.digest = store::digest_of(registry::to_toml(registry::Value(plan.experiment))).xxh3_128;
  options.ports = launch::ports(started);
  options.start_timeout = std::chrono::seconds(plan.start_timeout_seconds);
  if (!started.agent_store) return options;
  const std::string key = "runner/" + started.identity;
  options.publish = [started, key](const std::string& place) {
    const host::ProgramEnd end = ask_store(started, {"set", key, place});
    if (end.status != 0) {
      throw diag::Error(diag::Exit::failed, "can't write to torchrun's store at " +
                                                started.master_addr + ":" +
                                                std::to_string(started.master_port.value_or(0)));
    }
  };
  options.look_up = [started, key] {
    const host::ProgramEnd end = ask_store(started, {"get", key});
    return end.status == 0 ? end.output : std::string();
  };
  return options;
}

}  // namespace

fs::path worker_path() { return host::self_exe_folder() / "runner-worker"; }

void need_worker(const plan::Plan& plan) {
  if (!fs::exists(worker_path())) {
    throw diag::Error(diag::Exit::machine, "'" + worker_path().string() + "' is missing",
                      "this build has no engine: build with -DRUNNER_ENGINE=ON (scripts/run does)");
  }
  const std::string& type = plan.devices.type;
  if (type == "cpu" || type == "cuda") return;
  const host::ProgramEnd end = host::run_program({worker_path().string(), "--has-device", type});
  if (end.status == 0) return;
  throw diag::Error(diag::Exit::machine, "backend '" + plan.backend + "' needs a device of type '" +
                                             type + "', and this LibTorch has none");
}

Launchers::Launchers(const config::Experiment& experiment, const plan::Plan& plan,
                     const launch::ByHand& by_hand)
    : topology_(launch::arrange(plan, launch::detect(host::system_environment(), by_hand))) {
  need_mpi(plan, topology_);
  hold_gpus(experiment, plan);
  if (topology_.launchers == 1) return;
  meeting_.emplace(launch::Meeting::join(topology_, meeting_options(plan, topology_.started)));
}

/// Counts within CUDA_VISIBLE_DEVICES become the machine's own numbers; with auto_select_gpus they
/// are picked here. SLURM has given each task its own already.
void Launchers::hold_gpus(const config::Experiment& experiment, const plan::Plan& plan) {
  if (plan.devices.type != "cuda") return;
  const host::Environment& environment = host::system_environment();
  const auto visible =
      host::visible_gpus(host::system_machine().gpus(), environment.get("CUDA_VISIBLE_DEVICES"));
  const std::int64_t each = plan.devices_per_process;
  if (is_slurm(topology_)) {
    for (std::int64_t i = 0; i < topology_.ranks_here; ++i) {
      devices_.push_back(launch::devices_of_rank(static_cast<std::int64_t>(visible.size()),
                                                 topology_.local_rank + i, topology_.local_size,
                                                 each));
    }
    return;
  }
  host::GpuPicker picker(host::system_machine(), environment, host::system_clock());
  const auto first = static_cast<std::size_t>(topology_.local_rank * each);
  const auto count = static_cast<std::size_t>(topology_.ranks_here * each);
  gpus_.assign(static_cast<std::size_t>(topology_.local_size * each), -1);
  if (experiment.trainer.auto_select_gpus) {
    leases_ = picker.pick_multiple_gpus(static_cast<int>(count));
    for (std::size_t i = 0; i < count; ++i) gpus_.at(first + i) = leases_[i].index();
    return;
  }
  std::vector<int> held;
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    const auto id = static_cast<std::size_t>(plan.devices.ids.at(i));
    gpus_[i] = visible.at(id).index;
    if (i >= first && i < first + count) held.push_back(visible.at(id).index);
  }
  leases_ = picker.hold_gpus(held);
}

launch::Job Launchers::job() const {
  launch::Job job;
  job.topology = topology_;
  job.worker = worker_path();
  job.host = name_of_machine(topology_.started);
  job.gpus = gpus_;
  job.devices = devices_;
  return job;
}

launch::Outcome Launchers::run(const plan::Plan& plan,
                               std::function<plan::Plan(const launch::Failure&)> next_plan) {
  launch::Job finished = job();
  finished.plan = plan;
  finished.meeting = meeting_ ? &*meeting_ : nullptr;
  finished.next_plan = std::move(next_plan);
  return launch::supervise(finished);
}

launch::Outcome Launchers::follow(const plan::Plan& plan) {
  launch::Job followed = job();
  followed.plan = plan;
  followed.meeting = &*meeting_;
  return launch::supervise(followed);
}

}  // namespace runner::cli
