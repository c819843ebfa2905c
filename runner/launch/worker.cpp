#include "runner/launch/worker.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "runner/diag/error.h"

namespace runner::launch {

namespace {

/// Longer ones were not written for people, and have to fit into a message to another launcher.
constexpr std::size_t kMaxText = 64 << 10;

/// A process that a driver or a file server holds dies only when they let it go.
constexpr auto kKillTime = std::chrono::seconds(2);

std::string errno_text() { return std::strerror(errno); }

[[noreturn]] void fail(const std::string& what, const std::string& help = "") {
  throw diag::Error(diag::Exit::machine, what + ": " + errno_text(), help);
}

/// Where a worker leaves the reason of its failure: in memory, since a full disk may be that
/// reason.
host::UniqueFd make_failure_file() {
  host::UniqueFd fd(memfd_create("failure.json", MFD_CLOEXEC));
  if (!fd) fail("can't make a file in memory");
  return fd;
}

/// What a worker can open as long as this process lives.
std::string path_of(int fd) {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
}

/// This process's environment with `added` in place of entries of the same name. What another
/// launcher left for its own worker would mislead ours.
std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    const bool replaced = name.starts_with("RUNNER_STORE_") ||
                          std::any_of(added.begin(), added.end(),
                                      [name](const std::string& a) { return a.starts_with(name); });
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

host::UniqueFd open_file(const char* path, int flags) {
  host::UniqueFd fd(open(path, flags | O_CLOEXEC, 0666));
  if (!fd) fail(std::string("can't open '") + path + "'");
  return fd;
}

void keep_open(int fd) { fcntl(fd, F_SETFD, fcntl(fd, F_GETFD) & ~FD_CLOEXEC); }

void put_at(int fd, int place) {
  if (fd == place) {
    keep_open(fd);
  } else {
    dup2(fd, place);
  }
}

/// What the child needs between fork and exec, where it can't allocate.
struct Child {
  pid_t parent;
  const sigset_t& mask;
  char* const* argv;
  char* const* env;
  std::span<const int> inherited;
  int input, log;  ///< -1: ours
  int error_fd;
};

/// The child's side between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_worker(const Child& child) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != child.parent) _exit(1);
  signal(SIGTTOU, SIG_IGN);  // its own group is in the background; `stty tostop` must not stop it
  if (child.input >= 0) put_at(child.input, STDIN_FILENO);
  if (child.log >= 0) {
    put_at(child.log, STDOUT_FILENO);
    put_at(child.log, STDERR_FILENO);
  }
  for (const int fd : child.inherited) keep_open(fd);
  sigprocmask(SIG_SETMASK, &child.mask, nullptr);
  execve(child.argv[0], child.argv, child.env);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(child.error_fd, &error, sizeof error);
  _exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(const WorkerStart& start, const sigset_t& mask)
    : failure_file_(make_failure_file()) {
  std::vector<std::string> arguments = {start.program.string(), start.plan_file.string()};
  std::vector<std::string> added = start.environment;
  added.push_back("RUNNER_PARENT_PID=" + std::to_string(getpid()));
  added.push_back("RUNNER_FAILURE_FILE=" + path_of(failure_file_.get()));
  std::vector<std::string> environment = environment_with(added);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> env = pointers(environment);
  host::UniqueFd input;
  host::UniqueFd log;
  if (start.log) {
    input = open_file("/dev/null", O_RDONLY);
    log = open_file(start.log->c_str(), O_WRONLY | O_CREAT | O_APPEND);
  }
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("can't make a pipe");
  const host::UniqueFd reading(ends[0]);
  host::UniqueFd writing(ends[1]);
  const Child child{.parent = getpid(),
                    .mask = mask,
                    .argv = argv.data(),
                    .env = env.data(),
                    .inherited = start.inherited,
                    .input = input.get(),
                    .log = log.get(),
                    .error_fd = writing.get()};
  pid_ = fork();
  if (pid_ < 0) fail("can't start a process", "is there a limit on processes? see `ulimit -u`");
  if (pid_ == 0) become_worker(child);
  setpgid(pid_, pid_);
  writing.reset();
  int error = 0;
  if (read(reading.get(), &error, sizeof error) == sizeof error) {
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    errno = error;
    fail("can't start '" + start.program.string() + "'",
         error == ENOENT ? "this build has no engine: build with -DRUNNER_ENGINE=ON, "
                           "or install LibTorch and runner-worker"
                         : "");
  }
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : failure_file_(std::move(other.failure_file_)), pid_(std::exchange(other.pid_, -1)) {}

WorkerProcess::~WorkerProcess() {
  if (pid_ <= 0) return;
  kill_group();
  const auto end = std::chrono::steady_clock::now() + kKillTime;
  while (!take_end() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::optional<int> WorkerProcess::take_end() {
  if (pid_ <= 0) return {};
  siginfo_t info{};
  // Seen before it is reaped: until then nobody else can have its number, nor its group's.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == 0)
    return {};
  kill_group();
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return status;
}

bool WorkerProcess::stopped() const {
  std::ifstream in("/proc/" + std::to_string(pid_) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  return state == 'T' || state == 't';
}

void WorkerProcess::signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

void WorkerProcess::kill_group() const {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

std::optional<Failure> WorkerProcess::failure() const {
  std::ifstream in(path_of(failure_file_.get()), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::optional<Failure> failure = failure_from_json(text);
  if (!failure) return {};
  if (failure->message.size() > kMaxText) failure->message.resize(kMaxText);
  if (failure->help.size() > kMaxText) failure->help.resize(kMaxText);
  return failure;
}

}  // namespace runner::launch
