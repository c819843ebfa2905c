#include "runner/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "runner/diag/error.h"
#include "runner/diag/render.h"
#include "runner/host/machine.h"
#include "runner/launch/address.h"
#include "runner/launch/crew.h"
#include "runner/launch/nonce.h"
#include "runner/launch/signal_reader.h"
#include "runner/launch/watch.h"
#include "runner/launch/write.h"

namespace runner::launch {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// A shell's `timeout` and a batch system signal a process and then its group: two of one signal
/// this close together are one request.
constexpr auto kOneRequest = milliseconds(100);

constexpr WatchTime kLook{250};         ///< between two looks at the heartbeats
constexpr WatchTime kBeat{1000};        ///< between two signs of life to another launcher
constexpr WatchTime kSuspicious{2000};  ///< a launcher silent for so long may be lost
constexpr WatchTime kShortestSilence{5000};
constexpr WatchTime kLongestSilence{30000};
constexpr WatchTime kKillTime{5000};  ///< a process in a driver's hands dies late or never

/// How long another launcher may be silent.
WatchTime silence_limit(const plan::Plan& plan) {
  return std::clamp(WatchTime(std::chrono::seconds(plan.timeout_seconds)), kShortestSilence,
                    kLongestSilence);
}

/// Time as this process lives through it: while it is stopped, or the machine sleeps, the ranks
/// can't be judged, and nothing may seem overdue right after.
class AttentiveClock {
 public:
  WatchTime now() {
    const auto at = steady_clock::now();
    time_ += std::min<steady_clock::duration>(at - last_, kLongestStep);
    last_ = at;
    return std::chrono::duration_cast<WatchTime>(time_);
  }

 private:
  static constexpr std::chrono::seconds kLongestStep{1};
  steady_clock::time_point last_ = steady_clock::now();
  steady_clock::duration time_{0};
};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// --- messages -------------------------------------------------------------------------------

Json to_json(const Sign& sign) {
  return Json::array({sign.beats, sign.step, static_cast<int>(sign.phase), sign.stopped});
}

/// Throws nlohmann's exceptions, as all readers of messages here do: see read_message.
Sign sign_of(const Json& json) {
  const int phase = json.at(2).get<int>();
  return {
      .beats = json.at(0).get<std::int64_t>(),
      .step = json.at(1).get<std::int64_t>(),
      .phase = static_cast<host::Phase>(std::clamp(phase, 0, static_cast<int>(host::Phase::done))),
      .stopped = json.at(3).get<bool>()};
}

Json to_json(const RankEnd& end) {
  Json json = {
      {"type", "ended"}, {"rank", end.rank}, {"status", end.status}, {"sign", to_json(end.last)}};
  if (end.record) json["failure"] = to_json(*end.record);
  return json;
}

RankEnd end_of(const Json& json) {
  RankEnd end{.rank = json.at("rank").get<std::int64_t>(),
              .status = json.at("status").get<int>(),
              .record = {},
              .last = sign_of(json.at("sign"))};
  if (json.contains("failure")) end.record = failure_from_json(json["failure"].get<std::string>());
  return end;
}

/// Calls `use` with a message; one that makes no sense is as bad as a broken connection: false.
template <class Use>
bool read_message(const std::string& text, const Use& use) {
  try {
    const Json json = Json::parse(text);
    use(json.at("type").get<std::string>(), json);
    return true;
  } catch (const Json::exception&) {
    return false;
  } catch (const std::out_of_range&) {
    return false;  // a rank that isn't one
  }
}

// --- what the leader and the others have in common --------------------------------------------

/// A signal that was passed on.
struct Passed {
  int signal = 0;
  bool again = false;  ///< not the first
};

/// The workers of this launcher, and the signals that come for them.
class Hands {
 public:
  [[nodiscard]] int signal_fd() const { return signals_.fd(); }
  [[nodiscard]] int passed() const { return passed_; }

  void start(const CrewPlan& plan) {
    crew_.reset();
    crew_.emplace(plan, signals_.old_mask());
  }
  [[nodiscard]] std::vector<RankEnd> take_ends() {
    return crew_ ? crew_->take_ends() : std::vector<RankEnd>();
  }
  [[nodiscard]] std::vector<Sign> signs() const {
    return crew_ ? crew_->signs() : std::vector<Sign>();
  }
  void kill() const {
    if (crew_) crew_->kill();
  }
  void drop() { crew_.reset(); }

  /// Passes on what has come, and says what the first one does.
  std::vector<Passed> pass_signals(bool say_so) {
    std::vector<Passed> result;
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGCHLD) continue;
      if (*signal == SIGTSTP) {
        if (crew_) crew_->signal(SIGSTOP);
        raise(SIGSTOP);
        if (crew_) crew_->signal(SIGCONT);
        continue;
      }
      const auto now = steady_clock::now();
      if (*signal == passed_ && now - last_ < kOneRequest) continue;
      if (passed_ == 0 && say_so && (*signal == SIGINT || *signal == SIGTERM)) {
        constexpr std::string_view kText =
            "\nfinishing the step and saving; once more to end at once\n";
        [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
      }
      result.push_back({*signal, passed_ != 0});
      passed_ = *signal;
      last_ = now;
      if (!crew_) continue;
      crew_->signal(*signal == SIGHUP ? SIGTERM : *signal);
      crew_->signal(SIGCONT);  // a worker that is stopped must hear it too
    }
    return result;
  }

 private:
  SignalReader signals_;
  std::optional<Crew> crew_;
  int passed_ = 0;
  steady_clock::time_point last_{};
};

/// Waits for a signal (the end of a worker too), a message, or the time to look again; `time` < 0
/// is never.
void wait(const Hands& hands, const Meeting* meeting, int time) {
  std::vector<pollfd> waiting = {{.fd = hands.signal_fd(), .events = POLLIN, .revents = 0}};
  if (meeting != nullptr) meeting->add_to(waiting);
  poll(waiting.data(), waiting.size(), time);
}

std::string ranks_of(const Topology& topology) {
  std::vector<std::int64_t> ranks;
  ranks.reserve(static_cast<std::size_t>(topology.ranks_here));
  for (std::int64_t i = 0; i < topology.ranks_here; ++i) ranks.push_back(topology.first_rank + i);
  return ranks_text(ranks);
}

CrewPlan crew_plan(const Job& job, const plan::Plan& plan, fs::path plan_file,
                   std::int64_t attempt) {
  return {.plan = plan,
          .topology = job.topology,
          .plan_file = std::move(plan_file),
          .worker = job.worker,
          .address = job.meeting != nullptr ? job.meeting->address() : "127.0.0.1",
          .store = {},
          .store_fd = -1,
          .attempt = attempt,
          .gpus = job.gpus.empty() ? plan.devices.ids : job.gpus,
          .devices = job.devices};
}

/// torchrun shows what it finds for each of its processes, and as the root cause the first of them.
void tell_torchrun(const Job& job, const Failure& failure) {
  const char* file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (file == nullptr || *file == '\0') return;
  const Topology& t = job.topology;
  const bool ours =
      failure.rank < 0 ? t.launcher == 0
                       : failure.rank >= t.first_rank && failure.rank < t.first_rank + t.ranks_here;
  write_torchelastic_error(file, failure, ours);
}

// --- the leader -----------------------------------------------------------------------------

/// An evaluation keeps the plan of the training as it is.
std::string plan_name(const plan::Plan& plan) {
  return plan.mode == plan::Mode::test ? "test-plan.json" : "plan.json";
}

/// "step 400" of .../step-0000000400; "the start" when there is no checkpoint.
std::string origin_text(const plan::Plan& plan) {
  if (!plan.resume_from) return "the start";
  std::string name = fs::path(*plan.resume_from).filename().string();
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  if (digits >= name.size()) return name;
  const std::size_t first = std::min(name.find_first_not_of('0', digits), name.size() - 1);
  return "step " + name.substr(first);
}

/// A socket that rank 0's store takes over: nobody else can have its port meanwhile.
host::UniqueFd listen_for_store(const std::string& host) {
  host::UniqueFd fd = listen_at(resolve(host, 0).front());
  if (!fd) {
    throw diag::Error(diag::Exit::machine, "can't listen at " + host + ": " + std::strerror(errno));
  }
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

class Leader {
 public:
  explicit Leader(const Job& job)
      : job_(job), plan_(job.plan), meeting_(job.meeting), world_(job.topology.world_size) {
    hosts_.assign(static_cast<std::size_t>(world_), job.host);
    if (meeting_ == nullptr) return;
    heard_.resize(meeting_->peers().size());
    for (const Peer& peer : meeting_->peers()) {
      for (std::int64_t i = 0; i < peer.ranks; ++i)
        hosts_.at(static_cast<std::size_t>(peer.first_rank + i)) = peer.host;
    }
  }

  Outcome run() {
    std::error_code ignored;
    fs::remove(failure_file(), ignored);
    try {
      for (std::int64_t attempt = 0;; ++attempt) {
        if (run_attempt(attempt)) break;
      }
    } catch (const diag::Error& error) {
      hands_.drop();
      part(static_cast<int>(error.exit()), {});
      throw;
    }
    Outcome outcome{watch_->exit_status(), watch_->failure()};
    if (outcome.failure) {
      // A copy for later, on a disk that may be full.
      std::ofstream(failure_file(), std::ios::binary) << to_json(*outcome.failure) << "\n";
      tell_torchrun(job_, *outcome.failure);
    }
    hands_.drop();
    part(outcome.exit_status, outcome.failure);
    return outcome;
  }

 private:
  [[nodiscard]] fs::path failure_file() const {
    return fs::path(plan_.run_folder) / "failure.json";
  }

  /// Whether it was the last one.
  bool run_attempt(std::int64_t attempt) {
    attempt_ = attempt;
    clock_ = {};
    looked_at_ = -kLook;
    beat_at_ = -kBeat;
    watch_.emplace(WatchSettings{.hosts = hosts_,
                                 .timeout = std::chrono::seconds(plan_.timeout_seconds),
                                 .start_timeout = std::chrono::seconds(plan_.start_timeout_seconds),
                                 .attempt = attempt,
                                 .cuda = plan_.devices.type == "cuda"});
    std::fill(heard_.begin(), heard_.end(), std::nullopt);
    start();
    std::optional<WatchTime> killed_at;
    while (!watch_->all_ended()) {
      const bool hurry = watch_->waits_for_cause() || killed_at;
      wait(hands_, meeting_, world_ == 1 ? -1 : static_cast<int>(hurry ? 50 : kLook.count()));
      look();
      if (!watch_->must_kill() || watch_->all_ended()) continue;
      const WatchTime now = clock_.now();
      if (!killed_at) {
        kill_all();
        killed_at = now;
      }
      if (now - *killed_at >= kKillTime) return true;
    }
    return !prepare_restart();
  }

  void start() {
    CrewPlan crew = crew_plan(job_, plan_, fs::path(plan_.run_folder) / plan_name(plan_), attempt_);
    const std::string text = plan::to_json(plan_);
    write_whole(crew.plan_file, text);
    host::UniqueFd store;
    if (world_ > 1) {
      store = listen_for_store(meeting_ != nullptr ? meeting_->rendezvous() : "127.0.0.1");
      const Address place = local_address(store.get());
      crew.store = {.host = place.host(),
                    .port = place.port(),
                    .prefix = random_nonce() + "-" + std::to_string(attempt_)};
      crew.store_fd = store.get();
    }
    if (meeting_ != nullptr) {
      meeting_->send_all(dump({{"type", "start"},
                               {"attempt", attempt_},
                               {"plan", text},
                               {"plan_name", plan_name(plan_)},
                               {"store_host", crew.store.host},
                               {"store_port", crew.store.port},
                               {"store_prefix", crew.store.prefix}}));
    }
    hands_.start(crew);
  }

  void look() {
    for (const Passed& p : hands_.pass_signals(!plan_.quiet)) watch_->passed(p.signal, p.again);
    const WatchTime now = clock_.now();
    for (const RankEnd& end : hands_.take_ends()) watch_->ended(end, now);
    if (world_ == 1) return;
    hear(now);
    if (now - looked_at_ >= kLook) {
      looked_at_ = now;
      const std::vector<Sign> signs = hands_.signs();
      for (std::size_t i = 0; i < signs.size(); ++i) {
        watch_->sign(job_.topology.first_rank + static_cast<std::int64_t>(i), signs[i], now);
      }
      look_at_launchers(now);
    }
    watch_->look(now);
  }

  void hear(WatchTime now) {
    if (meeting_ == nullptr) return;
    for (const Meeting::Event& event : meeting_->receive()) {
      if (!event.message) {
        lose(event.peer, "is gone", "see what it said on its own machine");
        continue;
      }
      heard_[event.peer] = now;
      const bool fine = read_message(
          *event.message,
          [&](const std::string& type, const Json& json) { take(event.peer, type, json, now); });
      if (!fine) lose(event.peer, "sent what makes no sense", "is it the same runner?");
    }
  }

  void take(std::size_t peer, const std::string& type, const Json& json, WatchTime now) {
    const Peer& from = meeting_->peers()[peer];
    if (type == "passed") {
      watch_->passed(json.at("signal").get<int>(), json.at("again").get<bool>());
      return;
    }
    // What it says of an earlier attempt is over.
    if (json.at("attempt").get<std::int64_t>() != attempt_) return;
    if (type == "beat") {
      const Json& signs = json.at("signs");
      for (std::int64_t i = 0; i < from.ranks && i < static_cast<std::int64_t>(signs.size()); ++i) {
        watch_->sign(from.first_rank + i, sign_of(signs[static_cast<std::size_t>(i)]), now);
      }
    } else if (type == "ended") {
      watch_->ended(end_of(json), now);
    } else if (type == "failed") {
      Failure failure =
          failure_from_json(json.at("failure").get<std::string>()).value_or(Failure());
      failure.host = from.host;
      failure.message = name(from) + ": " + failure.message;
      watch_->fail(std::move(failure));
      watch_->gone(from.first_rank, from.ranks);
    }
  }

  [[nodiscard]] static std::string name(const Peer& peer) {
    std::vector<std::int64_t> ranks;
    ranks.reserve(static_cast<std::size_t>(peer.ranks));
    for (std::int64_t i = 0; i < peer.ranks; ++i) ranks.push_back(peer.first_rank + i);
    return "launcher " + std::to_string(peer.launcher) + " (" + peer.host + ", " +
           ranks_text(ranks) + ")";
  }

  static Failure lost(const Peer& peer, const std::string& what, const std::string& help) {
    return {.message = name(peer) + " " + what, .help = help, .host = peer.host};
  }

  void lose(std::size_t peer, const std::string& what, const std::string& help) {
    const Peer& gone = meeting_->peers()[peer];
    watch_->fail(lost(gone, what, help));
    watch_->gone(gone.first_rank, gone.ranks);
    meeting_->drop(peer);
    complete_ = false;
  }

  /// The signs of life between launchers.
  void look_at_launchers(WatchTime now) {
    if (meeting_ == nullptr) return;
    if (now - beat_at_ >= kBeat) {
      beat_at_ = now;
      meeting_->send_all(R"({"type":"beat"})");
    }
    std::optional<Failure> suspect;
    for (std::size_t i = 0; i < heard_.size(); ++i) {
      const Peer& peer = meeting_->peers()[i];
      if (!peer.connection.open()) continue;
      const WatchTime limit = heard_[i]
                                  ? silence_limit(plan_)
                                  : WatchTime(std::chrono::seconds(plan_.start_timeout_seconds));
      const WatchTime silence = now - heard_[i].value_or(WatchTime(0));
      const std::string what = "was not heard of for " + seconds_text(silence);
      const std::string help = "is its machine up, and the network between?";
      if (silence >= limit) {
        lose(i, what, help);
      } else if (heard_[i] && silence >= kSuspicious) {
        suspect = lost(peer, what, help);
      }
    }
    watch_->suspect(std::move(suspect));
  }

  void kill_all() {
    hands_.kill();
    if (meeting_ != nullptr) meeting_->send_all(R"({"type":"kill"})");
  }

  /// Whether another attempt follows; says so.
  bool prepare_restart() {
    if (!watch_->may_restart() || attempt_ >= plan_.max_restarts || !job_.next_plan || !complete_)
      return false;
    if (was_stopped()) return false;
    hands_.drop();
    // It may read whole checkpoints, in which time nothing is said.
    if (meeting_ != nullptr) meeting_->send_all(R"({"type":"wait"})");
    const Failure& failure = *watch_->failure();
    plan::Plan next;
    try {
      next = job_.next_plan(failure);
    } catch (const diag::Error& error) {
      watch_->add_help(std::string("no restart: ") + error.what());
      return false;
    }
    if (was_stopped()) return false;
    plan_ = std::move(next);
    plan_.max_restarts = job_.plan.max_restarts;
    const std::string line =
        diag::visible(failure.message) + "; restart " + std::to_string(attempt_ + 1) + " of " +
        std::to_string(plan_.max_restarts) + " from " + origin_text(plan_) + "\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    return true;
  }

  /// Whether somebody wants the run to end, instead of another attempt.
  bool was_stopped() {
    (void)hands_.pass_signals(/*say_so=*/false);
    return hands_.passed() != 0;
  }

  void part(int status, const std::optional<Failure>& failure) {
    if (meeting_ == nullptr) return;
    Json over = {{"type", "over"}, {"status", status}};
    if (failure) over["failure"] = to_json(*failure);
    meeting_->part(dump(over));
  }

  const Job& job_;
  plan::Plan plan_;
  Meeting* meeting_;
  std::int64_t world_;
  std::vector<std::string> hosts_;  ///< by rank
  Hands hands_;
  AttentiveClock clock_;
  std::optional<Watch> watch_;
  std::int64_t attempt_ = 0;
  WatchTime looked_at_{0}, beat_at_{0};
  std::vector<std::optional<WatchTime>> heard_;  ///< by peer: when last, in this attempt
  bool complete_ = true;                         ///< no launcher was lost
};

// --- the others -----------------------------------------------------------------------------

/// The plan as a file that workers can read: the leader's own where this machine sees it.
class PlanFile {
 public:
  PlanFile(const fs::path& shared, const std::string& text) : path_(shared) {
    std::ifstream in(shared, std::ios::binary);
    if (std::string(std::istreambuf_iterator<char>(in), {}) == text) return;
    fd_.reset(memfd_create("plan.json", MFD_CLOEXEC));
    path_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_.get());
    std::ofstream out(path_, std::ios::binary);
    if (!(out << text << std::flush))
      throw diag::Error(diag::Exit::machine, "can't make a file in memory");
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  host::UniqueFd fd_;
  fs::path path_;
};

class Follower {
 public:
  explicit Follower(const Job& job)
      : job_(job),
        meeting_(*job.meeting),
        limit_(std::chrono::seconds(job.plan.start_timeout_seconds)) {}

  Outcome run() {
    look();  // the start may have come with the end of the meeting
    while (!outcome_) {
      wait(hands_, &meeting_, static_cast<int>(kLook.count()));
      look();
    }
    hands_.drop();
    meeting_.part(R"({"type":"bye"})");
    return *outcome_;
  }

 private:
  void look() {
    for (const Passed& p : hands_.pass_signals(/*say_so=*/false)) {
      tell({{"type", "passed"}, {"signal", p.signal}, {"again", p.again}});
      if (!plan_) return end(128 + p.signal, {});
    }
    const WatchTime now = clock_.now();
    tell_ends();
    for (const Meeting::Event& event : meeting_.receive()) {
      if (outcome_) return;
      if (!event.message) return lose_leader("is gone");
      heard_ = now;
      const bool fine = read_message(
          *event.message, [this](const std::string& type, const Json& json) { take(type, json); });
      if (!fine) return lose_leader("sent what makes no sense");
    }
    if (now - beat_at_ >= kBeat) {
      beat_at_ = now;
      Json signs = Json::array();
      for (const Sign& sign : hands_.signs()) signs.push_back(to_json(sign));
      tell({{"type", "beat"}, {"signs", std::move(signs)}});
    }
    if (now - heard_ >= limit_) lose_leader("was not heard of for " + seconds_text(now - heard_));
  }

  void tell_ends() {
    for (const RankEnd& end : hands_.take_ends()) tell(to_json(end));
  }

  void tell(Json message) {
    message["attempt"] = attempt_;
    meeting_.send(0, dump(message));
  }

  void take(const std::string& type, const Json& json) {
    if (type == "start") {
      limit_ = WatchTime::max();
      start(json);
    } else if (type == "kill") {
      hands_.kill();
    } else if (type == "wait") {
      limit_ = std::chrono::seconds(plan_ ? plan_->start_timeout_seconds
                                          : job_.plan.start_timeout_seconds);
      return;
    } else if (type == "over") {
      if (json.contains("failure")) {
        const auto failure = failure_from_json(json["failure"].get<std::string>());
        if (failure) tell_torchrun(job_, *failure);
      }
      end(json.at("status").get<int>(), {});
    }
    if (plan_) limit_ = silence_limit(*plan_);
  }

  void start(const Json& json) {
    attempt_ = json.at("attempt").get<std::int64_t>();
    try {
      plan_ = plan::from_json(json.at("plan").get<std::string>());
      plan_->base_folder = job_.plan.base_folder;
      plan_->shared_folder = job_.plan.shared_folder;
      std::error_code ignored;  // the log says it better
      fs::create_directories(plan_->run_folder, ignored);
      plan_file_.emplace(fs::path(plan_->run_folder) / json.at("plan_name").get<std::string>(),
                         plan::to_json(*plan_));
      CrewPlan crew = crew_plan(job_, *plan_, plan_file_->path(), attempt_);
      crew.store = {.host = json.at("store_host").get<std::string>(),
                    .port = json.at("store_port").get<int>(),
                    .prefix = json.at("store_prefix").get<std::string>()};
      hands_.start(crew);
    } catch (const diag::Error& error) {
      hands_.drop();
      const Failure failure{.message = error.what(),
                            .help = error.help(),
                            .exit = static_cast<int>(error.exit()),
                            .host = job_.host};
      tell({{"type", "failed"}, {"failure", launch::to_json(failure)}});
    }
  }

  void lose_leader(const std::string& what) {
    hands_.kill();
    if (hands_.passed() != 0) return end(128 + hands_.passed(), {});
    end(static_cast<int>(diag::Exit::failed),
        Failure{.message = "the leader (" + meeting_.peers().front().host + ") " + what,
                .help = "see what it said on its own machine; " + ranks_of(job_.topology) +
                        " can't go on without it",
                .host = job_.host});
  }

  void end(int status, std::optional<Failure> failure) {
    outcome_ = Outcome{status, std::move(failure)};
  }

  const Job& job_;
  Meeting& meeting_;
  Hands hands_;
  AttentiveClock clock_;
  std::optional<plan::Plan> plan_;
  std::optional<PlanFile> plan_file_;
  std::optional<Outcome> outcome_;
  std::int64_t attempt_ = 0;
  WatchTime heard_{0}, beat_at_{-kBeat};
  WatchTime limit_;
};

}  // namespace

Outcome supervise(const Job& job) {
  if (job.meeting != nullptr && !job.meeting->leads()) return Follower(job).run();
  return Leader(job).run();
}

Outcome run_alone(const plan::Plan& plan, const std::filesystem::path& worker) {
  Job job;
  job.plan = plan;
  job.worker = worker;
  job.host = host::system_machine().hostname();
  return supervise(job);
}

}  // namespace runner::launch
