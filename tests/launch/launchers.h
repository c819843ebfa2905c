// Launchers as processes of their own, for tests that kill, stop and count them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/diag/error.h"
#include "runner/host/unique_fd.h"
#include "runner/launch/meeting.h"
#include "runner/launch/supervisor.h"
#include "tests/fakes/temp_folder.h"

namespace runner {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Waits until it is so, 20 s at most; whether it came.
inline bool eventually(const std::function<bool()>& is_so) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!is_so()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// Ports of 127.0.0.1 that nobody has right now.
inline std::vector<int> free_ports(std::size_t count) {
  std::vector<host::UniqueFd> sockets;
  std::vector<int> ports;
  for (std::size_t i = 0; i < count; ++i) {
    sockets.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (bind(sockets.back().get(), raw, size) != 0 ||
        getsockname(sockets.back().get(), raw, &size) != 0)
      throw std::runtime_error("no free port");
    ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

/// What a launcher came to.
struct Ended {
  int status = -1;           ///< as `runner` would exit; 128 + n when it was killed
  std::string message = {};  ///< of the failure or of the error thrown
  std::string help = {};
  std::int64_t rank = -1;
  std::string host = {};
  std::string kind = {};
  double seconds = 0;
};

/// Runs `body` in a child process, as a launcher, and brings back what it came to.
class Launcher {
 public:
  explicit Launcher(const std::function<launch::Outcome()>& body) : start_(Clock::now()) {
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    nlohmann::json json;
    try {
      const launch::Outcome outcome = body();
      json["status"] = outcome.exit_status;
      if (const auto& f = outcome.failure) {
        json.update({{"message", f->message},
                     {"help", f->help},
                     {"rank", f->rank},
                     {"host", f->host},
                     {"kind", launch::to_text(f->kind)}});
      }
    } catch (const diag::Error& error) {
      json = {{"status", static_cast<int>(error.exit())},
              {"message", error.what()},
              {"help", error.help()}};
    } catch (const std::exception& error) {
      json = {{"status", 99}, {"message", error.what()}};
    }
    std::ofstream(folder_ / "outcome") << json;
    _exit(0);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int signal) const { ::kill(pid_, signal); }

  /// Waits for its end, 60 s at most.
  Ended end() {
    int status = 0;
    const auto limit = Clock::now() + std::chrono::seconds(60);
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() >= limit) {
        ::kill(pid_, SIGKILL);
        waitpid(std::exchange(pid_, -1), nullptr, 0);
        return {.status = -2, .message = "it didn't end", .seconds = seconds_since(start_)};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    pid_ = -1;
    Ended ended;
    ended.seconds = seconds_since(start_);
    if (WIFSIGNALED(status)) {
      ended.status = 128 + WTERMSIG(status);
      return ended;
    }
    const auto json = nlohmann::json::parse(folder_.read("outcome"), nullptr, false);
    if (!json.is_object()) return ended;
    ended.status = json.value("status", -1);
    ended.message = json.value("message", "");
    ended.help = json.value("help", "");
    ended.rank = json.value("rank", -1);
    ended.host = json.value("host", "");
    ended.kind = json.value("kind", "");
    return ended;
  }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
  Clock::time_point start_;
};

/// Several launchers on this machine, which have to meet, as hosts h0, h1, …
struct Launchers {
  TempFolder folder;
  plan::Plan plan;
  std::int64_t launchers = 1;
  std::vector<int> ports;
  std::optional<int> port;
  std::string identity = "test";
  std::chrono::seconds start_timeout{20};
  std::string fake;
  std::function<plan::Plan(const launch::Failure&)> next_plan;

  explicit Launchers(std::int64_t ranks, std::int64_t count = 1) : launchers(count) {
    plan.run_folder = folder.path().string();
    plan.world_size = ranks;
    plan.quiet = true;
    plan.timeout_seconds = 60;
    plan.start_timeout_seconds = 60;
    port = free_ports(1).front();
  }

  [[nodiscard]] launch::Topology topology(std::int64_t launcher) const {
    const std::int64_t here = plan.world_size / launchers;
    launch::Topology t;
    t.started.starter = launchers == 1 ? launch::Starter::nobody : launch::Starter::hand;
    t.started.master_addr = launchers == 1 ? "" : "127.0.0.1";
    t.started.master_port = port;
    t.started.identity = identity;
    t.world_size = plan.world_size;
    t.first_rank = launcher * here;
    t.ranks_here = t.local_size = here;
    t.node_rank = launcher;
    t.num_nodes = t.launchers = launchers;
    t.launcher = launcher;
    return t;
  }
  [[nodiscard]] launch::MeetingOptions options(std::int64_t launcher) const {
    launch::MeetingOptions options;
    options.host = host(launcher);
    options.version = "1.0";
    options.digest = "d1";
    options.ports = ports;
    options.start_timeout = start_timeout;
    return options;
  }
  [[nodiscard]] static std::string host(std::int64_t launcher) {
    return "h" + std::to_string(launcher);
  }

  /// What launcher number `launcher` does from its start to its end.
  [[nodiscard]] launch::Outcome work(std::int64_t launcher) const {
    setenv("FAKE", fake.c_str(), 1);
    setenv("FAKE_FOLDER", folder.path().c_str(), 1);
    const launch::Topology here = topology(launcher);
    std::optional<launch::Meeting> meeting;
    if (launchers > 1) meeting.emplace(launch::Meeting::join(here, options(launcher)));
    launch::Job job;
    if (launcher == 0) job.plan = plan;
    job.topology = here;
    job.meeting = meeting ? &*meeting : nullptr;
    job.worker = FAKE_WORKER;
    job.host = host(launcher);
    job.next_plan = next_plan;
    return launch::supervise(job);
  }
  [[nodiscard]] Launcher start(std::int64_t launcher = 0) const {
    return Launcher([this, launcher] { return work(launcher); });
  }

  [[nodiscard]] bool exists(const std::string& name) const {
    return std::filesystem::exists(folder / name);
  }
  /// Lines of a file that workers wrote.
  [[nodiscard]] std::vector<std::string> lines(const std::string& name) const {
    std::istringstream in(folder.read(name));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  [[nodiscard]] bool has_lines(const std::string& name, std::size_t count) const {
    return eventually([&] { return lines(name).size() >= count; });
  }
  /// Processes that lead a group and have our folder in their environment: workers still there.
  [[nodiscard]] std::vector<pid_t> workers() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream in(entry.path() / "environ", std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      const pid_t pid = std::stoi(name);
      if (text.find("FAKE_FOLDER=" + folder.path().string()) != std::string::npos &&
          getpgid(pid) == pid && pid != getpid())
        found.push_back(pid);
    }
    return found;
  }
};

}  // namespace runner
