// A worker that trains nothing. FAKE is a list of orders that it carries out one after another:
//
//   "training; 1: raise 9; 0@1: exit 0; steps 20 10; done"
//
// An order may begin with the rank, the attempt ("@1") or both that it is for. FAKE_FOLDER is where
// it leaves and looks for files.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runner/host/heartbeat.h"

namespace {

using runner::host::Heartbeat;
using runner::host::HeartbeatPage;
using runner::host::Phase;

std::atomic<int> caught{0};

extern "C" void on_signal(int signal) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::filesystem::path file(const std::string& name) {
  return std::filesystem::path(variable("FAKE_FOLDER")) / name;
}

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class Worker {
 public:
  Worker(const std::string& plan, Heartbeat& beat) : plan_(plan), beat_(beat) {}

  void obey(const std::string& order) {
    std::istringstream in(order);
    std::string word;
    in >> word;
    if (word.ends_with(':')) {
      if (!is_for_us(word.substr(0, word.size() - 1))) return;
      in >> word;
    }
    if (!word.empty()) orders_.at(word)(in);
  }

 private:
  static bool is_for_us(const std::string& filter) {
    const std::size_t at = filter.find('@');
    const std::string rank = filter.substr(0, at);
    const std::string attempt = at == std::string::npos ? "" : filter.substr(at + 1);
    return (rank.empty() || rank == variable("RANK")) &&
           (attempt.empty() || attempt == variable("RUNNER_ATTEMPT"));
  }

  void in_phase(Phase phase) { beat_.phase = phase; }

  /// steps N MS: each of MS milliseconds; a signal ends the run after the step.
  void steps(std::istream& in) {
    int count = 0;
    int milliseconds = 0;
    in >> count >> milliseconds;
    in_phase(Phase::training);
    for (int i = 0; i < count; ++i) {
      ++beat_.step;
      ++beat_.beats;
      pause(milliseconds);
      if (caught != 0) std::_Exit(128 + caught);
    }
  }

  /// fail KIND STATUS TEXT
  static void fail(std::istream& in) {
    std::string kind;
    std::string text;
    int status = 0;
    in >> kind >> status >> std::ws;
    std::getline(in, text);
    std::ofstream(variable("RUNNER_FAILURE_FILE"))
        << R"({"message": ")" << text << R"(", "help": "mend it", "kind": ")" << kind << "\"}";
    std::_Exit(status);
  }

  /// note FILE NAME…: the variables' values as a line of the file; "plan" is the plan's path, "pid"
  /// the process.
  void note(std::istream& in) const {
    std::string name;
    std::string line;
    in >> name;
    const std::filesystem::path path = file(name);
    while (in >> name) {
      line += line.empty() ? "" : " ";
      line += name == "plan"  ? plan_
              : name == "pid" ? std::to_string(getpid())
                              : variable(name.c_str());
    }
    // One write, since several ranks may add to one file.
    line += "\n";
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (write(fd, line.data(), line.size()) < 0) std::_Exit(99);
    close(fd);
  }

  /// await FILE
  static void await(std::istream& in) {
    std::string name;
    in >> name;
    while (!std::filesystem::exists(file(name))) pause(2);
  }

  /// store: ends with status 98 unless the inherited socket listens at MASTER_PORT.
  static void store() {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    const int fd = std::stoi(variable("RUNNER_STORE_FD"));
    int listens = 0;
    socklen_t listens_size = sizeof listens;
    const bool fine = getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) == 0 &&
                      listens == 1 &&
                      std::to_string(ntohs(address.sin_port)) == variable("MASTER_PORT");
    if (!fine) std::_Exit(98);
  }

  static int number(std::istream& in) {
    int n = 0;
    in >> n;
    return n;
  }

  std::string plan_;
  Heartbeat& beat_;
  const std::map<std::string, std::function<void(std::istream&)>> orders_ = {
      {"meeting", [this](std::istream&) { in_phase(Phase::meeting); }},
      {"training", [this](std::istream&) { in_phase(Phase::training); }},
      {"steps", [this](std::istream& in) { steps(in); }},
      {"done",
       [this](std::istream&) {
         in_phase(Phase::done);
         std::_Exit(0);
       }},
      {"exit", [](std::istream& in) { std::_Exit(number(in)); }},
      {"raise",
       [](std::istream& in) {
         const int n = number(in);
         std::signal(n, SIG_DFL);
         std::raise(n);
       }},
      {"hang",
       [](std::istream&) {
         while (true) pause(1000);
       }},
      {"sleep", [](std::istream& in) { pause(number(in)); }},
      {"store", [](std::istream&) { store(); }},
      {"fail", [](std::istream& in) { fail(in); }},
      {"note", [this](std::istream& in) { note(in); }},
      {"await", [](std::istream& in) { await(in); }},
      {"print",
       [](std::istream& in) {
         std::string text;
         std::getline(in >> std::ws, text);
         text += "\n";
         if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(99);
       }},
  };
};

}  // namespace

int main(int argc, char** argv) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, on_signal);
  if (argc != 2) return 2;
  const HeartbeatPage page = HeartbeatPage::attach(std::stoi(variable("RUNNER_HEARTBEAT_FD")),
                                                   std::stoul(variable("RUNNER_HEARTBEAT_SLOTS")));
  Worker worker(argv[1], page[std::stoul(variable("RUNNER_HEARTBEAT_SLOT"))]);
  std::istringstream orders(variable("FAKE"));
  std::string order;
  while (std::getline(orders, order, ';')) worker.obey(order);
  std::_Exit(0);
}
