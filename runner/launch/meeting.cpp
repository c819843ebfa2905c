#include "runner/launch/meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "runner/diag/error.h"
#include "runner/host/text.h"
#include "runner/launch/address.h"
#include "runner/launch/failure.h"
#include "runner/launch/nonce.h"

namespace runner::launch {

namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using TimePoint = steady_clock::time_point;

constexpr std::size_t kMaxGreeting = 64 << 10;
constexpr std::size_t kMaxStrangers = 128;          ///< connections that have not greeted
constexpr auto kGreetingTime = milliseconds(5000);  ///< that a connection has to greet
constexpr auto kAnswerTime = milliseconds(5000);    ///< that a port has to answer a greeting
constexpr auto kRoundTime = milliseconds(300);      ///< until ports that refused are tried again
constexpr auto kPartingTime = milliseconds(2000);
constexpr auto kFirstPause = milliseconds(50);
constexpr auto kLongestPause = milliseconds(500);
/// The leader's own end of waiting comes first, and says who is missing.
constexpr auto kLeaderTalks = milliseconds(5000);

constexpr std::string_view kDefaultHost = "127.0.0.1";
/// What the launchers of a run hear when the leader ends without a word, by an error before the
/// run began.
constexpr std::string_view kOver = R"({"type":"over","status":1})";

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// A JSON object with a text "type"; null otherwise.
Json parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("type") || !json["type"].is_string()) return nullptr;
  return json;
}

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::int64_t number_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
}

int wait_until(std::vector<pollfd>& waiting, TimePoint end) {
  const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
  return poll(waiting.data(), waiting.size(),
              static_cast<int>(std::max<milliseconds::rep>(0, left.count())));
}

pollfd wait_for(const Connection& connection) {
  const int events = POLLIN | (connection.wants_to_write() ? POLLOUT : 0);
  return {.fd = connection.fd(), .events = static_cast<short>(events), .revents = 0};
}

std::string master_host(const Topology& topology) {
  const std::string& host = topology.started.master_addr;
  return host.empty() ? std::string(kDefaultHost) : host;
}

/// "launcher 1 (h2, ranks 2-3)"; without the host where it isn't known.
std::string launcher_text(std::int64_t launcher, const std::string& host, std::int64_t first_rank,
                          std::int64_t ranks) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(std::max<std::int64_t>(1, ranks)));
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = first_rank + static_cast<std::int64_t>(i);
  return "launcher " + std::to_string(launcher) + " (" + (host.empty() ? "" : host + ", ") +
         ranks_text(list) + ")";
}

/// Sends a last message over connections that are about to close, and waits until the other sides
/// have: a close with something unread would take the message away again.
void say_farewell(const std::vector<Connection*>& connections, std::string_view message) {
  for (Connection* c : connections) c->send(message);
  const TimePoint end = steady_clock::now() + kPartingTime;
  while (true) {
    std::vector<pollfd> waiting;
    for (Connection* c : connections) {
      if (!c->open()) continue;
      c->flush();
      (void)c->receive();
      if (c->open()) waiting.push_back(wait_for(*c));
    }
    if (waiting.empty() || steady_clock::now() >= end) return;
    wait_until(waiting, end);
  }
}

// --- the leader -----------------------------------------------------------------------------

/// What names the leader's host, or the port: a flag to people who start nodes by hand.
bool is_told_by_flags(const Topology& topology) {
  return topology.started.starter == Starter::hand || topology.started.starter == Starter::nobody;
}
std::string name_of_host(const Topology& topology) {
  return is_told_by_flags(topology) ? "--master-addr" : "MASTER_ADDR";
}
std::string name_of_port(const Topology& topology) {
  return is_told_by_flags(topology) ? "--master-port" : "MASTER_PORT";
}

[[noreturn]] void no_such_address(const Topology& topology, const std::string& host,
                                  const std::string& number) {
  const std::string named = host == number ? host : "'" + host + "' is " + number + ", which";
  throw diag::Error(
      diag::Exit::machine,
      named + " is no address of this machine (it has " + host::join(machine_addresses()) + ")",
      "the leader, node rank 0, must run on the machine of " + name_of_host(topology));
}

/// A name that stands for loopback in this machine's own /etc/hosts is reached elsewhere under an
/// address that only the machine's interfaces tell.
std::string reachable_host(const Topology& topology, const std::string& host) {
  const std::vector<Address> found = resolve(host, 0);
  const bool number = host == found.front().host() || host == "localhost";
  const bool only_loopback =
      std::all_of(found.begin(), found.end(), [](const Address& a) { return a.is_loopback(); });
  if (number || !only_loopback || topology.num_nodes == 1) return host;
  const std::vector<std::string> own = machine_addresses();
  if (own.size() == 1) return own.front();
  throw diag::Error(
      diag::Exit::machine,
      "'" + host + "' is " + found.front().host() +
          " on this machine, which no other machine can reach",
      "give one of its addresses (" + host::join(own) + ") as " + name_of_host(topology));
}

/// Under torchrun the named host is that of its store, which may be another machine.
std::string agent_side_host(const Topology& topology) {
  const std::string host = master_host(topology);
  const Address there = resolve(host, topology.started.master_port.value_or(1)).front();
  const std::string here = address_towards(there);
  return here.empty() ? host : here;
}

/// A socket at the first of the ports that is free on the first of the host's addresses that is
/// this machine's.
host::UniqueFd listen_for_launchers(const Topology& topology, const MeetingOptions& options) {
  const bool agent = topology.started.agent_store;
  const std::string host =
      agent ? agent_side_host(topology) : reachable_host(topology, master_host(topology));
  std::vector<int> ports = options.ports;
  if (topology.started.master_port) ports = {*topology.started.master_port};
  if (agent) ports = {0};
  std::string where;
  for (const int port : ports) {
    const Address* tried = nullptr;
    int error = 0;
    const std::vector<Address> addresses = resolve(host, port);
    for (const Address& address : addresses) {
      host::UniqueFd fd = listen_at(address);
      if (fd) return fd;
      error = errno;
      if (error == EADDRNOTAVAIL) continue;
      tried = &address;
      break;
    }
    if (tried == nullptr) no_such_address(topology, host, addresses.front().host());
    where = tried->host();
    if (error != EADDRINUSE) {
      throw diag::Error(diag::Exit::machine,
                        "can't listen at " + tried->text() + ": " + std::strerror(error),
                        "name another port: " + name_of_port(topology));
    }
  }
  if (ports.size() == 1) {
    throw diag::Error(diag::Exit::machine,
                      "port " + std::to_string(ports.front()) + " on " + where + " is in use",
                      "name another port on all machines: " + name_of_port(topology));
  }
  throw diag::Error(diag::Exit::machine,
                    "the ports " + std::to_string(ports.front()) + " to " +
                        std::to_string(ports.back()) + " that were tried on " + where +
                        " are in use",
                    "name a free one on all machines: " + name_of_port(topology));
}

/// Gathers the other launchers.
class Gathering {
 public:
  Gathering(const Topology& topology, const MeetingOptions& options)
      : topology_(topology),
        options_(options),
        listening_(listen_for_launchers(topology, options)),
        place_(local_address(listening_.get())),
        nonce_(random_nonce()) {
    if (options_.publish && topology_.started.agent_store)
      options_.publish(place_.host() + " " + std::to_string(place_.port()) + " " + nonce_);
  }

  [[nodiscard]] const Address& place() const { return place_; }

  std::vector<Peer> gather() {
    const TimePoint end = steady_clock::now() + options_.start_timeout;
    while (static_cast<std::int64_t>(peers_.size()) + 1 < topology_.launchers) {
      if (steady_clock::now() >= end) give_up();
      wait(end);
      accept_strangers();
      hear_strangers();
      hear_peers();
    }
    listening_.reset();
    std::sort(peers_.begin(), peers_.end(),
              [](const Peer& a, const Peer& b) { return a.launcher < b.launcher; });
    for (Peer& peer : peers_) peer.connection.send(R"({"type":"complete"})");
    return std::move(peers_);
  }

 private:
  struct Stranger {
    Connection connection;
    TimePoint end;
  };

  void wait(TimePoint end) {
    std::vector<pollfd> waiting = {{.fd = listening_.get(), .events = POLLIN, .revents = 0}};
    for (const Stranger& s : strangers_) {
      waiting.push_back(wait_for(s.connection));
      end = std::min(end, s.end);
    }
    for (const Peer& p : peers_) waiting.push_back(wait_for(p.connection));
    wait_until(waiting, end);
  }

  void accept_strangers() {
    while (true) {
      const int fd = accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        // Out of descriptors, the listening socket stays readable: no busy loop over it.
        if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kFirstPause);
        return;
      }
      strangers_.push_back(
          {Connection(host::UniqueFd(fd), kMaxGreeting), steady_clock::now() + kGreetingTime});
      if (strangers_.size() > kMaxStrangers) strangers_.pop_front();
    }
  }

  void hear_strangers() {
    for (auto at = strangers_.begin(); at != strangers_.end();) {
      std::vector<std::string> messages = at->connection.receive();
      if (!messages.empty()) greet(std::move(at->connection), parse(messages.front()));
      const bool finished =
          !messages.empty() || !at->connection.open() || steady_clock::now() >= at->end;
      at = finished ? strangers_.erase(at) : std::next(at);
    }
  }

  /// One that leaves again, by Ctrl-C for example, may be started again.
  void hear_peers() {
    for (Peer& peer : peers_) {
      peer.connection.flush();
      (void)peer.connection.receive();
    }
    std::erase_if(peers_, [](const Peer& p) { return !p.connection.open(); });
  }

  void greet(Connection connection, const Json& hello) {
    if (hello.is_null() || text_of(hello, "type") != "hello" ||
        text_of(hello, "identity") != topology_.started.identity)
      return;
    for (const char* key : {"launcher", "launchers", "world_size", "first_rank", "ranks"}) {
      if (number_of(hello, key) < 0) return;
    }
    const std::int64_t launcher = number_of(hello, "launcher");
    const std::string host = text_of(hello, "host");
    const std::string name = "launcher " + std::to_string(launcher) + " (on " + host + ")";
    if (number_of(hello, "launchers") != topology_.launchers ||
        number_of(hello, "world_size") != topology_.world_size || launcher < 1 ||
        launcher >= topology_.launchers) {
      refuse_all(std::move(connection),
                 name + " is one of " + std::to_string(number_of(hello, "launchers")) + " with " +
                     std::to_string(number_of(hello, "world_size")) + " ranks, the leader (on " +
                     options_.host + ") one of " + std::to_string(topology_.launchers) + " with " +
                     std::to_string(topology_.world_size),
                 "start all of them with the same number of nodes and devices");
    }
    if (text_of(hello, "version") != options_.version) {
      refuse_all(std::move(connection),
                 name + " is runner " + text_of(hello, "version") + ", the leader (on " +
                     options_.host + ") is " + options_.version,
                 "install one version on all machines");
    }
    if (text_of(hello, "digest") != options_.digest) {
      refuse_all(std::move(connection),
                 name + " has another experiment than the leader (on " + options_.host + ")",
                 "give all of them the same file and the same overrides");
    }
    const std::int64_t first_rank = number_of(hello, "first_rank");
    const std::int64_t ranks = number_of(hello, "ranks");
    if (ranks < 1 || first_rank > topology_.world_size - ranks) return;
    // One that was killed, or tired of waiting, may be back before its end is noticed.
    const std::string process = text_of(hello, "process");
    std::erase_if(peers_, [&](Peer& p) {
      (void)p.connection.receive();
      return !p.connection.open() || (p.launcher == launcher && processes_[launcher] == process);
    });
    const auto same = std::find_if(peers_.begin(), peers_.end(),
                                   [&](const Peer& p) { return p.launcher == launcher; });
    if (same != peers_.end()) {
      say_farewell({&connection}, refusal("launcher " + std::to_string(launcher) +
                                              " is here already, from " + same->host,
                                          "give each launcher its own number: --node-rank", 3));
      return;
    }
    processes_[launcher] = process;
    connection.set_limit(Connection::kMaxMessage);
    connection.send(dump({{"type", "welcome"}, {"host", options_.host}, {"nonce", nonce_}}));
    peers_.push_back({.launcher = launcher,
                      .first_rank = first_rank,
                      .ranks = ranks,
                      .host = host,
                      .connection = std::move(connection)});
  }

  static std::string refusal(const std::string& message, const std::string& help, int exit) {
    return dump({{"type", "refused"}, {"message", message}, {"help", help}, {"exit", exit}});
  }

  void tell_all(const std::string& message, Connection* one_more) {
    std::vector<Connection*> all;
    all.reserve(peers_.size() + 1);
    for (Peer& peer : peers_) all.push_back(&peer.connection);
    if (one_more != nullptr) all.push_back(one_more);
    say_farewell(all, message);
  }

  [[noreturn]] void refuse_all(Connection connection, const std::string& message,
                               const std::string& help) {
    const diag::Exit exit = diag::Exit::incompatible;
    tell_all(refusal(message, help, static_cast<int>(exit)), &connection);
    throw diag::Error(exit, message, help);
  }

  [[noreturn]] void give_up() {
    std::string missing;
    for (std::int64_t i = 1; i < topology_.launchers; ++i) {
      if (std::any_of(peers_.begin(), peers_.end(), [i](const Peer& p) { return p.launcher == i; }))
        continue;
      missing += (missing.empty() ? "" : ", ") +
                 launcher_text(i, "", i * topology_.ranks_here, topology_.ranks_here);
    }
    const std::string in = " in " + seconds_text(options_.start_timeout);
    const std::string came = std::to_string(peers_.size() + 1) + " of " +
                             std::to_string(topology_.launchers) + " launchers came" + in +
                             "; missing: " + missing;
    tell_all(refusal("the leader at " + place_.text() + " waited for " + missing + in,
                     "start it, or see why it didn't come", 1),
             nullptr);
    throw diag::Error(
        diag::Exit::failed, came,
        std::string("start it with the same command") +
            (topology_.started.starter == Starter::hand ? " and its --node-rank" : "") +
            ", and see that it reaches " + place_.text());
  }

  const Topology& topology_;
  const MeetingOptions& options_;
  host::UniqueFd listening_;
  Address place_;
  std::string nonce_;
  std::list<Stranger> strangers_;
  std::vector<Peer> peers_;
  std::map<std::int64_t, std::string> processes_;  ///< by launcher: by what it is known
};

// --- the others -----------------------------------------------------------------------------

/// A place that was greeted.
struct Asked {
  std::string place;
  Connection connection;
  TimePoint end;  ///< of waiting for its answer
};

/// Where the leader may be, and the nonce by which it is known ("" when any will do).
struct Places {
  std::vector<Address> addresses;
  std::string nonce;
};

class Search {
 public:
  Search(const Topology& topology, const MeetingOptions& options)
      : topology_(topology), options_(options), end_(steady_clock::now() + options.start_timeout) {}

  /// The leader, once all launchers have met.
  Peer find() {
    auto pause = kFirstPause;
    while (true) {
      if (auto leader = ask(places())) return std::move(*leader);
      if (steady_clock::now() + pause >= end_) give_up();
      std::this_thread::sleep_for(pause);
      pause = std::min<milliseconds>(kLongestPause, pause * 2);
    }
  }
  [[nodiscard]] const Address& own_address() const { return own_address_; }

 private:
  Places places() {
    try {
      if (topology_.started.agent_store && options_.look_up) {
        std::istringstream in(options_.look_up());
        std::string host;
        std::string nonce;
        int port = 0;
        if (!(in >> host >> port >> nonce)) return {};
        return {.addresses = resolve(host, port), .nonce = nonce};
      }
      const std::string host = master_host(topology_);
      Places places;
      std::vector<int> ports = options_.ports;
      if (topology_.started.master_port) ports = {*topology_.started.master_port};
      for (const int port : ports) {
        for (const Address& address : resolve(host, port)) places.addresses.push_back(address);
      }
      return places;
    } catch (const diag::Error& error) {
      reason_ = error.what();  // a name server may know it in a moment
      return {};
    }
  }

  [[nodiscard]] std::string hello() const {
    return dump({{"type", "hello"},
                 {"identity", topology_.started.identity},
                 {"launcher", topology_.launcher},
                 {"launchers", topology_.launchers},
                 {"world_size", topology_.world_size},
                 {"first_rank", topology_.first_rank},
                 {"ranks", topology_.ranks_here},
                 {"host", options_.host},
                 {"version", options_.version},
                 {"digest", options_.digest},
                 {"process", process_}});
  }

  /// Greets at all places at once, and stays with the first that welcomes us. A place that has
  /// accepted and says nothing keeps its time over several rounds: the leader may be busy, and
  /// counts on whoever has greeted.
  std::optional<Peer> ask(const Places& places) {
    std::erase_if(asked_, [](const Asked& a) {
      return !a.connection.open() || steady_clock::now() >= a.end;
    });
    for (const Address& address : places.addresses) {
      const std::string place = address.text();
      if (std::any_of(asked_.begin(), asked_.end(),
                      [&](const Asked& a) { return a.place == place; }))
        continue;
      host::UniqueFd fd = connect_to(address);
      if (!fd) continue;
      asked_.push_back(
          {place, Connection(std::move(fd), kMaxGreeting), steady_clock::now() + kAnswerTime});
      asked_.back().connection.send(hello());
    }
    const TimePoint end = std::min(end_, steady_clock::now() + kRoundTime);
    while (steady_clock::now() < end) {
      std::vector<pollfd> waiting;
      for (Asked& asked : asked_) {
        Connection& connection = asked.connection;
        if (!connection.open()) continue;
        connection.flush();
        const std::vector<std::string> messages = connection.receive();
        if (!messages.empty()) {
          const Json answer = parse(messages.front());
          if (is_welcome(answer, places)) {
            own_address_ = local_address(connection.fd());
            Connection welcomed = std::move(connection);
            asked_.clear();
            return until_complete(std::move(welcomed), answer, messages);
          }
          connection.close();
        }
        if (connection.open()) waiting.push_back(wait_for(connection));
      }
      if (waiting.empty()) return {};
      wait_until(waiting, end);
    }
    return {};
  }

  static bool is_welcome(const Json& answer, const Places& places) {
    if (answer.is_null()) return false;
    throw_if_refused(answer);
    return text_of(answer, "type") == "welcome" &&
           (places.nonce.empty() || text_of(answer, "nonce") == places.nonce);
  }

  static void throw_if_refused(const Json& answer) {
    if (text_of(answer, "type") != "refused") return;
    const bool incompatible = number_of(answer, "exit") == 3;
    throw diag::Error(incompatible ? diag::Exit::incompatible : diag::Exit::failed,
                      text_of(answer, "message"), text_of(answer, "help"));
  }

  /// Waits for the others. A leader that goes away meanwhile may come back.
  std::optional<Peer> until_complete(Connection connection, const Json& welcome,
                                     std::vector<std::string> messages) {
    connection.set_limit(Connection::kMaxMessage);
    const TimePoint end = steady_clock::now() + options_.start_timeout + kLeaderTalks;
    messages.erase(messages.begin());
    while (true) {
      for (auto at = messages.begin(); at != messages.end(); ++at) {
        const Json json = parse(*at);
        if (json.is_null()) return {};
        throw_if_refused(json);
        if (text_of(json, "type") == "complete") {
          return Peer{.launcher = 0,
                      .first_rank = 0,
                      .ranks = 0,
                      .host = text_of(welcome, "host"),
                      .connection = std::move(connection),
                      .unread = {std::next(at), messages.end()}};
        }
      }
      if (!connection.open()) return {};
      if (steady_clock::now() >= end) {
        throw diag::Error(diag::Exit::failed,
                          "the leader (on " + text_of(welcome, "host") +
                              ") waits for other launchers and says nothing",
                          "see what it says on its own machine");
      }
      std::vector<pollfd> waiting = {wait_for(connection)};
      wait_until(waiting, end);
      messages = connection.receive();
    }
  }

  [[noreturn]] void give_up() const {
    const std::string host = master_host(topology_);
    std::string where = " at " + host;
    if (topology_.started.agent_store) {
      where = ", or torchrun's store doesn't say where";
    } else if (topology_.started.master_port) {
      where += ":" + std::to_string(*topology_.started.master_port);
    } else if (!options_.ports.empty()) {
      where += ", ports " + std::to_string(options_.ports.front()) + " to " +
               std::to_string(options_.ports.back());
    }
    throw diag::Error(diag::Exit::failed,
                      "nobody leads" + where + " (waited " + seconds_text(options_.start_timeout) +
                          ")" + (reason_.empty() ? "" : ": " + reason_),
                      "start launcher 0 there, and see that no firewall is between");
  }

  const Topology& topology_;
  const MeetingOptions& options_;
  TimePoint end_;
  Address own_address_;
  std::vector<Asked> asked_;
  std::string process_ = random_nonce();
  std::string reason_;
};

}  // namespace

Meeting Meeting::join(const Topology& topology, const MeetingOptions& options) {
  const bool one_machine = topology.num_nodes == 1;
  if (topology.launcher == 0) {
    Gathering gathering(topology, options);
    std::vector<Peer> peers = gathering.gather();
    const std::string host = gathering.place().host();
    return {true, one_machine ? std::string(kDefaultHost) : host, host, std::move(peers)};
  }
  Search search(topology, options);
  std::vector<Peer> leader;
  leader.push_back(search.find());
  return {false, one_machine ? std::string(kDefaultHost) : search.own_address().host(), "",
          std::move(leader)};
}

Meeting::Meeting(bool leads, std::string address, std::string rendezvous, std::vector<Peer> peers)
    : leads_(leads),
      address_(std::move(address)),
      rendezvous_(std::move(rendezvous)),
      peers_(std::move(peers)),
      told_(peers_.size()) {}

Meeting::~Meeting() {
  if (leads_) part(kOver);
}

void Meeting::add_to(std::vector<pollfd>& waiting) const {
  for (const Peer& peer : peers_) {
    if (peer.connection.open()) waiting.push_back(wait_for(peer.connection));
  }
}

std::vector<Meeting::Event> Meeting::receive() {
  std::vector<Event> events;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Connection& connection = peers_[i].connection;
    for (std::string& message : peers_[i].unread) events.push_back({i, std::move(message)});
    peers_[i].unread.clear();
    if (connection.open()) {
      connection.flush();
      for (std::string& message : connection.receive()) events.push_back({i, std::move(message)});
    }
    if (!connection.open() && !told_[i]) {
      told_[i] = true;
      events.push_back({i, {}});
    }
  }
  return events;
}

void Meeting::send(std::size_t peer, std::string_view message) {
  peers_[peer].connection.send(message);
}

void Meeting::send_all(std::string_view message) {
  for (Peer& peer : peers_) peer.connection.send(message);
}

void Meeting::drop(std::size_t peer) {
  peers_[peer].connection.close();
  told_[peer] = true;
}

void Meeting::part(std::string_view last_message) {
  std::vector<Connection*> open;
  open.reserve(peers_.size());
  for (Peer& peer : peers_) {
    if (peer.connection.open()) open.push_back(&peer.connection);
  }
  if (leads_) {
    say_farewell(open, last_message);
  } else {
    send_all(last_message);
  }
  peers_.clear();
}

}  // namespace runner::launch
