// What is left of a run of several ranks when one of them fails, hangs or is signalled: one reason,
// quickly, and no process.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/dist/bench.h"

using namespace runner;
using namespace runner::dist;

namespace {

const std::string kEndless =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [32]\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 20\n"
    "[trainer]\nmax_epochs = 1000000\nthreads = 1\n"
    "[optimizer]\nname = \"sgd\"\nlr = 0.05\n";

/// Small, short, and with all that a restart has to bring back.
const std::string kShort =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [32]\ndropout = 0.2\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 20\n"
    "[trainer]\nmax_epochs = 2\nthreads = 1\n"
    "[optimizer]\nname = \"adamw\"\nlr = 1e-3\n"
    "[checkpoint]\nevery_n_steps = 5\n";

Arguments quietly(int ranks, const Arguments& more = {}) {
  Arguments all = {"t.toml", "--quiet", set("trainer.num_processes", ranks)};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// "rank 1 (on somewhere)" as a message begins with it.
std::string named(int rank) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return "error: rank " + std::to_string(rank) + " (on " + host.data() + ")";
}

/// The failure is all that was printed: its message, what to do, and where to read on, if the rank
/// came so far as to have a log.
void check_one_block(const e2e::Result& result, int rank, const std::string& message,
                     bool has_log = true) {
  CAPTURE(result.out);
  CAPTURE(result.err);
  const std::string line = first_line(result.err);
  CHECK(line.starts_with(named(rank)));
  CHECK(has(line, message));
  CHECK_FALSE(has(result.err, "onnection"));
  const std::size_t log = result.err.find("\n  log: runs/t/");
  const std::string name = rank == 0 ? "runner.log" : "rank-" + std::to_string(rank) + ".log";
  if (has_log || log != std::string::npos) CHECK(result.err.ends_with("/" + name + "\n"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') ==
        (log == std::string::npos ? 2 : 3));
}

/// The tail of a list of times.
double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::ceil(last * share))];
}

void report_times(const std::string& what, const std::vector<double>& seconds) {
  MESSAGE(what << ": " << seconds.size() << " times, p50 " << percentile(seconds, 0.5) << " s, p95 "
               << percentile(seconds, 0.95) << " s, max " << percentile(seconds, 1) << " s");
}

/// Signals one rank. Checks, not requirements, in what happens while a run goes on: leaving that by
/// an exception would leave the run.
Clock::time_point signal_rank(const Bench& t, int rank, int signal) {
  std::optional<pid_t> pid;
  CHECK(wait_for([&] { return (pid = worker_of_rank(t.folder.path(), rank)).has_value(); }));
  const auto now = Clock::now();
  if (pid) kill(*pid, signal);
  return now;
}

/// A port that nobody listens at right now.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(bind(fd, any, size) == 0);
  REQUIRE(getsockname(fd, any, &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

/// Connects and sends noise until it is all sent, or refused; whether there was somebody.
bool send_noise(int port, std::size_t bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const timeval limit{.tv_sec = 0, .tv_usec = 200000};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  std::string noise(std::min<std::size_t>(bytes, 1 << 16), '\0');
  for (char& c : noise) c = static_cast<char>(random_number(0, 255));
  for (std::size_t sent = 0; connected && sent < bytes;) {
    const ssize_t n = send(fd, noise.data(), std::min(noise.size(), bytes - sent), MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<std::size_t>(n);
  }
  close(fd);
  return connected;
}

/// One launcher of a run of two nodes started by hand.
Arguments by_hand(int node, int port, const Arguments& more = {}) {
  Arguments all = quietly(1, {"trainer.num_nodes=2", "--node-rank", std::to_string(node),
                              "--master-addr", "127.0.0.1", "--master-port", std::to_string(port)});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Of the machine's shared memory, what LibTorch and runner could have made.
std::vector<std::string> shared_memory() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (has(name, "torch") || has(name, "gloo") || has(name, "runner")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A table whose feature says nothing, so that a model of it can only learn how frequent the
/// classes are; its first rows are of the more frequent one.
std::string sorted_table(int rows, int of_first) {
  std::string text = "x,y\n";
  for (int i = 0; i < rows; ++i)
    text += i % 2 == 0 ? "1," : "2,", text += i < of_first ? "a\n" : "b\n";
  return text;
}

}  // namespace

// ---- sharing

TEST_CASE("T46: a rank's share of the validation set is its own samples, none of them twice") {
  const Bench t(
      "name = \"t\"\nseed = 5\n"
      "[model]\nname = \"mlp\"\nhidden = [4]\n"
      "[dataset]\nname = \"synthetic\"\nshape = [3]\ntarget = \"values\"\ntrain_size = 20\n"
      "validation_size = 5\nbatch_size = 2\n"
      "[trainer]\nmax_steps = 1\nthreads = 1\nmetrics = [\"mae\"]\n"
      "[optimizer]\nname = \"sgd\"\nlr = 1e-30\n");  // the weights stay as they are
  using Counts = std::vector<int>;
  const auto metrics = [&](int ranks) {
    const fs::path run = t.train(ranks, backends().front());
    Counts counts;
    const Json manifest = manifest_of(run);
    for (const Json& rank : manifest.at("ranks")) counts.push_back(rank.at("validation_samples"));
    return std::pair(manifest.at("metrics"), counts);
  };
  const auto [alone, one] = metrics(1);
  CHECK((one == Counts{5}));
  const std::map<int, Counts> shares = {{2, {3, 2}}, {3, {2, 2, 1}}, {4, {2, 1, 1, 1}}};
  for (const auto& [ranks, expected] : shares) {
    CAPTURE(ranks);
    const auto [together, counts] = metrics(ranks);
    CHECK((counts == expected));
    for (const char* name : {"val_loss", "val_mae"}) {
      CAPTURE(name);
      CHECK(together.at(name).get<double>() ==
            doctest::Approx(alone.at(name).get<double>()).epsilon(1e-7));
    }
  }
}

TEST_CASE("T47: two ranks evaluate half of the set each, and the manifest says so") {
  const Bench t(kShort);
  const fs::path run = t.train(2, backends().front(), {"trainer.max_steps=1"});
  const Json ranks = manifest_of(run).at("ranks");
  REQUIRE(ranks.size() == 2);
  for (const Json& rank : ranks) CHECK(rank.at("validation_samples") == 180);
}

TEST_CASE("T48: 100 samples in batches of 32 on 3 ranks end, and the plan says who has fewer") {
  const Bench t(
      "name = \"t\"\n[model]\nname = \"mlp\"\nhidden = [4]\n"
      "[dataset]\nname = \"synthetic\"\nshape = [3]\ntrain_size = 100\nvalidation_size = 100\n"
      "batch_size = 32\n[trainer]\nmax_epochs = 3\nthreads = 1\nnum_processes = 3\n"
      "[optimizer]\nname = \"sgd\"\nlr = 0.1\n");
  const e2e::Result result = t.run({"t.toml"});
  CAPTURE(result.out + result.err);
  REQUIRE(result.status == 0);
  CHECK(manifest_of(t.last_run()).at("samples") == 300);
  CHECK(has(result.out, "the last batch of an epoch has 4 samples, split 2, 1, 1 over 3"));
}

TEST_CASE("T56: ranks whose own metrics say the opposite decide once, and as one process would") {
  // Validation rows in the order of the file: rank 0's are all "a", rank 1's nearly all "b". As the
  // model learns that "a" is more frequent, rank 0's loss falls and rank 1's grows.
  const Bench t(
      "name = \"t\"\nseed = 3\n"
      "[model]\nname = \"mlp\"\nhidden = [2]\n"
      "[dataset]\nname = \"csv\"\npath = \"t.csv\"\ntarget = \"y\"\nbatch_size = 32\n"
      "eval_batch_size = 1000\nvalidation_fraction = 0.4\n"
      "[trainer]\nmax_epochs = 60\nthreads = 1\n"
      "[optimizer]\nname = \"sgd\"\nlr = 0.5\n"
      "[checkpoint]\nmonitor = \"val_loss\"\n"
      "[early_stopping]\nmonitor = \"val_loss\"\npatience = 2\n");
  e2e::write_file(t.folder.path() / "t.csv", sorted_table(400, 240));
  const Json alone = manifest_of(t.train(1, backends().front(), {set("dataset.batch_size", 64)}));
  const Json together = manifest_of(t.train(2, backends().front()));
  CHECK(has(alone.at("stopped").get<std::string>(), "has not improved"));
  CHECK(together.at("stopped") == alone.at("stopped"));
  CHECK(together.at("epochs") == alone.at("epochs"));
  CHECK(together.at("best").at("step") == alone.at("best").at("step"));
}

// ---- one rank fails

TEST_CASE("T50: one rank aborts, and all are gone with its reason first") {
  const Bench t(kEndless);
  const e2e::Result result = t.run(quietly(3, {"debug.fail=rank=1,step=3,how=abort"}));
  CHECK(result.status == 1);
  CHECK(result.seconds < 30);
  check_one_block(result, 1, "was ended by signal 6 (SIGABRT) in step 3");
  CHECK(t.all_gone(0));
  CHECK(manifest_of(t.last_run()).at("status") == "failed");
}

TEST_CASE("T51: a row that can't be read ends all ranks, with its place in the file") {
  // Each rank reads the whole file at its start, so all of them find the row.
  const Bench t(
      "name = \"t\"\n[model]\nname = \"mlp\"\nhidden = [4]\n"
      "[dataset]\nname = \"csv\"\npath = \"t.csv\"\ntarget = \"y\"\nbatch_size = 4\n"
      "[trainer]\nmax_epochs = 2\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n");
  std::string table = sorted_table(40, 20);
  std::size_t at = 0;
  for (int line = 1; line < 32; ++line) at = table.find('\n', at) + 1;
  table.replace(at, 1, "oops");
  e2e::write_file(t.folder.path() / "t.csv", table);
  const e2e::Result result = t.run(quietly(3));
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(first_line(result.err).starts_with("error: rank "));
  CHECK(has(first_line(result.err), "t.csv', row 31 (line 32), column 'x'"));
  CHECK(result.err.find("oops") == result.err.rfind("oops"));
  CHECK(t.all_gone(0));
}

TEST_CASE("T53: a worker that can't start is told of once, and not tried again") {
  // A runner beside a worker that only says why it can't.
  const TempFolder programs;
  fs::copy_file(e2e::runner_path(), programs / "runner");
  const fs::path worker = programs.write(
      "runner-worker",
      "#!/bin/sh\necho noise >&2\necho started >> \"$PWD/starts\"\n"
      "echo '{\"message\": \"no such thing\", \"kind\": \"own\"}' > \"$RUNNER_FAILURE_FILE\"\n"
      "exit 2\n");
  fs::permissions(worker, fs::perms::owner_all);
  const Bench t(kShort);
  Arguments arguments = quietly(3, {"trainer.max_restarts=2"});
  arguments.insert(arguments.begin(), (programs / "runner").string());
  const e2e::Result result =
      e2e::run({.arguments = std::move(arguments), .folder = t.folder.path()});
  CAPTURE(result.err);
  CHECK(result.status == 2);
  CHECK(has(result.err, ": no such thing\n"));
  CHECK_FALSE(has(result.err, "restart"));
  const std::string starts = e2e::read_file(t.folder.path() / "starts");
  CHECK(std::count(starts.begin(), starts.end(), '\n') <= 3);
}

TEST_CASE("C1: a rank that is killed ends the run at once, and is named with signal and step") {
  std::vector<double> times;
  for (int i = 0; i < repetitions(5, 50); ++i) {
    const Bench t(kEndless);
    const int victim = random_number(0, 3);
    Clock::time_point killed;
    const e2e::Result result = t.run(quietly(4), [&](pid_t /*launcher*/) {
      CHECK(t.wait_for_training(4));
      sleep_ms(random_number(0, 300));
      killed = signal_rank(t, victim, SIGKILL);
    });
    times.push_back(seconds_since(killed));
    CHECK(result.status == 1);
    check_one_block(result, victim, "was ended by signal 9 (SIGKILL)");
    CHECK(t.all_gone(0));
  }
  report_times("C1, from the kill to the launcher's end", times);
  CHECK(percentile(times, 0.5) < 2);  // a busy machine has its say beyond the 1 s that is wanted
}

TEST_CASE("C2: a rank that throws is quoted first, and torchrun's error file holds its words") {
  const Bench t(kEndless);
  const fs::path file = t.folder.path() / "error.json";
  const e2e::Result result = t.run(quietly(3, {"debug.fail=rank=2,step=4,how=throw"}), {},
                                   {"TORCHELASTIC_ERROR_FILE=" + file.string()});
  CHECK(result.status == 1);
  check_one_block(result, 2, "failed on demand (debug.fail)");
  const Json message = Json::parse(e2e::read_file(file)).at("message");
  CHECK(has(message.at("message").get<std::string>(), "failed on demand"));
  CHECK(std::stol(message.at("extraInfo").at("timestamp").get<std::string>()) > 1700000000);
  const Json failure = Json::parse(e2e::read_file(t.last_run() / "failure.json"));
  CHECK(failure.at("rank") == 2);
  CHECK(failure.at("step") == 4);
}

TEST_CASE("C3: a rank that ends with status 0 before the others has failed") {
  const Bench t(kEndless);
  const e2e::Result result = t.run(quietly(3, {"debug.fail=rank=1,step=3,how=exit"}));
  CHECK(result.status == 1);
  check_one_block(result, 1, "ended early, with status 0");
}

TEST_CASE("C4: a rank that is stopped, or hangs, is named after trainer.timeout") {
  for (const std::string how : {"stop", "hang"}) {
    CAPTURE(how);
    const Bench t(kEndless);
    const e2e::Result result =
        t.run(quietly(3, {"debug.fail=rank=1,step=3,how=" + how, "trainer.timeout=3"}));
    CHECK(result.status == 1);
    CHECK(result.seconds > 3);
    CHECK(result.seconds < 30);
    check_one_block(result, 1, "the others wait");
    CHECK(has(first_line(result.err), "step 3 in 3 s"));
    CHECK(has(first_line(result.err), "is stopped (SIGSTOP)") == (how == "stop"));
    CHECK(t.all_gone(0));
  }
}

TEST_CASE("C6: a launcher that is killed takes all ranks along") {
  const Bench t(kEndless);
  Clock::time_point killed;
  const e2e::Result result = t.run(quietly(3), [&](pid_t pid) {
    CHECK(t.wait_for_training(3));
    killed = Clock::now();
    kill(pid, SIGKILL);
  });
  CHECK(result.status == 128 + SIGKILL);
  CHECK(t.all_gone(5));
  report_times("C6, from the kill to the last rank's end", {seconds_since(killed)});
}

TEST_CASE("C7: rank 0 killed before all have met, and a rank that never comes, are named") {
  SUBCASE("killed") {
    const Bench t(kEndless);
    const e2e::Result result =
        t.run(quietly(3), [&](pid_t /*launcher*/) { (void)signal_rank(t, 0, SIGKILL); });
    CHECK(result.status == 1);
    CHECK(result.seconds < 30);
    check_one_block(result, 0, "was ended by signal 9 (SIGKILL) while", /*has_log=*/false);
  }
  SUBCASE("missing") {
    const Bench t(kEndless);
    const e2e::Result result = t.run(quietly(4, {"trainer.start_timeout=4"}),
                                     [&](pid_t /*launcher*/) { (void)signal_rank(t, 2, SIGSTOP); });
    CHECK(result.status == 1);
    CHECK(result.seconds < 30);
    check_one_block(result, 2, "did not arrive in 4 s", /*has_log=*/false);
    CHECK(t.all_gone(0));
  }
}

TEST_CASE("C8: runs started at the same instant don't meet each other") {
  const Bench a(kShort);
  const Bench b(kShort);
  for (int i = 0; i < repetitions(5, 50); ++i) {
    e2e::Result second;
    std::thread other([&] { second = b.run(quietly(2, {"trainer.max_steps=5"})); });
    const e2e::Result first = a.run(quietly(2, {"trainer.max_steps=5"}));
    other.join();
    CAPTURE(first.err + second.err);
    CHECK(first.status == 0);
    CHECK(second.status == 0);
    CHECK(weights_hash(a.last_run()) == weights_hash(b.last_run()));
  }
}

TEST_CASE("C9: restarted runs end with the bits of one without a failure") {
  const Bench whole(kShort);
  const fs::path run = whole.train(2, backends().front());
  for (int i = 0; i < repetitions(3, 50); ++i) {
    const std::string how =
        std::array{"kill", "throw", "exit", "abort"}.at(static_cast<std::size_t>(i % 4));
    CAPTURE(how);
    const Bench t(kShort);
    const e2e::Result result = t.run(
        quietly(2, {"trainer.max_restarts=2", "debug.fail=rank=1,step=60,attempts=2,how=" + how}));
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    CHECK(has(result.err, "restart 1 of 2 from "));
    CHECK(has(result.err, "restart 2 of 2 from "));
    CHECK(weights_hash(t.last_run()) == weights_hash(run));
    CHECK(metrics_of(t.last_run()) == metrics_of(run));
  }
}

TEST_CASE("C9: a run that fails more often than it may restart ends with its last reason") {
  const Bench t(kShort);
  const e2e::Result result = t.run(
      quietly(2, {"trainer.max_restarts=1", "debug.fail=rank=1,step=3,attempts=5,how=throw"}));
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(has(result.err, "restart 1 of 1 from the start\n"));
  CHECK(has(result.err, "\n" + named(1) + ": failed on demand"));
  CHECK(Json::parse(e2e::read_file(t.last_run() / "failure.json")).at("attempt") == 1);
}

TEST_CASE("C10: a rank without memory ends the run without waiting for anybody") {
  const Bench t(kEndless);
  const e2e::Result result = t.run(quietly(3, {"debug.fail=rank=1,step=3,how=memory"}));
  CHECK(result.status == 1);
  check_one_block(result, 1, "memory is full");
}

TEST_CASE("C12: many more ranks than cores start and end") {
  const int ranks = repetitions(12, 64);
  const Bench t(
      "name = \"t\"\n[model]\nname = \"mlp\"\nhidden = [4]\n"
      "[dataset]\nname = \"synthetic\"\nshape = [3]\ntrain_size = 256\nvalidation_size = 64\n"
      "batch_size = 2\n[trainer]\nmax_epochs = 2\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n");
  const e2e::Result result = t.run(quietly(ranks));
  CAPTURE(result.err);
  CHECK(result.status == 0);
  CHECK(result.err.empty());
  MESSAGE(ranks << " ranks: " << result.seconds << " s");
}

TEST_CASE("C13: runs started and stopped at any moment leave nothing behind") {
  const Bench t(kEndless);
  const TempFolder temporary;
  const auto shared = shared_memory();
  for (int i = 0; i < repetitions(15, 200); ++i) {
    const int how = std::array{SIGTERM, SIGINT, SIGKILL}.at(static_cast<std::size_t>(i % 3));
    const int delay = random_number(0, 1500);
    CAPTURE(delay);
    const e2e::Result result = t.run(quietly(2),
                                     [&](pid_t pid) {
                                       sleep_ms(delay);
                                       kill(pid, how);
                                     },
                                     {"TMPDIR=" + temporary.path().string()});
    CAPTURE(result.err);
    CHECK(result.status == 128 + how);
    CHECK(t.all_gone(2));
  }
  CHECK(shared_memory() == shared);
  CHECK(fs::is_empty(temporary.path()));
}

// ---- signals

TEST_CASE("T54: a SIGTERM for one rank stops all of them at one step, saved") {
  for (const int rank : {0, 2}) {
    CAPTURE(rank);
    const Bench t(kEndless);
    const e2e::Result result = t.run(quietly(3), [&](pid_t /*launcher*/) {
      CHECK(t.wait_for_training(3));
      sleep_ms(300);
      (void)signal_rank(t, rank, SIGTERM);
    });
    CAPTURE(result.err);
    CHECK(result.status == 128 + SIGTERM);
    CHECK(result.err.empty());
    const auto ended_at = [&](const char* log) {
      const std::string text = e2e::read_file(t.last_run() / log);
      const std::size_t at = text.find("ended at step ");
      return at == std::string::npos ? std::string()
                                     : text.substr(at, text.find(" after", at) - at);
    };
    CHECK_FALSE(ended_at("runner.log").empty());
    CHECK(ended_at("rank-1.log") == ended_at("runner.log"));
    CHECK(ended_at("rank-2.log") == ended_at("runner.log"));
    const store::CheckpointFolder folder(t.last_run() / "checkpoints");
    CHECK("ended at step " + std::to_string(folder.list().front()) == ended_at("runner.log"));
    CHECK(manifest_of(t.last_run()).at("status") == "interrupted");
  }
}

TEST_CASE("stop: a signal that reaches launcher and ranks alike is one request, and saved") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const Bench t(kEndless);
    const e2e::Result result = t.run(quietly(ranks), [&](pid_t launcher) {
      CHECK(t.wait_for_training(ranks));
      kill(launcher, SIGTERM);
      for (int rank = 0; rank < ranks; ++rank) (void)signal_rank(t, rank, SIGTERM);
    });
    CAPTURE(result.err);
    CHECK(result.status == 128 + SIGTERM);
    const std::string log = e2e::read_file(t.last_run() / "runner.log");
    const store::CheckpointFolder folder(t.last_run() / "checkpoints");
    REQUIRE_FALSE(folder.list().empty());
    CHECK(has(log, "ended at step " + std::to_string(folder.list().front()) + " "));
  }
}

TEST_CASE("stop: a second SIGINT ends all ranks at once") {
  const Bench t(
      "name = \"t\"\n[model]\nname = \"resnet\"\ndepth = 18\n[dataset]\nname = \"synthetic\"\n"
      "shape = [3, 64, 64]\ntrain_size = 100000\nvalidation_size = 0\nbatch_size = 128\n"
      "[trainer]\nmax_epochs = 1\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n");
  Clock::time_point second;
  const e2e::Result result = t.run(quietly(2), [&](pid_t pid) {
    CHECK(t.wait_for_training(2));
    sleep_ms(300);  // inside a step of many seconds
    kill(pid, SIGINT);
    sleep_ms(300);
    second = Clock::now();
    kill(pid, SIGINT);
  });
  CHECK(result.status == 128 + SIGINT);
  CHECK(seconds_since(second) < 2);
  CHECK(t.all_gone(0));
}

// ---- several launchers

TEST_CASE("two launchers: a run of two nodes trains as one of two processes does") {
  const Bench one(kShort);
  const std::string hash = weights_hash(one.train(2, backends().front()));
  const Bench t(kShort);
  const int port = free_port();
  e2e::Result second;
  std::thread other([&] { second = t.run(by_hand(1, port)); });
  const e2e::Result first = t.run(by_hand(0, port));
  other.join();
  CAPTURE(first.err + second.err);
  CHECK(first.status == 0);
  CHECK(second.status == 0);
  REQUIRE(t.runs().size() == 1);
  CHECK(weights_hash(t.last_run()) == hash);
}

TEST_CASE("T58: a launcher that is killed ends the other one, with the reason") {
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    const Bench t(kEndless);
    const int port = free_port();
    std::array<e2e::Result, 2> results;
    std::array<pid_t, 2> pids{};
    Clock::time_point killed;
    std::thread other(
        [&] { results[1] = t.run(by_hand(1, port), [&](pid_t pid) { pids[1] = pid; }); });
    results[0] = t.run(by_hand(0, port), [&](pid_t pid) {
      pids[0] = pid;
      CHECK(t.wait_for_training(2));
      killed = Clock::now();
      kill(pids.at(static_cast<std::size_t>(victim)), SIGKILL);
    });
    other.join();
    CHECK(seconds_since(killed) < 5);
    const e2e::Result& left = results.at(static_cast<std::size_t>(1 - victim));
    CAPTURE(left.err);
    CHECK(left.status == 1);
    CHECK(has(first_line(left.err), victim == 0 ? "the leader (" : "launcher 1 ("));
    CHECK(has(first_line(left.err), "is gone"));
    CHECK(t.all_gone(5));
  }
}

TEST_CASE("two launchers: one that never comes is named after trainer.start_timeout") {
  const Bench t(kEndless);
  const e2e::Result result = t.run(by_hand(0, free_port(), {"trainer.start_timeout=2"}));
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(result.seconds < 20);
  CHECK(has(result.err, "error: "));
  CHECK(has(first_line(result.err), "1"));
  CHECK(t.all_gone(0));
}

// ---- hostile surroundings

TEST_CASE("D13: variables of a launcher that make no sense are refused by name and value") {
  const Bench t(kEndless);
  const std::vector<std::string> sound = {"RANK=0",
                                          "LOCAL_RANK=0",
                                          "WORLD_SIZE=2",
                                          "LOCAL_WORLD_SIZE=2",
                                          "MASTER_ADDR=127.0.0.1",
                                          "MASTER_PORT=29599",
                                          "TORCHELASTIC_RUN_ID=x",
                                          "GROUP_RANK=0",
                                          "GROUP_WORLD_SIZE=1"};
  for (const char* bad :
       {"RANK=-1", "RANK=abc", "WORLD_SIZE=0", "RANK=2", "MASTER_PORT=70000", "MASTER_ADDR="}) {
    CAPTURE(bad);
    std::vector<std::string> environment = sound;
    environment.emplace_back(bad);
    const e2e::Result result = t.run(quietly(2), {}, environment);
    CAPTURE(result.err);
    CHECK(result.status == 2);
    CHECK(result.seconds < 1.5);
    const std::string text = bad;
    CHECK(has(result.err, text.substr(0, text.find('='))));
    CHECK(has(result.err, text.substr(text.find('=') + 1)));
    CHECK(t.runs().empty());
  }
}

TEST_CASE("D16: noise at the port of the ranks' store doesn't end the run") {
  const Bench t(kEndless);
  bool all_alive = false;
  int reached = 0;
  const e2e::Result result = t.run(quietly(2), [&](pid_t pid) {
    CHECK(t.wait_for_training(2));
    const auto worker = worker_of_rank(t.folder.path(), 0);
    const std::string text = variable_of(worker.value_or(getpid()), "MASTER_PORT").value_or("");
    const int port = std::atoi(text.c_str());
    for (int i = 0; i < repetitions(10, 100); ++i) reached += send_noise(port, 1 << 20) ? 1 : 0;
    sleep_ms(300);
    all_alive = t.workers().size() == 2;
    kill(pid, SIGTERM);
  });
  CAPTURE(result.err);
  CHECK(reached > 0);
  CHECK(all_alive);
  CHECK(result.status == 128 + SIGTERM);
}

TEST_CASE("D16: noise at the port where launchers meet doesn't keep them apart") {
  const Bench t(kShort);
  const int port = free_port();
  e2e::Result second;
  int reached = 0;
  std::thread other;
  const e2e::Result first = t.run(by_hand(0, port), [&](pid_t /*launcher*/) {
    CHECK(wait_for([&] { return send_noise(port, 100); }));
    for (int i = 0; i < repetitions(10, 100); ++i) reached += send_noise(port, 1 << 20) ? 1 : 0;
    other = std::thread([&] { second = t.run(by_hand(1, port)); });
  });
  other.join();
  CAPTURE(first.err + second.err);
  CHECK(reached == repetitions(10, 100));
  CHECK(first.status == 0);
  CHECK(second.status == 0);
}
