#include "runner/launch/crew.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "runner/host/machine.h"

namespace runner::launch {

namespace {

std::string join(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text;
}

bool in_slurm(const CrewPlan& crew) { return crew.topology.started.starter == Starter::slurm; }

/// The GPUs that a rank gets to see, by the machine's own numbers.
std::vector<std::int64_t> gpus_of(const CrewPlan& crew, std::int64_t local_rank) {
  const std::string& backend = crew.plan.backend;
  if (backend != "ddp" && backend != "horovod") return crew.gpus;
  return {crew.gpus.at(static_cast<std::size_t>(local_rank))};
}

void add_devices(const CrewPlan& crew, std::int64_t index, std::vector<std::string>& all) {
  std::vector<std::int64_t> visible;
  if (crew.plan.devices.type == "cuda" && in_slurm(crew)) {
    // SLURM has bound the GPUs; another mask would take them away.
    visible = crew.devices.at(static_cast<std::size_t>(index));
  } else if (crew.plan.devices.type == "cuda") {
    const std::vector<std::int64_t> gpus = gpus_of(crew, crew.topology.local_rank + index);
    all.push_back("CUDA_VISIBLE_DEVICES=" + join(gpus));
    all.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
    visible.resize(gpus.size());
    std::iota(visible.begin(), visible.end(), 0);
  }
  all.push_back("RUNNER_DEVICES=" + join(visible));
}

}  // namespace

std::vector<std::string> worker_environment(const CrewPlan& crew, std::int64_t index,
                                            int heartbeat_fd, int cores, bool is_bound) {
  const Topology& t = crew.topology;
  std::vector<std::string> all = {
      "RANK=" + std::to_string(t.first_rank + index),
      "LOCAL_RANK=" + std::to_string(t.local_rank + index),
      "WORLD_SIZE=" + std::to_string(t.world_size),
      "LOCAL_WORLD_SIZE=" + std::to_string(t.local_size),
      "GROUP_RANK=" + std::to_string(t.node_rank),
      "RUNNER_ADDRESS=" + crew.address,
      "RUNNER_ATTEMPT=" + std::to_string(crew.attempt),
      "RUNNER_HEARTBEAT_FD=" + std::to_string(heartbeat_fd),
      "RUNNER_HEARTBEAT_SLOT=" + std::to_string(index),
      "RUNNER_HEARTBEAT_SLOTS=" + std::to_string(t.ranks_here),
  };
  if (t.world_size > 1) {
    all.push_back("MASTER_ADDR=" + crew.store.host);
    all.push_back("MASTER_PORT=" + std::to_string(crew.store.port));
    all.push_back("RUNNER_STORE_PREFIX=" + crew.store.prefix);
    if (t.first_rank + index == 0)
      all.push_back("RUNNER_STORE_FD=" + std::to_string(crew.store_fd));
  }
  add_devices(crew, index, all);
  // Else every process takes all cores, and they only get in each other's way.
  if (crew.plan.devices.type == "cpu" && t.local_size > 1 &&
      std::getenv("OMP_NUM_THREADS") == nullptr) {
    // A launcher that was bound to cores of its own shares them with nobody.
    const std::int64_t sharers = is_bound ? t.ranks_here : t.local_size;
    const std::int64_t threads = std::max<std::int64_t>(1, cores / sharers);
    all.push_back("OMP_NUM_THREADS=" + std::to_string(threads));
  }
  return all;
}

Crew::Crew(const CrewPlan& plan, const sigset_t& mask)
    : first_rank_(plan.topology.first_rank),
      page_(host::HeartbeatPage::create(static_cast<std::size_t>(plan.topology.ranks_here))) {
  const int cores = host::system_machine().cpu_count();
  const bool is_bound = cores < sysconf(_SC_NPROCESSORS_ONLN);
  workers_.reserve(page_.ranks());
  for (std::int64_t i = 0; i < plan.topology.ranks_here; ++i) {
    const std::int64_t rank = first_rank_ + i;
    WorkerStart start{.program = plan.worker,
                      .plan_file = plan.plan_file,
                      .environment = worker_environment(plan, i, page_.fd(), cores, is_bound),
                      .inherited = {page_.fd()},
                      .log = {}};
    if (rank == 0 && plan.store_fd >= 0) start.inherited.push_back(plan.store_fd);
    if (rank > 0) {
      start.log =
          std::filesystem::path(plan.plan.run_folder) / ("rank-" + std::to_string(rank) + ".log");
    }
    workers_.emplace_back(start, mask);
  }
}

Crew::~Crew() { kill(); }

std::vector<RankEnd> Crew::take_ends() {
  std::vector<RankEnd> ends;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const std::optional<int> status = workers_[i].take_end();
    if (!status) continue;
    const host::Heartbeat& beat = page_[i];
    const Sign last{.beats = beat.beats, .step = beat.step, .phase = beat.phase};
    ends.push_back({.rank = first_rank_ + static_cast<std::int64_t>(i),
                    .status = *status,
                    .record = workers_[i].failure(),
                    .last = last});
  }
  return ends;
}

std::vector<Sign> Crew::signs() const {
  std::vector<Sign> signs(workers_.size());
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const host::Heartbeat& beat = page_[i];
    signs[i] = {.beats = beat.beats,
                .step = beat.step,
                .phase = beat.phase,
                .stopped = workers_[i].running() && workers_[i].stopped()};
  }
  return signs;
}

void Crew::signal(int signal) const {
  for (const WorkerProcess& worker : workers_) worker.signal(signal);
}

void Crew::kill() const {
  for (const WorkerProcess& worker : workers_) worker.kill_group();
}

}  // namespace runner::launch
