// Launchers that find each other, or don't.
#include "runner/launch/meeting.h"

#include <doctest/doctest.h>

#include <csignal>
#include <memory>
#include <random>

#include "runner/launch/address.h"
#include "runner/launch/connection.h"
#include "tests/launch/launchers.h"

using namespace runner;
using namespace std::chrono_literals;

namespace {

/// A launcher that only comes to the meeting. `change` is what is odd about it.
using Change = std::function<void(launch::Topology&, launch::MeetingOptions&)>;

std::unique_ptr<Launcher> comes(const Launchers& t, std::int64_t number,
                                const Change& change = {}) {
  return std::make_unique<Launcher>([&t, number, change] {
    launch::Topology topology = t.topology(number);
    launch::MeetingOptions options = t.options(number);
    if (change) change(topology, options);
    launch::Meeting meeting = launch::Meeting::join(topology, options);
    // The leader's word is the first thing that the others hear.
    if (meeting.leads()) {
      meeting.part(R"({"type":"over","status":0})");
      return launch::Outcome{};
    }
    std::vector<launch::Meeting::Event> events;
    (void)eventually([&] {
      events = meeting.receive();
      return !events.empty();
    });
    const bool heard = !events.empty() && events.front().message == R"({"type":"over","status":0})";
    return launch::Outcome{heard ? 0 : 98, {}};
  });
}

launch::Connection connect_to(int port) {
  return launch::Connection(launch::connect_to(launch::resolve("127.0.0.1", port).front()));
}

/// A socket in somebody else's hands at a free port of 127.0.0.1.
struct OtherService {
  host::UniqueFd fd = launch::listen_at(launch::resolve("127.0.0.1", 0).front());
  int port = launch::local_address(fd.get()).port();
};

}  // namespace

TEST_CASE("meeting: launchers meet whoever comes first") {
  for (const bool leader_first : {true, false}) {
    Launchers t(4, 4);
    std::vector<std::unique_ptr<Launcher>> all;
    if (leader_first) all.push_back(comes(t, 0));
    for (const std::int64_t number : {3, 1, 2}) {
      all.push_back(comes(t, number));
      std::this_thread::sleep_for(100ms);
    }
    if (!leader_first) all.push_back(comes(t, 0));
    for (const auto& launcher : all) {
      const Ended ended = launcher->end();
      CHECK(ended.status == 0);
      CHECK(ended.message.empty());
    }
  }
}

TEST_CASE("meeting: a launcher that doesn't come is named on both sides") {
  Launchers t(6, 3);
  t.start_timeout = 1s;
  const auto leader = comes(t, 0);
  const auto other = comes(t, 1);
  const Ended led = leader->end();
  const Ended waited = other->end();
  const std::string place = "127.0.0.1:" + std::to_string(*t.port);
  CHECK(led.status == 1);
  CHECK(led.seconds < 3.0);
  CHECK(led.message == "2 of 3 launchers came in 1 s; missing: launcher 2 (ranks 4-5)");
  CHECK(waited.status == 1);
  CHECK(waited.message == "the leader at " + place + " waited for launcher 2 (ranks 4-5) in 1 s");
}

TEST_CASE("meeting: where nobody leads, the others say so") {
  Launchers t(4, 2);
  t.start_timeout = 1s;
  const Ended ended = comes(t, 1)->end();
  CHECK(ended.status == 1);
  CHECK(ended.seconds < 3.0);
  CHECK(ended.message == "nobody leads at 127.0.0.1:" + std::to_string(*t.port) + " (waited 1 s)");
}

TEST_CASE("meeting: different experiments, versions and sizes end both sides with status 3") {
  struct Case {
    Change change;
    std::string message;
  };
  const std::vector<Case> table = {
      {[](auto&, auto& options) { options.digest = "d2"; },
       "launcher 1 (on h1) has another experiment than the leader (on h0)"},
      {[](auto&, auto& options) { options.version = "1.1"; },
       "launcher 1 (on h1) is runner 1.1, the leader (on h0) is 1.0"},
      {[](auto& topology, auto&) { topology.world_size = 8; },
       "launcher 1 (on h1) is one of 3 with 8 ranks, the leader (on h0) one of 3 with 6"},
      {[](auto& topology, auto&) { topology.launchers = 2; },
       "launcher 1 (on h1) is one of 2 with 6 ranks, the leader (on h0) one of 3 with 6"},
  };
  for (const Case& c : table) {
    Launchers t(6, 3);
    const auto leader = comes(t, 0);
    const auto bystander = comes(t, 2);
    std::this_thread::sleep_for(200ms);
    const auto odd = comes(t, 1, c.change);
    for (const auto* launcher : {&leader, &bystander, &odd}) {
      const Ended ended = (*launcher)->end();
      CHECK(ended.status == 3);
      CHECK(ended.message == c.message);
    }
  }
}

TEST_CASE("meeting: a second launcher of one number is sent away, the run goes on") {
  Launchers t(3, 3);
  const auto leader = comes(t, 0);
  const auto first = comes(t, 1);
  std::this_thread::sleep_for(300ms);
  const Ended twin = comes(t, 1)->end();
  CHECK(twin.status == 3);
  CHECK(twin.message == "launcher 1 is here already, from h1");
  const auto last = comes(t, 2);
  CHECK(leader->end().status == 0);
  CHECK(first->end().status == 0);
  CHECK(last->end().status == 0);
}

TEST_CASE("meeting: one that leaves before all have come may come again") {
  Launchers t(3, 3);
  const auto leader = comes(t, 0);
  const auto first = comes(t, 1);
  std::this_thread::sleep_for(300ms);
  first->signal(SIGKILL);
  CHECK(first->end().status == 137);
  const auto again = comes(t, 1);
  const auto last = comes(t, 2);
  CHECK(leader->end().status == 0);
  CHECK(again->end().status == 0);
  CHECK(last->end().status == 0);
}

TEST_CASE("meeting: garbage, silence and strangers at the port hold nobody up") {
  Launchers t(2, 2);
  const auto leader = comes(t, 0);
  REQUIRE(eventually([&] {
    launch::Connection probe = connect_to(*t.port);
    if (!probe.open()) return false;
    pollfd waiting{.fd = probe.fd(), .events = POLLOUT, .revents = 0};
    return poll(&waiting, 1, 1000) == 1 && (waiting.revents & POLLERR) == 0;
  }));
  std::mt19937 random(7);
  std::string garbage(1 << 20, '\0');
  for (char& c : garbage) c = static_cast<char>(random());
  std::vector<launch::Connection> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect_to(*t.port));
  for (int i = 0; i < 30; ++i) {
    garbage.replace(0, 4, std::to_string(random()), 0, 4);
    launch::Connection connection = connect_to(*t.port);
    // Ours to choose the length: some begin like a message that is allowed.
    const int fd = connection.fd();
    if (i % 3 == 0) garbage.replace(0, 4, std::string("\0\0\x10\0", 4));
    for (int tries = 0; tries < 20; ++tries) {
      if (::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) break;
    }
  }
  for (const std::string text :
       {R"({})", R"([])", R"({"type":"hello"})", R"({"type":"over","status":0})",
        R"({"type":"hello","identity":"other","launcher":1})",
        R"({"type":"hello","identity":"test","launcher":"1","launchers":[2]})"}) {
    launch::Connection connection = connect_to(*t.port);
    connection.send(text);
    CHECK(eventually([&] {
      (void)connection.receive();
      connection.flush();
      return !connection.open();
    }));
  }
  const auto other = comes(t, 1);
  CHECK(leader->end().status == 0);
  CHECK(other->end().status == 0);
}

TEST_CASE("meeting: two runs at one moment share a list of ports and don't mix") {
  Launchers a(6, 3);
  a.ports = free_ports(4);
  a.port.reset();
  a.identity = "slurm 7.0";
  Launchers b(6, 3);
  b.ports = a.ports;
  b.port.reset();
  b.identity = "slurm 8.0";
  const OtherService taken;  // a service that accepts and says nothing
  a.ports.insert(a.ports.begin(), taken.port);
  b.ports.insert(b.ports.begin(), taken.port);
  std::vector<std::unique_ptr<Launcher>> all;
  for (const std::int64_t number : {2, 0, 1}) {
    all.push_back(comes(a, number));
    all.push_back(comes(b, number));
  }
  for (const auto& launcher : all) {
    const Ended ended = launcher->end();
    CHECK(ended.status == 0);
    CHECK(ended.message.empty());
  }
}

TEST_CASE("meeting: a port that is taken and was named is an error, as are all of a list") {
  Launchers t(2, 2);
  const OtherService taken;
  t.port = taken.port;
  const Ended named = comes(t, 0)->end();
  CHECK(named.status == 4);
  CHECK(named.message == "port " + std::to_string(taken.port) + " on 127.0.0.1 is in use");
  CHECK(named.help.find("--master-port") != std::string::npos);
  const OtherService also;
  t.port.reset();
  t.ports = {taken.port, also.port};
  const Ended list = comes(t, 0)->end();
  CHECK(list.status == 4);
  CHECK(list.message == "the ports " + std::to_string(taken.port) + " to " +
                            std::to_string(also.port) + " that were tried on 127.0.0.1 are in use");
}

TEST_CASE("meeting: a leader at an address of another machine says which ones this one has") {
  Launchers t(2, 2);
  const Ended ended = comes(t, 0, [](auto& topology, auto&) {
                        topology.started.master_addr = "192.0.2.77";
                      })->end();
  CHECK(ended.status == 4);
  CHECK(ended.message.starts_with("192.0.2.77 is no address of this machine (it has "));
  for (const std::string& address : launch::machine_addresses())
    CHECK(ended.message.find(address) != std::string::npos);
}

TEST_CASE("meeting: a name that nobody knows is told by the leader at once, by others in the end") {
  Launchers t(2, 2);
  t.start_timeout = 1s;
  const Change nowhere = [](auto& topology, auto&) {
    topology.started.master_addr = "no-such-host.invalid";
  };
  const Ended leader = comes(t, 0, nowhere)->end();
  CHECK(leader.status == 4);
  CHECK(leader.message.starts_with("can't find the address of 'no-such-host.invalid': "));
  const Ended other = comes(t, 1, nowhere)->end();
  CHECK(other.status == 1);
  CHECK(other.message.find("can't find the address of 'no-such-host.invalid'") !=
        std::string::npos);
}

TEST_CASE(
    "meeting: under torchrun the leader's place is in its store, an old one is not believed") {
  Launchers t(2, 2);
  const OtherService torchrun;
  t.port = torchrun.port;
  // What an earlier run left: another leader, who is still there, with another nonce.
  Launchers old(2, 2);
  const auto old_leader = comes(old, 0);
  const std::string stale = "127.0.0.1 " + std::to_string(*old.port) + " 0123";
  const Change agent = [&](auto& topology, auto& options) {
    topology.started.agent_store = true;
    options.publish = [&](const std::string& value) { t.folder.write("value", value); };
    options.look_up = [&] { return t.exists("value") ? t.folder.read("value") : stale; };
  };
  const auto other = comes(t, 1, agent);
  std::this_thread::sleep_for(300ms);
  const auto leader = comes(t, 0, agent);
  CHECK(leader->end().status == 0);
  CHECK(other->end().status == 0);
}

TEST_CASE("meeting: a leader that ends before the run began ends the others, without a word") {
  Launchers t(2, 2);
  Launcher leader([&]() -> launch::Outcome {
    const launch::Meeting meeting = launch::Meeting::join(t.topology(0), t.options(0));
    throw diag::Error(diag::Exit::machine, "the run folder can't be made");
  });
  Launcher other = t.start(1);
  CHECK(leader.end().status == 4);
  const Ended ended = other.end();
  CHECK(ended.status == 1);
  CHECK(ended.message.empty());
}

TEST_CASE("connection: messages arrive whole, in order and in any size up to the limit") {
  const OtherService listening;
  launch::Connection sender = connect_to(listening.port);
  pollfd waiting{.fd = listening.fd.get(), .events = POLLIN, .revents = 0};
  REQUIRE(poll(&waiting, 1, 5000) == 1);
  launch::Connection receiver(
      host::UniqueFd(accept4(listening.fd.get(), nullptr, nullptr, SOCK_NONBLOCK)), 3 << 20);
  const std::vector<std::string> sent = {"a", std::string(3 << 20, 'x'), "{}",
                                         std::string(70000, 'y')};
  for (const std::string& text : sent) sender.send(text);
  std::vector<std::string> received;
  CHECK(eventually([&] {
    sender.flush();
    for (std::string& text : receiver.receive()) received.push_back(std::move(text));
    return received.size() == sent.size();
  }));
  CHECK(received == sent);
  CHECK(receiver.open());
  sender.send(std::string((3 << 20) + 1, 'z'));
  CHECK(eventually([&] {
    sender.flush();
    CHECK(receiver.receive().empty());
    return !receiver.open();
  }));
}

TEST_CASE("connection: what was sent before the end is still read") {
  const OtherService listening;
  launch::Connection sender = connect_to(listening.port);
  pollfd waiting{.fd = listening.fd.get(), .events = POLLIN, .revents = 0};
  REQUIRE(poll(&waiting, 1, 5000) == 1);
  launch::Connection receiver(
      host::UniqueFd(accept4(listening.fd.get(), nullptr, nullptr, SOCK_NONBLOCK)));
  sender.send("last words");
  sender.flush();
  sender.close();
  std::vector<std::string> received;
  CHECK(eventually([&] {
    for (std::string& text : receiver.receive()) received.push_back(std::move(text));
    return !receiver.open();
  }));
  CHECK(received == std::vector<std::string>{"last words"});
}

TEST_CASE("address: numbers, names and loopback") {
  const launch::Address four = launch::resolve("127.1.2.3", 80).front();
  CHECK(four.text() == "127.1.2.3:80");
  CHECK(four.is_loopback());
  const launch::Address six = launch::resolve("::1", 29500).front();
  CHECK(six.text() == "[::1]:29500");
  CHECK(six.is_loopback());
  CHECK_FALSE(launch::resolve("192.0.2.1", 1).front().is_loopback());
  CHECK(launch::resolve("localhost", 1).front().host() == "127.0.0.1");
  CHECK(launch::address_towards(four) == "127.0.0.1");
}
