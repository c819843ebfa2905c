// Runs the built programs as a person does.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace runner::e2e {

inline std::string runner_path() { return std::string(RUNNER_BINARY_DIR) + "/runner"; }
inline std::string source_path(const std::string& relative) {
  return std::string(RUNNER_SOURCE_DIR) + "/" + relative;
}

struct Result {
  int status = -1;  ///< exit status, or 128 + signal
  std::string out;
  std::string err;
  double seconds = 0;
  long max_rss_kib = 0;
};

/// How to run a program.
struct Call {
  std::vector<std::string> arguments;         ///< argv[0] included
  std::vector<std::string> environment = {};  ///< "NAME=value", beside the inherited ones
  std::filesystem::path folder = {};          ///< working directory; the current one when empty
  double timeout = 120;                       ///< seconds until SIGKILL
  /// Called with the pid as soon as the program runs; for signals.
  std::function<void(pid_t)> meanwhile = {};
};

inline Result run(const Call& call) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  std::array<int, 2> started{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0 ||
      pipe2(started.data(), O_CLOEXEC) != 0)
    throw std::runtime_error("pipe");
  const auto start = std::chrono::steady_clock::now();
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], 1);
    dup2(err[1], 2);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    if (!call.folder.empty() && chdir(call.folder.c_str()) != 0) _exit(126);
    for (const std::string& e : call.environment) putenv(const_cast<char*>(e.c_str()));
    std::vector<char*> argv;
    for (const std::string& a : call.arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  close(started[1]);
  // Until the program runs, a signal would find this test's own handlers.
  char none = 0;
  while (read(started[0], &none, 1) < 0 && errno == EINTR) {
  }
  close(started[0]);
  if (call.meanwhile) call.meanwhile(pid);
  Result result;
  std::array<pollfd, 2> fds = {{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}};
  int open_ends = 2;
  bool killed = false;
  while (open_ends > 0) {
    const double left =
        call.timeout -
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (left <= 0 && !killed) {
      kill(pid, SIGKILL);
      killed = true;
    }
    if (poll(fds.data(), 2, killed ? 1000 : static_cast<int>(left * 1000) + 1) < 0) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || (fds[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      std::array<char, 65536> buffer{};
      const ssize_t n = read(fds[i].fd, buffer.data(), buffer.size());
      if (n > 0) {
        (i == 0 ? result.out : result.err).append(buffer.data(), static_cast<std::size_t>(n));
      } else {
        close(fds[i].fd);
        fds[i].fd = -1;
        --open_ends;
      }
    }
  }
  int status = 0;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.max_rss_kib = usage.ru_maxrss;
  result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

/// `runner` with these arguments.
inline Result runner(std::vector<std::string> arguments, std::filesystem::path folder = {},
                     std::vector<std::string> environment = {}) {
  arguments.insert(arguments.begin(), runner_path());
  return run({.arguments = std::move(arguments),
              .environment = std::move(environment),
              .folder = std::move(folder)});
}

/// What lies in a folder, by name; nothing if there is no such folder.
inline std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> result;
  if (!std::filesystem::exists(folder)) return result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    result.push_back(entry.path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// The workers of runs that were started in this folder.
inline std::vector<pid_t> workers_in(const std::filesystem::path& folder) {
  std::vector<pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // Command lines name the plan relative to the working directory.
    if (read_file(entry.path() / "cmdline").find("runner-worker") == std::string::npos) continue;
    std::error_code gone;
    const auto place = std::filesystem::read_symlink(entry.path() / "cwd", gone);
    if (!gone && place == folder) pids.push_back(std::stoi(name));
  }
  return pids;
}

}  // namespace runner::e2e
