// `runner` under a real SLURM of two nodes, n1 and n2, with two processors and two GPUs (in name
// only) each.
#include <doctest/doctest.h>

#include <map>

#include "runner/store/checkpoint.h"
#include "tests/lab/lab.h"

using namespace runner;
using namespace runner::lab;
namespace fs = std::filesystem;

namespace {

Arguments nodes(int count, int processes) {
  return {"trainer.num_nodes=" + std::to_string(count),
          "trainer.num_processes=" + std::to_string(processes)};
}

Arguments runner_with(const Arguments& arguments) {
  return Arguments{e2e::runner_path(), "t.toml"} + arguments;
}

std::string command_line(const Arguments& arguments) {
  std::string text;
  for (const std::string& a : arguments) text += (text.empty() ? "" : " ") + a;
  return text;
}

/// What came of a batch job.
struct JobEnd {
  int status = -1;
  std::string out;  ///< standard output and error
};

/// A batch job whose script has these lines, until it ends.
class BatchJob {
 public:
  BatchJob(const Bench& bench, const Arguments& options, const std::string& script)
      : bench_(bench), id_file_(bench.path() / "job"), out_(bench.path() / "job.out") {
    bench.write("job.sh", "#!/bin/bash\n" + script);
    const e2e::Result result =
        bench.run(Arguments{"sbatch", "--parsable", "--output", out_, "--no-requeue"} + options +
                  Arguments{"job.sh"});
    REQUIRE_MESSAGE(result.status == 0, result.err);
    id_ = result.out.substr(0, result.out.find_first_of(";\n"));
  }
  BatchJob(const BatchJob&) = delete;
  BatchJob& operator=(const BatchJob&) = delete;
  ~BatchJob() {
    if (!ended_) (void)bench_.run({"scancel", "--signal=KILL", "--full", id_});
  }

  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] std::string output() const { return e2e::read_file(out_); }
  void signal(const Arguments& arguments) const {
    const e2e::Result result = bench_.run(Arguments{"scancel"} + arguments + Arguments{id_});
    REQUIRE_MESSAGE(result.status == 0, result.err);
  }
  /// Waits for it, and for all that it wrote.
  JobEnd end(double seconds = 120) {
    std::string job;
    REQUIRE(comes_true(
        [&] {
          job = bench_.run({"scontrol", "show", "job", id_}).out;
          for (const char* state : {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"})
            if (has(job, std::string("JobState=") + state)) return false;
          return true;
        },
        seconds));
    ended_ = true;
    const std::size_t at = job.find("ExitCode=");
    REQUIRE(at != std::string::npos);
    const int code = std::stoi(job.substr(at + 9));
    const int signal = std::stoi(job.substr(job.find(':', at) + 1));
    return {signal != 0 ? 128 + signal : code, output()};
  }

 private:
  const Bench& bench_;
  fs::path id_file_, out_;
  std::string id_;
  bool ended_ = false;
};

std::int64_t newest_step(const fs::path& run) {
  const std::vector<std::int64_t> steps = store::CheckpointFolder(run / "checkpoints").list();
  REQUIRE_FALSE(steps.empty());
  return steps.front();
}

/// Resumes the run for ten more steps, and does as many without a stop: both end with the same
/// bits.
void need_same_bits_as_without_a_stop(const Bench& bench, const Arguments& shape) {
  const fs::path run = bench.only_run();
  const std::string steps = "trainer.max_steps=" + std::to_string(newest_step(run) + 10);
  const e2e::Result resumed =
      bench.run(Arguments{e2e::runner_path(), "--resume", run} + shape + Arguments{steps});
  CHECK_MESSAGE(resumed.status == 0, resumed.err);
  const Bench whole(kLong);
  const e2e::Result reference = whole.run(runner_with(shape) + Arguments{steps});
  CHECK_MESSAGE(reference.status == 0, reference.err);
  CHECK(weights_hash(run) == weights_hash(whole.only_run()));
}

/// The workers by rank; of the runs that are going on.
std::map<std::string, pid_t> workers() {
  std::map<std::string, pid_t> all;
  for (const pid_t pid : processes_with("runner-worker")) all[variable_of(pid, "RANK")] = pid;
  return all;
}

/// `runner` itself, as SLURM's task of that number; 0 if there is none.
pid_t launcher_of(const std::string& task) {
  for (const pid_t pid : processes_with(e2e::runner_path())) {
    const bool is_worker = variable_of(pid, "RANK") != "(not set)";
    if (!is_worker && variable_of(pid, "SLURM_PROCID") == task) return pid;
  }
  return 0;
}

}  // namespace

TEST_CASE("slurm: srun starts one launcher for each rank, which train as one machine does") {
  const Bench bench;
  BatchJob job(bench, {"--nodes=2", "--ntasks-per-node=2"},
               "srun " + command_line(runner_with(nodes(2, 2))) + "\n");
  const JobEnd end = job.end();
  CHECK(end.status == 0);
  CHECK(has(end.out, "SLURM step " + job.id() + ".0"));
  CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(4));
}

TEST_CASE("slurm: srun starts one launcher for each node, which starts the node's ranks") {
  const Bench bench;
  BatchJob job(bench, {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"},
               "srun " + command_line(runner_with(nodes(2, 2))) + "\n");
  const JobEnd end = job.end();
  CHECK(end.status == 0);
  CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(4));
}

TEST_CASE("slurm: CUDA_VISIBLE_DEVICES stays as SLURM sets it") {
  const Bench bench(kLong);
  Arguments gpus;
  std::string expected;
  SUBCASE("a node's GPUs for all of its tasks") {
    gpus = {"--gpus-per-node=2"};
    expected = "0,1";
  }
  SUBCASE("one for each task") { gpus = {"--gpus-per-task=1"}; }
  Running srun =
      bench.start(Arguments{"srun", "--job-name=lab", "--nodes=2", "--ntasks-per-node=2"} + gpus +
                  runner_with(nodes(2, 2)));
  REQUIRE(comes_true([&] { return bench.trains() || srun.ended(); }));
  const std::map<std::string, pid_t> ranks = workers();
  CHECK(ranks.size() == 4);
  for (const auto& [rank, pid] : ranks) {
    const std::string seen = variable_of(pid, "CUDA_VISIBLE_DEVICES");
    CAPTURE(rank);
    if (!expected.empty()) CHECK(seen == expected);
    CHECK(seen != "(not set)");
    const std::string stat = e2e::read_file("/proc/" + std::to_string(pid) + "/stat");
    const pid_t launcher = std::stoi(stat.substr(stat.rfind(')') + 4));
    CHECK(seen == variable_of(launcher, "CUDA_VISIBLE_DEVICES"));
    CHECK(variable_of(launcher, "SLURM_PROCID") == rank);
  }
  CHECK(bench.run({"scancel", "--signal=TERM", "--name=lab"}).status == 0);
  const e2e::Result result = srun.result();
  CHECK_MESSAGE(result.status == 143, result.err);
}

TEST_CASE("slurm: T76: fewer tasks than the job asked for a node end at once, with both numbers") {
  const Bench bench;
  for (const bool in_step : {false, true}) {
    BatchJob job(bench, {"-n1", "--ntasks-per-node=2"},
                 "echo $SLURM_NTASKS $SLURM_NTASKS_PER_NODE\nstart=$(date +%s%N)\n" +
                     std::string(in_step ? "srun " : "") + command_line(runner_with(nodes(1, 2))) +
                     "\nstatus=$?\necho took $((($(date +%s%N) - start) / 1000000)) ms\n"
                     "exit $status\n");
    const JobEnd end = job.end();
    CHECK(end.status == 3);
    CHECK(has(end.out, "SLURM_NTASKS is 1, and SLURM_NTASKS_PER_NODE is 2"));
    CHECK(has(end.out, "srun --nodes=1 --ntasks-per-node=2 runner t.toml"));
    const std::size_t took = end.out.find("took ");
    REQUIRE(took != std::string::npos);
    CHECK(std::stoi(end.out.substr(took + 5)) < 1000);
  }
}

TEST_CASE("slurm: a step of another size than the run ends at once, with both numbers") {
  const Bench bench;
  const e2e::Result result =
      bench.run(Arguments{"srun", "--nodes=2", "--ntasks-per-node=1"} + runner_with(nodes(1, 4)));
  CHECK(result.status == 3);
  CHECK(has(result.err, "2 nodes"));
  CHECK(has(result.err, "trainer.num_nodes is 1"));
  const e2e::Result ranks =
      bench.run(Arguments{"srun", "--nodes=1", "--ntasks-per-node=2"} + runner_with(nodes(1, 4)));
  CHECK(ranks.status == 3);
  CHECK(has(ranks.err, "one of 2"));
  CHECK(has(ranks.err, "4 processes"));
  CHECK(has(ranks.err, "srun --nodes=1 --ntasks-per-node=4"));
  CHECK(bench.runs().empty());
}

TEST_CASE("slurm: tasks with different experiments are refused on all sides") {
  const Bench bench;
  const std::string script =
      command_line(runner_with(nodes(1, 2))) + " optimizer.lr=0.00$((SLURM_PROCID + 1))";
  const e2e::Result result = bench.run({"srun", "--label", "-n2", "bash", "-c", script});
  CHECK(result.status == 3);
  CHECK(has(result.err, "0: "));
  CHECK(has(result.err, "1: "));
  CHECK(count(result.err, "launcher 1 (on n1) has another experiment than the leader (on n1)") ==
        2);
}

TEST_CASE("slurm: a warning about the experiment is shown once, not once a task") {
  const Bench bench(kShort + "[slurm]\npartition = \"debug\"\n");
  const e2e::Result result = bench.run(Arguments{"srun", "-n2"} + runner_with(nodes(1, 2)));
  CHECK_MESSAGE(result.status == 0, result.err);
  CHECK(count(result.err, "warning") == 1);
}

TEST_CASE("slurm: T77: four tasks with a GPU each are one run of four, not four runs") {
  const Bench bench(kLong);
  Running step =
      bench.start(Arguments{"salloc", "--nodes=1", "-n2", "--gpus-per-node=2", "--job-name=lab",
                            "srun", "--overcommit", "-n4", "--gpu-bind=single:1"} +
                  runner_with(nodes(1, 4)));
  REQUIRE(comes_true([&] { return bench.trains() || step.ended(); }));
  const std::map<std::string, pid_t> ranks = workers();
  CHECK(ranks.size() == 4);
  CHECK(processes_with("runner-worker").size() == 4);
  for (const auto& [rank, pid] : ranks) CHECK(variable_of(pid, "WORLD_SIZE") == "4");
  CHECK(bench.run({"scancel", "--signal=TERM", "--name=lab"}).status == 0);
  const e2e::Result result = step.result();
  CHECK_MESSAGE(result.status == 143, result.err);
  CHECK(bench.runs().size() == 1);
}

TEST_CASE("slurm: T79: an interactive shell starts its own processes, and the plan says why") {
  Bench bench;
  const std::string command = command_line(runner_with(nodes(1, 2)));
  SUBCASE("salloc") {
    const e2e::Result result =
        bench.run({"salloc", "--nodes=1", "-n2", "--job-name=train", "bash", "-c", command});
    CHECK_MESSAGE(result.status == 0, result.err);
    CHECK(has(result.out, "not a step of it"));
  }
  SUBCASE("srun --pty bash, of any name") {
    for (const std::string name : {"bash", "train"}) {
      const e2e::Result result =
          bench.run({"script", "--quiet", "--return", "--command",
                     "srun --job-name=" + name + " --pty bash -c '" + command + "'", "/dev/null"});
      CHECK(result.status == 0);
      CHECK(has(result.out, "SLURM step"));
    }
  }
  SUBCASE("the shell of sbatch") {
    BatchJob job(bench, {"-n2"}, command + "\n");
    const JobEnd end = job.end();
    CHECK(end.status == 0);
    CHECK(has(end.out, "not a step of it"));
  }
  for (const fs::path& run : bench.runs()) CHECK(weights_hash(run) == weights_on_one_machine(2));
  CHECK_FALSE(bench.runs().empty());
}

TEST_CASE("slurm: a shell on a job of two nodes is told to use srun") {
  const Bench bench;
  const e2e::Result result = bench.run(Arguments{"salloc", "--nodes=2"} + runner_with(nodes(2, 2)));
  CHECK(result.status == 3);
  CHECK(has(result.err, "srun --nodes=2 --ntasks-per-node=2 runner t.toml"));
}

TEST_CASE("slurm: T80: a machine that merely has SLURM hears nothing of it") {
  const Bench bench;
  const e2e::Result result = bench.run(runner_with(nodes(1, 2)));
  CHECK(result.status == 0);
  CHECK_FALSE(has(result.out + result.err, "SLURM"));
  CHECK_FALSE(has(result.out + result.err, "slurm"));
}

TEST_CASE(
    "slurm: T81: two jobs at once on the same nodes keep apart, with the same first port too") {
  const Bench first;
  const Bench second;
  const std::string srun = "srun env SLURM_JOB_ID=";
  const std::string command = " " + command_line(runner_with(nodes(2, 1)));
  const Arguments shape = {"--nodes=2", "--ntasks-per-node=1"};
  BatchJob one(first, shape, srun + "70001" + command + "\n");
  BatchJob two(second, shape, srun + "80001" + command + "\n");
  const JobEnd end = one.end();
  CHECK(end.status == 0);
  const JobEnd other = two.end();
  CHECK_MESSAGE(other.status == 0, other.out);
  CHECK(weights_hash(first.only_run()) == weights_hash(second.only_run()));
}

TEST_CASE("slurm: two steps of one job run beside each other") {
  const Bench bench;
  const std::string step = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --exact " +
                           command_line(runner_with(nodes(2, 1)));
  BatchJob job(bench, {"--nodes=2", "--ntasks-per-node=2"},
               step + " name=a & first=$!\n" + step + " name=b || exit $?\nwait $first\n");
  const JobEnd end = job.end();
  CHECK(end.status == 0);
  CHECK(fs::exists(bench.path() / "runs/a"));
  CHECK(fs::exists(bench.path() / "runs/b"));
}

TEST_CASE("slurm: the batch script of docs/launching.md trains") {
  const std::string page = e2e::read_file(e2e::source_path("docs/launching.md"));
  const std::size_t start = page.find("#!/bin/bash");
  REQUIRE(start != std::string::npos);
  const Bench bench;
  bench.write("digits.toml", e2e::read_file(e2e::source_path("configs/digits.toml")));
  bench.write("digits.sh", page.substr(start, page.find("```", start) - start));
  const std::string path =
      "PATH=" + fs::path(e2e::runner_path()).parent_path().string() + ":" + std::getenv("PATH");
  const e2e::Result job = bench.run({"env", path, "sbatch", "--parsable", "--wait", "digits.sh"});
  const std::string id = job.out.substr(0, job.out.find_first_of(";\n"));
  const std::string out = e2e::read_file(bench.path() / ("digits-" + id + ".out"));
  CHECK_MESSAGE(job.status == 0, job.err, out);
  CHECK(has(out, "2 nodes, 4 processes, ddp"));
  CHECK(fs::exists(bench.path() / "runs/digits"));
}

TEST_CASE("slurm: a task that is killed ends the step in seconds, without --kill-on-bad-exit") {
  const Bench bench(kLong);
  Running srun =
      bench.start(Arguments{"srun", "--nodes=2", "--ntasks-per-node=2"} + runner_with(nodes(2, 2)));
  REQUIRE(comes_true([&] { return bench.trains(); }));
  pid_t victim = 0;
  std::string expected;
  SUBCASE("a worker") {
    victim = workers().at("2");
    expected = "error: rank 2 (on n2) was ended by signal 9 (SIGKILL)";
  }
  SUBCASE("the launcher of a rank") {
    victim = launcher_of("2");
    expected = "error: launcher 2 (n2, rank 2) is gone";
  }
  SUBCASE("the leader") {
    victim = launcher_of("0");
    expected = "error: the leader (n1) is gone";
  }
  REQUIRE(victim != 0);
  const auto start = std::chrono::steady_clock::now();
  kill(victim, SIGKILL);
  const e2e::Result result = srun.result();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 10);
  CHECK(result.status != 0);
  CHECK_MESSAGE(has(result.err, expected), result.err);
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 2));
}

TEST_CASE("slurm: scancel saves a checkpoint on the way out") {
  const Bench bench(kLong);
  BatchJob job(bench, {"--nodes=2", "--ntasks-per-node=2"},
               "srun " + command_line(runner_with(nodes(2, 2))) + "\n");
  REQUIRE(comes_true([&] { return bench.trains(); }));
  job.signal({});
  const JobEnd end = job.end();
  CHECK(newest_step(bench.only_run()) > 0);
  CHECK(manifest(bench.only_run()).at("status") == "interrupted");
  CHECK(has(end.out, "go on with: runner --resume"));
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 5));
}

TEST_CASE("slurm: T83: SIGTERM in a job saves, ends with 143, and the run resumes bit for bit") {
  const Bench bench(kLong);
  SUBCASE("to the batch script, which is runner") {
    BatchJob job(bench, {"-n2"}, "exec " + command_line(runner_with(nodes(1, 2))) + "\n");
    REQUIRE(comes_true([&] { return bench.trains(); }));
    job.signal({"--batch", "--signal=TERM"});
    const JobEnd end = job.end();
    CHECK(end.status == 143);
    CHECK(has(end.out, "go on with: runner --resume"));
    need_same_bits_as_without_a_stop(bench, nodes(1, 2));
  }
  SUBCASE("to the tasks of the step") {
    BatchJob job(bench, {"-n2"}, "srun " + command_line(runner_with(nodes(1, 2))) + "\n");
    REQUIRE(comes_true([&] { return bench.trains(); }));
    job.signal({"--signal=TERM"});
    const JobEnd end = job.end();
    CHECK(end.status == 143);
    need_same_bits_as_without_a_stop(bench, nodes(1, 2));
  }
  SUBCASE("before the time limit") {
    BatchJob job(bench, {"-n2", "--time=1", "--signal=B:TERM@20"},
                 "exec " + command_line(runner_with(nodes(1, 2))) + "\n");
    const JobEnd end = job.end(150);
    CHECK(end.status == 143);
    CHECK(newest_step(bench.only_run()) > 0);
  }
}
