#include "runner/launch/local.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "runner/diag/error.h"
#include "runner/host/unique_fd.h"

namespace runner::launch {

namespace {

using std::chrono::steady_clock;

/// A shell's `timeout` and a batch system signal a process and then its group: two of one signal
/// this close together are one request.
constexpr auto kOneRequest = std::chrono::milliseconds(100);

constexpr std::array kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

std::string errno_text() { return std::strerror(errno); }

/// Blocks the signals that the launcher reads through a descriptor, and restores the mask.
class SignalReader {
 public:
  SignalReader() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : kPassedOn) sigaddset(&set, signal);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTSTP);
    sigprocmask(SIG_BLOCK, &set, &old_);
    // Inherited as ignored, it would let the kernel take the worker's status away unseen.
    old_child_action_ = std::signal(SIGCHLD, SIG_DFL);
    fd_ = host::UniqueFd(signalfd(-1, &set, SFD_CLOEXEC));
  }
  ~SignalReader() {
    std::signal(SIGCHLD, old_child_action_);
    sigprocmask(SIG_SETMASK, &old_, nullptr);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  [[nodiscard]] const sigset_t& old_mask() const { return old_; }
  /// Waits for the next signal.
  [[nodiscard]] int next() const {
    signalfd_siginfo info{};
    while (read(fd_.get(), &info, sizeof info) != sizeof info) {
      if (errno != EINTR) return SIGCHLD;
    }
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t old_{};
  void (*old_child_action_)(int) = SIG_DFL;
  host::UniqueFd fd_;
};

/// An evaluation keeps the plan of the training as it is.
std::filesystem::path plan_file(const plan::Plan& plan) {
  return std::filesystem::path(plan.run_folder) /
         (plan.mode == plan::Mode::test ? "test-plan.json" : "plan.json");
}

std::vector<std::string> worker_environment(const plan::Plan& plan,
                                            const std::filesystem::path& failure_file) {
  std::vector<std::string> added = {
      "RANK=0",
      "LOCAL_RANK=0",
      "WORLD_SIZE=1",
      "LOCAL_WORLD_SIZE=1",
      "RUNNER_PARENT_PID=" + std::to_string(getpid()),
      "RUNNER_FAILURE_FILE=" + failure_file.string(),
  };
  if (plan.devices.type == "cuda") {
    std::string ids;
    for (const std::int64_t id : plan.devices.ids)
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
    added.push_back("CUDA_VISIBLE_DEVICES=" + ids);
    added.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  }
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    const bool replaced = std::any_of(added.begin(), added.end(),
                                      [name](const auto& a) { return a.starts_with(name); });
    if (!replaced) all.emplace_back(entry);
  }
  all.insert(all.end(), added.begin(), added.end());
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

/// The child's side between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_worker(pid_t parent, const sigset_t& mask, char* const* argv,
                                char* const* env, int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  signal(SIGTTOU, SIG_IGN);  // its own group is in the background; `stty tostop` must not stop it
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execve(argv[0], argv, env);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_fd, &error, sizeof error);
  _exit(127);
}

pid_t start(const plan::Plan& plan, const std::filesystem::path& worker,
            const std::filesystem::path& failure_file, const sigset_t& mask) {
  std::vector<std::string> arguments = {worker.string(), plan_file(plan).string()};
  std::vector<std::string> environment = worker_environment(plan, failure_file);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> env = pointers(environment);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw diag::Error(diag::Exit::machine, "can't make a pipe: " + errno_text());
  const host::UniqueFd reading(ends[0]);
  host::UniqueFd writing(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw diag::Error(diag::Exit::machine, "can't start a process: " + errno_text());
  if (child == 0) become_worker(parent, mask, argv.data(), env.data(), writing.get());
  setpgid(child, child);
  writing = host::UniqueFd();
  int error = 0;
  if (read(reading.get(), &error, sizeof error) == sizeof error) {
    waitpid(child, nullptr, 0);
    throw diag::Error(diag::Exit::machine,
                      "can't start '" + worker.string() + "': " + std::strerror(error),
                      error == ENOENT ? "this build has no engine: build with -DRUNNER_ENGINE=ON, "
                                        "or install LibTorch and runner-worker"
                                      : "");
  }
  return child;
}

/// Passes signals on until the child has ended, and says what the first one does; returns the wait
/// status and the last signal passed.
std::pair<int, int> supervise(pid_t child, const SignalReader& signals, bool say_so) {
  int passed = 0;
  steady_clock::time_point last{};
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno == ECHILD)) return {status, passed};
    const int signal = signals.next();
    if (signal == SIGCHLD) continue;
    if (signal == SIGTSTP) {
      kill(child, SIGSTOP);
      raise(SIGSTOP);
      kill(child, SIGCONT);
      continue;
    }
    const auto now = steady_clock::now();
    if (signal == passed && now - last < kOneRequest) continue;
    if (passed == 0 && say_so && (signal == SIGINT || signal == SIGTERM)) {
      constexpr std::string_view kText =
          "\nfinishing the step and saving; once more to end at once\n";
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
    }
    passed = signal;
    last = now;
    kill(child, signal == SIGHUP ? SIGTERM : signal);
  }
}

/// Where the worker leaves the reason of its failure: in memory, since a full disk may be that
/// reason.
class FailureFile {
 public:
  FailureFile() : fd_(memfd_create("failure.json", MFD_CLOEXEC)) {
    if (fd_.get() < 0)
      throw diag::Error(diag::Exit::machine, "can't make a file in memory: " + errno_text());
  }
  /// What the worker can open as long as this process lives.
  [[nodiscard]] std::filesystem::path path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_.get());
  }
  /// Copies what was left, if anything, into the run folder; a copy for later that may fail.
  void keep(const std::filesystem::path& copy) const {
    std::ifstream in(path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!text.empty()) std::ofstream(copy, std::ios::binary) << text;
  }

 private:
  host::UniqueFd fd_;
};

std::optional<Failure> read_failure(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) return {};
  const auto json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  return Failure{json.value("message", ""), json.value("help", "")};
}

std::string killed_text(int signal) {
  std::string text = "the worker was ended by signal " + std::to_string(signal);
  if (const char* name = sigabbrev_np(signal)) text += " (SIG" + std::string(name) + ")";
  return text;
}

Outcome outcome_of(int status, int passed, const std::filesystem::path& failure_file,
                   const std::string& run_folder) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (passed == signal) return {128 + signal, {}};
    const bool memory = signal == SIGKILL;
    return {static_cast<int>(diag::Exit::failed),
            Failure{killed_text(signal), memory ? "the kernel does this when memory runs out: see "
                                                  "`dmesg`, or lower dataset.batch_size"
                                                : "its log is in " + run_folder}};
  }
  int code = WEXITSTATUS(status);
  if (passed == SIGHUP && code == 128 + SIGTERM) code = 128 + SIGHUP;
  if (code == 0 || code > 128) return {code, {}};
  if (auto failure = read_failure(failure_file)) return {code, std::move(failure)};
  return {static_cast<int>(diag::Exit::failed),
          Failure{"the worker ended with status " + std::to_string(code) + " and left no reason",
                  "its log is in " + run_folder}};
}

}  // namespace

void write_whole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(temporary, path, error);
  if (!out || error) {
    throw diag::Error(diag::Exit::machine,
                      "can't write '" + path.string() + "'" + (error ? ": " + error.message() : ""),
                      "is the disk full?");
  }
}

Outcome run_local(const plan::Plan& plan, const std::filesystem::path& worker) {
  const std::filesystem::path folder = plan.run_folder;
  const FailureFile failure_file;
  std::error_code ignored;
  std::filesystem::remove(folder / "failure.json", ignored);
  write_whole(plan_file(plan), plan::to_json(plan));
  const SignalReader signals;
  const pid_t child = start(plan, worker, failure_file.path(), signals.old_mask());
  const auto [status, passed] = supervise(child, signals, !plan.quiet);
  failure_file.keep(folder / "failure.json");
  return outcome_of(status, passed, failure_file.path(), plan.run_folder);
}

}  // namespace runner::launch
