// What started this process, from the variables that each launcher sets.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "runner/diag/error.h"
#include "runner/host/text.h"
#include "runner/launch/hostlist.h"
#include "runner/launch/topology.h"

namespace runner::launch {

namespace {

constexpr std::int64_t kMostRanks = 1'000'000;
constexpr std::int64_t kLastNode = static_cast<std::int64_t>(kMostHosts) - 1;
constexpr std::int64_t kLastPort = 65'535;
constexpr std::int64_t kLastJob = 4'294'967'295;  ///< SLURM's ids have 32 bits
constexpr std::size_t kLongestAddress = 255;
constexpr std::string_view kAddressHelp =
    "give the name or address of the machine of rank 0, without a port";
/// Numbers that SLURM gives to what isn't a step of srun: the batch script, an interactive shell,
/// ….
constexpr std::int64_t kFirstSpecialStep = 0xffff'fff0;

[[noreturn]] void invalid(const std::string& message, const std::string& help) {
  throw diag::Error(diag::Exit::invalid, message, help);
}

[[noreturn]] void incompatible(const std::string& message, const std::string& help) {
  throw diag::Error(diag::Exit::incompatible, message, help);
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (!digits || error != std::errc{}) return {};
  return number;
}

/// `value` if it can be a host's name or address; "10.0.0.1:29500" is a common slip.
std::string checked_address(std::string_view name, const std::string& value) {
  const bool plain = std::all_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
  const bool has_port = std::count(value.begin(), value.end(), ':') == 1;
  if (value.empty() || !plain || has_port || value.size() > kLongestAddress ||
      value.find('/') != std::string::npos) {
    invalid(std::string(name) + " is " + host::quote(value.substr(0, kLongestAddress)) +
                ", and takes the name or address of a host",
            std::string(kAddressHelp));
  }
  return value;
}

/// The environment, with values checked as they are read.
class Variables {
 public:
  explicit Variables(const host::Environment& environment) : environment_(environment) {}

  [[nodiscard]] std::optional<std::string> text(const std::string& name) const {
    return environment_.get(name);
  }
  [[nodiscard]] bool has(const std::string& name) const { return text(name).has_value(); }

  [[nodiscard]] std::optional<std::int64_t> number(const std::string& name, std::int64_t least,
                                                   std::int64_t most) const {
    const auto value = text(name);
    if (!value) return {};
    const auto number = whole_number(*value);
    if (!number || *number < least || *number > most) {
      invalid(name + " is " + host::quote(value->substr(0, kLongestAddress)) +
                  ", and takes a whole number from " + std::to_string(least) + " to " +
                  std::to_string(most),
              "the launcher sets it; unset it if it is left over from another run");
    }
    return number;
  }
  /// Of several names the first that is set.
  [[nodiscard]] std::optional<std::int64_t> number(std::initializer_list<const char*> names,
                                                   std::int64_t least, std::int64_t most) const {
    for (const char* name : names) {
      if (const auto value = number(name, least, most)) return value;
    }
    return {};
  }
  /// As number, for what `launcher` always sets.
  [[nodiscard]] std::int64_t need(std::string_view launcher,
                                  std::initializer_list<const char*> names, std::int64_t least,
                                  std::int64_t most) const {
    if (const auto value = number(names, least, most)) return *value;
    invalid(std::string(launcher) + " started this process, and " + *names.begin() + " is not set",
            "pass on all variables of the launcher, or unset them all");
  }

  /// Number `of` among `among`, from 0.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> place(std::string_view launcher,
                                                            const char* of,
                                                            const char* among) const {
    const std::int64_t number = need(launcher, {of}, 0, kMostRanks - 1);
    const std::int64_t count = need(launcher, {among}, 1, kMostRanks);
    need_below(of, number, among, count);
    return {number, count};
  }
  static void need_below(std::string_view of, std::int64_t number, std::string_view among,
                         std::int64_t count) {
    if (number < count) return;
    invalid(std::string(of) + " is " + std::to_string(number) + " and " + std::string(among) +
                " is " + std::to_string(count) + ", and numbers go from 0 to " +
                std::to_string(count - 1),
            "the launcher sets both; unset what is left over from another run");
  }

  [[nodiscard]] std::optional<std::string> master_addr() const {
    const auto value = text("MASTER_ADDR");
    if (!value) return {};
    return checked_address("MASTER_ADDR", *value);
  }
  [[nodiscard]] std::optional<int> master_port() const {
    const auto port = number("MASTER_PORT", 1, kLastPort);
    if (!port) return {};
    return static_cast<int>(*port);
  }

 private:
  const host::Environment& environment_;
};

std::string rank_text(const Started& s) {
  return "rank " + std::to_string(s.rank) + " of " + std::to_string(s.world_size);
}

std::string meeting_text(const Started& s) {
  return s.master_addr + ":" + std::to_string(s.master_port.value_or(0));
}

/// Other launchers whose variables are there too: " (the variables of SLURM don't count)".
std::string passed_over(const Variables& variables, Starter taken) {
  std::string names;
  const auto add = [&](Starter starter, const char* mark, std::string_view name) {
    if (starter == taken || !variables.has(mark)) return;
    names += (names.empty() ? "" : " and ") + std::string(name);
  };
  add(Starter::torchrun, "TORCHELASTIC_RUN_ID", "torchrun");
  add(Starter::slurm, "SLURM_JOB_ID", "SLURM");
  add(Starter::open_mpi, "OMPI_COMM_WORLD_RANK", "Open MPI");
  return names.empty() ? "" : " (the variables of " + names + " don't count)";
}

// ---- by hand -----------------------------------------------------------------------------------

bool any(const ByHand& flags) { return flags.node_rank || flags.master_addr || flags.master_port; }

Started started_by_hand(const Variables& variables, const ByHand& flags) {
  verify(flags);
  if (!flags.node_rank) {
    invalid(std::string(flags.master_addr ? "--master-addr" : "--master-port") +
                " is given, and --node-rank is not",
            "number the nodes from 0, and give each its --node-rank");
  }
  Started s;
  s.starter = Starter::hand;
  s.rank = s.node_rank = *flags.node_rank;
  s.world_size = s.num_nodes = 0;
  s.master_addr = flags.master_addr.value_or("");
  if (flags.master_port) s.master_port = static_cast<int>(*flags.master_port);
  s.identity = "by hand " + meeting_text(s);
  s.why = "by hand, node " + std::to_string(s.node_rank) +
          (s.master_addr.empty() ? "" : ", meeting at " + meeting_text(s)) +
          passed_over(variables, s.starter);
  return s;
}

// ---- torchrun ----------------------------------------------------------------------------------

Started started_by_torchrun(const Variables& variables) {
  constexpr std::string_view kName = "torchrun";
  Started s;
  s.starter = Starter::torchrun;
  std::tie(s.rank, s.world_size) = variables.place(kName, "RANK", "WORLD_SIZE");
  std::tie(s.local_rank, s.local_size) = variables.place(kName, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  std::tie(s.node_rank, s.num_nodes) = variables.place(kName, "GROUP_RANK", "GROUP_WORLD_SIZE");
  // With --virtual-local-rank every LOCAL_RANK is 0; where nodes are alike, the place follows from
  // the rank.
  const std::int64_t place = s.rank - s.node_rank * s.local_size;
  if (s.local_rank == 0 && s.world_size == s.num_nodes * s.local_size && place >= 0 &&
      place < s.local_size) {
    s.local_rank = place;
  }
  const auto address = variables.master_addr();
  if (!address)
    invalid("torchrun started this process, and MASTER_ADDR is not set",
            "pass on all variables of the launcher, or unset them all");
  s.master_addr = *address;
  s.master_port = static_cast<int>(variables.need(kName, {"MASTER_PORT"}, 1, kLastPort));
  s.agent_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  s.identity =
      "torchrun " + variables.text("TORCHELASTIC_RUN_ID").value_or("") + " " + meeting_text(s);
  s.why = "torchrun, " + rank_text(s) + " on node " + std::to_string(s.node_rank) +
          passed_over(variables, s.starter);
  return s;
}

// ---- SLURM -------------------------------------------------------------------------------------

/// A step of srun in a job.
struct Step {
  std::int64_t job = 0, number = 0;
};

/// Nothing outside a step. A batch shell looks like a task 0 and has no step, or a special one.
std::optional<Step> step_of(const Variables& variables) {
  if (!variables.has("SLURM_PROCID") || !variables.has("SLURM_STEP_ID")) return {};
  const auto step = variables.number("SLURM_STEP_ID", 0, kLastJob);
  if (!step || *step >= kFirstSpecialStep) return {};
  return Step{
      .job = variables.need("SLURM", {"SLURM_JOB_ID", "SLURM_JOBID"}, 1, kLastJob),
      .number = *step,
  };
}

/// The step's nodes; the names of a list that is there are checked even where none is needed.
std::vector<std::string> nodes_of_step(const Variables& variables) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = variables.text(name)) return expand_hosts(*list, name);
  }
  return {};
}

std::vector<std::int64_t> tasks_of_step(const Variables& variables) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (const auto tasks = variables.text(name)) return tasks_per_node(*tasks, name);
  }
  invalid("SLURM started this process, and SLURM_STEP_TASKS_PER_NODE is not set",
          "pass on all variables of the launcher, or unset them all");
}

void refuse_heterogeneous(const Variables& variables) {
  const auto parts = variables.number("SLURM_HET_SIZE", 0, kMostRanks);
  if (!parts || *parts < 2) return;
  incompatible("this is a heterogeneous SLURM job of " + std::to_string(*parts) +
                   " parts, and a run has the same processes on all of its nodes",
               "ask for one kind of node, without ':' in sbatch or srun");
}

/// SLURM_NTASKS_PER_NODE is also what srun reads, so it may ask for more than it got.
std::optional<Started::FewTasks> few_tasks(const Variables& variables, std::int64_t tasks,
                                           std::int64_t nodes) {
  const auto per_node = variables.number("SLURM_NTASKS_PER_NODE", 1, kMostRanks);
  if (!per_node || tasks >= *per_node * nodes) return {};
  return Started::FewTasks{.tasks = tasks, .per_node = *per_node, .nodes = nodes};
}

/// The others meet at the list's first node, so task 0 must be there (`--nodelist` and arbitrary
/// distributions can put it elsewhere); what follows would be a hang.
void need_task_0_on(const std::string& first, const Variables& variables, const Started& s) {
  if (s.rank != 0) return;
  const std::string here = variables.text("SLURMD_NODENAME").value_or("");
  if (s.node_rank == 0 && (here.empty() || here == first)) return;
  incompatible("SLURM's task 0 is on " +
                   (here.empty() ? "node " + std::to_string(s.node_rank) : host::quote(here)) +
                   ", and the first node of the step is " + host::quote(first) +
                   ", where the others would look for it",
               "use srun's default distribution, or set MASTER_ADDR to the host of task 0");
}

std::string master_of_step(const Variables& variables, const Started& s,
                           const std::vector<std::string>& nodes) {
  if (const auto address = variables.master_addr()) return *address;
  // The name of a node may be unknown to the node itself, and one node needs none.
  if (s.num_nodes == 1) return "127.0.0.1";
  if (nodes.empty()) {
    invalid("SLURM started this process on " + std::to_string(s.num_nodes) +
                " nodes, and SLURM_STEP_NODELIST is not set",
            "set MASTER_ADDR to the host of task 0");
  }
  need_task_0_on(nodes.front(), variables, s);
  return nodes.front();
}

void need_equal(std::string_view what, std::int64_t count, std::string_view other_name,
                std::int64_t other) {
  if (count == other) return;
  incompatible(std::string(what) + " " + std::to_string(count) + ", and " +
                   std::string(other_name) + " " + std::to_string(other),
               "start the run with srun, and leave the variables of SLURM as it sets them");
}

Started started_by_slurm(const Variables& variables, const Step& step) {
  constexpr std::string_view kName = "SLURM";
  refuse_heterogeneous(variables);
  Started s;
  s.starter = Starter::slurm;
  s.rank = variables.need(kName, {"SLURM_PROCID"}, 0, kMostRanks - 1);
  s.world_size = variables.need(kName, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1,
                                kMostRanks);
  Variables::need_below("SLURM_PROCID", s.rank, "the number of the step's tasks", s.world_size);
  s.tasks_per_node = tasks_of_step(variables);
  s.num_nodes = static_cast<std::int64_t>(s.tasks_per_node.size());
  s.node_rank = variables.need(kName, {"SLURM_NODEID"}, 0, kLastNode);
  Variables::need_below("SLURM_NODEID", s.node_rank, "the number of the step's nodes", s.num_nodes);
  s.local_size = s.tasks_per_node[static_cast<std::size_t>(s.node_rank)];
  s.local_rank = variables.need(kName, {"SLURM_LOCALID"}, 0, kMostRanks - 1);
  Variables::need_below("SLURM_LOCALID", s.local_rank, "the number of this node's tasks",
                        s.local_size);
  need_equal("the step's tasks per node add up to",
             std::accumulate(s.tasks_per_node.begin(), s.tasks_per_node.end(), std::int64_t{0}),
             "the number of its tasks is", s.world_size);
  const std::vector<std::string> nodes = nodes_of_step(variables);
  if (!nodes.empty()) {
    need_equal("the step's list of nodes has", static_cast<std::int64_t>(nodes.size()),
               "the number of nodes with tasks is", s.num_nodes);
  }
  s.job_tasks = variables.number({"SLURM_NTASKS", "SLURM_NPROCS"}, 1, kMostRanks);
  s.job_nodes = variables.number({"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}, 1, kMostRanks);
  s.few_tasks = few_tasks(variables, s.world_size, s.num_nodes);
  s.master_addr = master_of_step(variables, s, nodes);
  s.master_port = variables.master_port();
  const std::string name = std::to_string(step.job) + "." + std::to_string(step.number);
  s.identity = "slurm " + name;
  s.port_offset = (step.job + step.number * 7919) % 10'000;
  std::string node = variables.text("SLURMD_NODENAME").value_or("");
  if (node.empty() && !nodes.empty()) node = nodes[static_cast<std::size_t>(s.node_rank)];
  s.why = "SLURM step " + name + ", task " + std::to_string(s.rank) + " of " +
          std::to_string(s.world_size) + (node.empty() ? "" : " on " + node) +
          passed_over(variables, s.starter);
  return s;
}

// ---- MPI ---------------------------------------------------------------------------------------

/// MPI numbers no nodes; where all have as many processes, numbered node by node, the number
/// follows.
void derive_node(Started& s) {
  const std::string fix = "mpirun -np " + std::to_string(s.world_size) +
                          " --map-by ppr:" + std::to_string(s.local_size) + ":node …";
  if (s.world_size % s.local_size != 0) {
    incompatible("MPI started " + std::to_string(s.world_size) + " processes, " +
                     std::to_string(s.local_size) +
                     " of them on this machine, and a run has as many on each",
                 "start as many on each machine, for example: mpirun --map-by ppr:N:node …");
  }
  if (s.rank % s.local_size != s.local_rank) {
    incompatible("MPI's rank " + std::to_string(s.rank) + " is process " +
                     std::to_string(s.local_rank) + " of " + std::to_string(s.local_size) +
                     " on its machine, and ranks must be numbered machine by machine",
                 "for example: " + fix);
  }
  s.node_rank = s.rank / s.local_size;
  s.num_nodes = s.world_size / s.local_size;
}

/// The address of mpirun's machine: "1234.0;tcp://10.77.0.1,192.168.0.2:35741" -> 10.77.0.1.
std::optional<std::string> address_in(const std::string& uri) {
  constexpr std::string_view kMark = ";tcp://";
  const std::size_t mark = uri.find(kMark);
  if (mark == std::string::npos) return {};
  const std::size_t from = mark + kMark.size();
  const std::size_t end = uri.find_first_of(",:", from);
  const bool dotted = end != std::string::npos && end > from &&
                      std::all_of(uri.begin() + static_cast<std::ptrdiff_t>(from),
                                  uri.begin() + static_cast<std::ptrdiff_t>(end),
                                  [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  if (!dotted) return {};
  return uri.substr(from, end - from);
}

[[noreturn]] void no_meeting(std::string_view variable, std::string_view flag) {
  invalid("MPI started this process without saying where its ranks can meet, and " +
              std::string(variable) + " is not set",
          "set it for all of them: mpirun " + std::string(flag) + " …");
}

Started started_by_open_mpi(const Variables& variables) {
  constexpr std::string_view kName = "Open MPI";
  Started s;
  s.starter = Starter::open_mpi;
  std::tie(s.rank, s.world_size) =
      variables.place(kName, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  std::tie(s.local_rank, s.local_size) =
      variables.place(kName, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  derive_node(s);
  const std::string uri = variables.text("OMPI_MCA_orte_hnp_uri").value_or("");
  const auto named = variables.master_addr();
  if (s.num_nodes == 1) {
    s.master_addr = "127.0.0.1";
  } else if (named) {
    s.master_addr = *named;
  } else if (const auto address = address_in(uri)) {
    s.master_addr = *address;
  } else {
    no_meeting("MASTER_ADDR", "-x MASTER_ADDR=HOST");
  }
  s.master_port = variables.master_port();
  const std::string job = variables.text("PMIX_NAMESPACE").value_or(uri);
  if (job.empty() && !s.master_port && s.world_size > 1) {
    no_meeting("MASTER_PORT", "-x MASTER_PORT=29500");
  }
  s.identity = "open mpi " + (job.empty() ? meeting_text(s) : job);
  s.why = "Open MPI, " + rank_text(s) + " on machine " + std::to_string(s.node_rank) +
          passed_over(variables, s.starter);
  return s;
}

Started started_by_mpi(const Variables& variables) {
  constexpr std::string_view kName = "MPI";
  Started s;
  s.starter = Starter::mpi;
  std::tie(s.rank, s.world_size) = variables.place(kName, "PMI_RANK", "PMI_SIZE");
  if (variables.has("MPI_LOCALNRANKS")) {
    std::tie(s.local_rank, s.local_size) =
        variables.place(kName, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    derive_node(s);
  } else if (variables.has("PMI_LOCAL_SIZE")) {
    std::tie(s.local_rank, s.local_size) =
        variables.place(kName, "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE");
    derive_node(s);
  } else {
    s.local_size = s.num_nodes = 0;
  }
  const auto named = variables.master_addr();
  if (s.num_nodes == 1) {
    s.master_addr = "127.0.0.1";
  } else if (named) {
    s.master_addr = *named;
  } else if (s.world_size > 1) {
    no_meeting("MASTER_ADDR", "-genv MASTER_ADDR HOST");
  }
  s.master_port = variables.master_port();
  // Only Cray's launcher names the run; a port alone can't tell two runs apart, so it must be
  // given.
  const std::string job = variables.text("PALS_APID").value_or("");
  if (job.empty() && !s.master_port && s.world_size > 1) {
    no_meeting("MASTER_PORT", "-genv MASTER_PORT 29500");
  }
  s.identity = "mpi " + (job.empty() ? meeting_text(s) : job);
  s.why = "MPI, " + rank_text(s) + passed_over(variables, s.starter);
  return s;
}

// ---- RANK and its company, and nobody ----------------------------------------------------------

/// Nothing when they say nothing of other processes. All that are set must make sense all the same:
/// half a set is a launcher's whose other half was lost.
std::optional<Started> started_by_variables(const Variables& variables) {
  const auto rank = variables.number("RANK", 0, kMostRanks - 1);
  const auto world_size = variables.number("WORLD_SIZE", 1, kMostRanks);
  const auto address = variables.master_addr();
  const auto port = variables.master_port();
  if (rank && world_size) Variables::need_below("RANK", *rank, "WORLD_SIZE", *world_size);
  if (!rank || !world_size) return {};
  if (!address || !port) {
    if (*world_size == 1) return {};
    invalid("RANK is " + std::to_string(*rank) + " and WORLD_SIZE is " +
                std::to_string(*world_size) + ", and " + (address ? "MASTER_PORT" : "MASTER_ADDR") +
                " is not set",
            "set MASTER_ADDR and MASTER_PORT too, or unset RANK and WORLD_SIZE");
  }
  Started s;
  s.starter = Starter::variables;
  s.rank = *rank;
  s.world_size = *world_size;
  s.master_addr = *address;
  s.master_port = *port;
  const auto local_rank = variables.number("LOCAL_RANK", 0, kMostRanks - 1);
  const auto local_size = variables.number("LOCAL_WORLD_SIZE", 1, kMostRanks);
  if (local_rank.has_value() != local_size.has_value()) {
    const bool has_rank = local_rank.has_value();
    invalid(std::string(has_rank ? "LOCAL_RANK" : "LOCAL_WORLD_SIZE") + " is " +
                std::to_string(has_rank ? *local_rank : *local_size) + ", and " +
                (has_rank ? "LOCAL_WORLD_SIZE" : "LOCAL_RANK") + " is not set",
            "set both, or none of them");
  }
  s.local_size = s.num_nodes = 0;
  if (local_size) {
    Variables::need_below("LOCAL_RANK", *local_rank, "LOCAL_WORLD_SIZE", *local_size);
    s.local_rank = *local_rank;
    s.local_size = *local_size;
    if (s.world_size % s.local_size != 0) {
      incompatible("WORLD_SIZE is " + std::to_string(s.world_size) + " and LOCAL_WORLD_SIZE is " +
                       std::to_string(s.local_size) +
                       ", and a run has as many processes on each node",
                   "make WORLD_SIZE a multiple of LOCAL_WORLD_SIZE");
    }
    s.num_nodes = s.world_size / s.local_size;
    const auto node = variables.number({"NODE_RANK", "GROUP_RANK"}, 0, kLastNode);
    s.node_rank = node.value_or(s.rank / s.local_size);
    Variables::need_below("NODE_RANK", s.node_rank, "the number of nodes", s.num_nodes);
  }
  s.identity = "variables " + meeting_text(s);
  s.why = "RANK, WORLD_SIZE and MASTER_ADDR, " + rank_text(s) + ", meeting at " + meeting_text(s) +
          passed_over(variables, s.starter);
  return s;
}

Started started_by_nobody(const Variables& variables) {
  Started s;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const auto list = variables.text(name)) (void)expand_hosts(*list, name);
  }
  const auto job = variables.number({"SLURM_JOB_ID", "SLURM_JOBID"}, 1, kLastJob);
  if (!job) return s;
  s.job_tasks = variables.number({"SLURM_NTASKS", "SLURM_NPROCS"}, 1, kMostRanks);
  s.job_nodes =
      variables.number({"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}, 1, kMostRanks).value_or(1);
  if (s.job_tasks) s.few_tasks = few_tasks(variables, *s.job_tasks, *s.job_nodes);
  s.why = "in a shell of SLURM job " + std::to_string(*job) +
          ", not a step of it: the run starts its own processes";
  return s;
}

}  // namespace

std::string_view to_text(Starter starter) {
  switch (starter) {
    case Starter::nobody:
      return "nobody";
    case Starter::hand:
      return "hand";
    case Starter::torchrun:
      return "torchrun";
    case Starter::variables:
      return "variables";
    case Starter::slurm:
      return "slurm";
    case Starter::open_mpi:
      return "open_mpi";
    case Starter::mpi:
      return "mpi";
  }
  return "nobody";
}

void verify(const ByHand& by_hand) {
  const auto need = [](std::string_view flag, std::optional<std::int64_t> value, std::int64_t least,
                       std::int64_t most) {
    if (!value || (*value >= least && *value <= most)) return;
    throw diag::Error(diag::Exit::invalid, std::string(flag) + " takes " + std::to_string(least) +
                                               " to " + std::to_string(most) + ", not " +
                                               std::to_string(*value));
  };
  need("--node-rank", by_hand.node_rank, 0, kLastNode);
  need("--master-port", by_hand.master_port, 1, kLastPort);
  if (by_hand.master_addr) (void)checked_address("--master-addr", *by_hand.master_addr);
}

Started detect(const host::Environment& environment, const ByHand& by_hand) {
  const Variables variables(environment);
  if (any(by_hand)) return started_by_hand(variables, by_hand);
  if (variables.has("TORCHELASTIC_RUN_ID")) return started_by_torchrun(variables);
  if (const auto step = step_of(variables)) return started_by_slurm(variables, *step);
  if (variables.has("OMPI_COMM_WORLD_RANK")) return started_by_open_mpi(variables);
  if (variables.has("PMI_RANK") && variables.has("PMI_SIZE")) return started_by_mpi(variables);
  if (auto started = started_by_variables(variables)) return *std::move(started);
  return started_by_nobody(variables);
}

bool in_slurm_step(const host::Environment& environment) {
  if (!environment.get("SLURM_PROCID")) return false;
  const auto step = whole_number(environment.get("SLURM_STEP_ID").value_or(""));
  return step.has_value() && *step < kFirstSpecialStep;
}

std::optional<std::int64_t> slurm_gpus_on_node(const host::Environment& environment) {
  if (!in_slurm_step(environment)) return {};
  return Variables(environment).number("SLURM_GPUS_ON_NODE", 0, 1024);
}

}  // namespace runner::launch
