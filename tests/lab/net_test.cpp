// Several hosts with networks of their own, h1 to h3, on which people start `runner` by hand.
#include <doctest/doctest.h>
#include <netdb.h>
#include <sys/socket.h>

#include <fstream>
#include <set>

#include "tests/lab/lab.h"

using namespace runner;
using namespace runner::lab;
namespace fs = std::filesystem;

namespace {

Arguments on(int host, const Arguments& command) {
  return Arguments{std::getenv("RUNNER_NET_LAB"), "on", std::to_string(host)} + command;
}

std::string address(int host) { return "10.77.0." + std::to_string(host); }

/// Flags of the node that is played by a host; h1 is node 0.
Arguments flags(int host, const std::string& master = address(1)) {
  return {"--node-rank", std::to_string(host - 1), "--master-addr",
          master,        "--master-port",          "29500"};
}

Arguments nodes(int count) {
  return {"trainer.num_nodes=" + std::to_string(count), "trainer.num_processes=2"};
}

/// `runner t.toml` on each host, with two processes each.
std::vector<Running> start_on_all(const Bench& bench, int hosts, const Arguments& more = {}) {
  std::vector<Running> running;
  running.reserve(static_cast<std::size_t>(hosts));
  for (int host = 1; host <= hosts; ++host) {
    running.push_back(
        bench.start(on(host, {e2e::runner_path(), "t.toml"}) + flags(host) + nodes(hosts) + more));
  }
  return running;
}

void link(int host, const std::string& state) {
  const e2e::Result result =
      e2e::run({.arguments = {"/usr/bin/env", "ip", "-n", "h" + std::to_string(host), "link", "set",
                              "eth0", state}});
  REQUIRE_MESSAGE(result.status == 0, result.err);
}

/// Puts a host's link back, whatever becomes of the test.
struct LinkCut {
  explicit LinkCut(int host) : host(host) { link(host, "down"); }
  ~LinkCut() { link(host, "up"); }
  LinkCut(const LinkCut&) = delete;
  LinkCut& operator=(const LinkCut&) = delete;
  int host;
};

}  // namespace

TEST_CASE("net: two hosts with two processes each train as one machine with four does") {
  const Bench bench;
  std::vector<Running> hosts = start_on_all(bench, 2);
  for (Running& host : hosts) {
    const e2e::Result result = host.result();
    CHECK_MESSAGE(result.status == 0, result.err);
    CHECK(result.err == "");
  }
  CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(4));
}

TEST_CASE("net: three hosts with two processes each train as one machine with six does") {
  const Bench bench;
  std::vector<Running> hosts = start_on_all(bench, 3);
  for (Running& host : hosts) {
    const e2e::Result result = host.result();
    CHECK_MESSAGE(result.status == 0, result.err);
  }
  CHECK(weights_hash(bench.only_run()) == weights_on_one_machine(6));
}

TEST_CASE("net: only node 0 prints, unless a node fails") {
  const Bench bench;
  std::vector<Running> hosts = start_on_all(bench, 2);
  const e2e::Result first = hosts[0].result();
  const e2e::Result second = hosts[1].result();
  CHECK(has(first.out, "2 nodes"));
  CHECK(second.out == "");
  CHECK(second.err == "");
}

TEST_CASE("net: RANK, WORLD_SIZE and MASTER_* start one process each, or one node each") {
  const auto variables = [](int rank, int world) {
    return Arguments{"env",
                     "RANK=" + std::to_string(rank),
                     "WORLD_SIZE=" + std::to_string(world),
                     "MASTER_ADDR=" + address(1),
                     "MASTER_PORT=29500",
                     e2e::runner_path(),
                     "t.toml"};
  };
  const std::string expected = weights_on_one_machine(4);
  SUBCASE("one launcher for each of the four ranks") {
    const Bench bench;
    std::vector<Running> ranks;
    ranks.reserve(4);
    for (int rank = 0; rank < 4; ++rank)
      ranks.push_back(bench.start(on(1 + rank / 2, variables(rank, 4)) + nodes(2)));
    for (Running& rank : ranks) {
      const e2e::Result result = rank.result();
      CHECK_MESSAGE(result.status == 0, result.err);
    }
    CHECK(weights_hash(bench.only_run()) == expected);
  }
  SUBCASE("one launcher for each of the two nodes") {
    const Bench bench;
    Running first = bench.start(on(1, variables(0, 2)) + nodes(2));
    Running second = bench.start(on(2, variables(1, 2)) + nodes(2));
    const e2e::Result result = first.result();
    CHECK_MESSAGE(result.status == 0, result.err);
    CHECK(second.result().status == 0);
    CHECK(weights_hash(bench.only_run()) == expected);
  }
}

TEST_CASE("net: a host that vanishes from the network ends the ranks of all hosts, by name") {
  const Bench bench(kLong);
  std::vector<Running> hosts = start_on_all(bench, 3, {"trainer.timeout=5"});
  REQUIRE(comes_true([&] { return bench.trains(); }));
  const auto start = std::chrono::steady_clock::now();
  const LinkCut cut(2);
  for (Running& host : hosts) {
    const e2e::Result result = host.result();
    CHECK(result.status == 1);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 5 + 5);
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 2));
}

TEST_CASE("net: a host that vanishes is named with its ranks, on its own side too") {
  const Bench bench(kLong);
  std::vector<Running> hosts = start_on_all(bench, 2, {"trainer.timeout=5"});
  REQUIRE(comes_true([&] { return bench.trains(); }));
  const LinkCut cut(2);
  const e2e::Result first = hosts[0].result();
  const e2e::Result second = hosts[1].result();
  CHECK(has(first.err, "h2"));
  CHECK(has(first.err, "ranks 2-3"));
  CHECK(count(first.err, "error") == 1);
  CHECK(has(second.err, "h1"));
  CHECK(has(second.err, "ranks 2-3"));
}

TEST_CASE("net: T58: a node that is killed ends the others with the reason") {
  const Bench bench(kLong);
  std::vector<Running> hosts = start_on_all(bench, 2, {"trainer.timeout=20"});
  REQUIRE(comes_true([&] { return bench.trains(); }));
  SUBCASE("a follower") {
    kill(hosts[1].pid(), SIGKILL);
    const e2e::Result first = hosts[0].result();
    CHECK(first.status == 1);
    CHECK(has(first.err, "launcher 1 (h2, ranks 2-3) is gone"));
  }
  SUBCASE("the leader") {
    kill(hosts[0].pid(), SIGKILL);
    const e2e::Result second = hosts[1].result();
    CHECK(second.status == 1);
    CHECK(has(second.err, "the leader (h1) is gone"));
  }
  CHECK(comes_true([] { return processes_with("runner-worker").empty(); }, 5));
}

TEST_CASE("net: a worker that is killed on one host ends the run, and is named with its host") {
  const Bench bench(kLong);
  std::vector<Running> hosts = start_on_all(bench, 2, {"trainer.timeout=20"});
  REQUIRE(comes_true([&] { return bench.trains(); }));
  pid_t victim = 0;
  for (const pid_t pid : processes_with("runner-worker"))
    if (variable_of(pid, "RANK") == "3") victim = pid;
  REQUIRE(victim != 0);
  kill(victim, SIGKILL);
  const e2e::Result first = hosts[0].result();
  const e2e::Result second = hosts[1].result();
  CHECK(first.status == 1);
  CHECK(second.status == 1);
  CHECK(has(first.err, "rank 3 (on h2) was ended by signal 9 (SIGKILL)"));
}

TEST_CASE("net: Ctrl-C on any host saves and ends all of them, and the run resumes") {
  const Bench bench(kLong);
  for (const std::size_t where : {0U, 1U}) {
    std::vector<Running> hosts = start_on_all(bench, 2);
    const std::size_t before = bench.runs().size();
    REQUIRE(comes_true([&] { return bench.runs().size() > before && bench.trains(); }));
    kill(hosts[where].pid(), SIGINT);
    const e2e::Result first = hosts[0].result();
    const e2e::Result second = hosts[1].result();
    CHECK(first.status == 130);
    CHECK(second.status == 130);
    CHECK(has(first.out, "go on with: runner --resume"));
  }
  const std::string run = bench.runs().back();
  std::vector<Running> hosts;
  for (int host = 1; host <= 2; ++host) {
    hosts.push_back(bench.start(on(host, {e2e::runner_path(), "--resume", run}) + flags(host) +
                                nodes(2) + Arguments{"trainer.max_epochs=1"}));
  }
  for (Running& host : hosts) {
    const e2e::Result result = host.result();
    CHECK(result.status == 0);
  }
}

TEST_CASE("net: a host that never comes is named on both sides after the start time-out") {
  const Bench bench;
  SUBCASE("a follower") {
    const e2e::Result result = bench.run(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) +
                                         nodes(2) + Arguments{"trainer.start_timeout=3"});
    CHECK(result.status == 1);
    CHECK(has(result.err, "launcher 1 (ranks 2-3)"));
    CHECK(has(result.err, "3 s"));
    CHECK(result.seconds < 8);
  }
  SUBCASE("the leader") {
    const e2e::Result result = bench.run(on(2, {e2e::runner_path(), "t.toml"}) + flags(2) +
                                         nodes(2) + Arguments{"trainer.start_timeout=3"});
    CHECK(result.status == 1);
    CHECK(has(result.err, "10.77.0.1:29500"));
    CHECK(result.seconds < 8);
  }
  SUBCASE("one of two followers: the other one hears who is missing") {
    Running first = bench.start(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) + nodes(3) +
                                Arguments{"trainer.start_timeout=4"});
    Running second = bench.start(on(2, {e2e::runner_path(), "t.toml"}) + flags(2) + nodes(3) +
                                 Arguments{"trainer.start_timeout=4"});
    for (Running* host : {&first, &second}) {
      const e2e::Result result = host->result();
      CHECK(result.status == 1);
      CHECK(has(result.err, "launcher 2 (ranks 4-5)"));
    }
  }
  CHECK(bench.runs().empty());
}

TEST_CASE("net: a master address of no machine, or of another one, is told with this one's own") {
  const Bench bench;
  for (const std::string wrong : {"10.77.0.99", "10.77.0.2"}) {
    const e2e::Result result =
        bench.run(on(1, {e2e::runner_path(), "t.toml"}) + flags(1, wrong) + nodes(2));
    CHECK(result.status == 4);
    CHECK(has(result.err, wrong));
    CHECK(has(result.err, "(it has 10.77.0.1)"));
    CHECK(result.seconds < 5);
  }
  SUBCASE("a name that nobody knows") {
    const e2e::Result result =
        bench.run(on(1, {e2e::runner_path(), "t.toml"}) + flags(1, "no-such-host") + nodes(2));
    CHECK(result.status == 4);
    CHECK(has(result.err, "no-such-host"));
  }
}

TEST_CASE("net: a port in use is named") {
  const Bench bench;
  Running other = bench.start(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) + nodes(2));
  const auto listens = [] {
    return has(
        e2e::run({.arguments = {"/usr/bin/env", "ip", "netns", "exec", "h1", "ss", "-Hltn"}}).out,
        ":29500");
  };
  REQUIRE(comes_true(listens));
  const e2e::Result result = bench.run(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) + nodes(2));
  CHECK(result.status == 4);
  CHECK(has(result.err, "port 29500 on 10.77.0.1 is in use"));
  CHECK(has(result.err, "--master-port"));
}

TEST_CASE("net: several nodes and nothing that started them is refused with the commands") {
  const Bench bench;
  const e2e::Result result = bench.run(on(1, {e2e::runner_path(), "t.toml"}) + nodes(2));
  CHECK(result.status == 3);
  CHECK(has(result.err, "--node-rank"));
  CHECK(has(result.err, "srun --nodes=2 --ntasks-per-node=2"));
  CHECK(has(result.err, "torchrun --nnodes=2 --nproc-per-node=2"));
  CHECK(bench.runs().empty());
}

TEST_CASE("net: nodes with different experiments are refused on both sides") {
  const Bench bench;
  bench.write("u.toml", kShort + "[checkpoint]\nkeep = 2\n");
  Running first = bench.start(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) + nodes(2));
  Running second = bench.start(on(2, {e2e::runner_path(), "u.toml"}) + flags(2) + nodes(2));
  for (Running* host : {&first, &second}) {
    const e2e::Result result = host->result();
    CHECK(result.status == 3);
    CHECK(has(result.err, "another experiment"));
    CHECK(has(result.err, "h1"));
    CHECK(has(result.err, "h2"));
  }
  CHECK(bench.runs().empty());
}

TEST_CASE("net: two nodes with one number are told so") {
  const Bench bench;
  Running first = bench.start(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) + nodes(3));
  Running second = bench.start(on(2, {e2e::runner_path(), "t.toml"}) + flags(2) + nodes(3));
  Running third = bench.start(on(3, {e2e::runner_path(), "t.toml"}) + flags(2) + nodes(3));
  REQUIRE(comes_true([&] { return second.ended() || third.ended(); }));
  const e2e::Result refused = (second.ended() ? second : third).result();
  CHECK(refused.status == 3);
  CHECK(has(refused.err, "launcher 1"));
  CHECK(has(refused.err, "--node-rank"));
  CHECK_FALSE(first.ended());
}

namespace {

/// Local addresses at which programs of h1 listen.
std::set<std::string> listening_on_first_host() {
  std::set<std::string> all;
  std::istringstream lines(
      e2e::run({.arguments = {"/usr/bin/env", "ip", "netns", "exec", "h1", "ss", "-Hltn"}}).out);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string state, queued, size, local;
    if (words >> state >> queued >> size >> local) all.insert(local);
  }
  return all;
}

}  // namespace

TEST_CASE(
    "net: D16: the run listens on the rendezvous interface only, and rubbish doesn't end it") {
  const Bench bench(kLong);
  Running first = bench.start(on(1, {e2e::runner_path(), "t.toml"}) + flags(1) + nodes(2));
  REQUIRE(comes_true([] { return !listening_on_first_host().empty(); }));
  CHECK(listening_on_first_host() == std::set<std::string>{"10.77.0.1:29500"});
  const auto throw_rubbish_at = [&bench](const std::string& place) {
    const std::size_t colon = place.rfind(':');
    const std::string target = "/dev/tcp/" + place.substr(0, colon) + "/" + place.substr(colon + 1);
    // 1 MB each, as far as the other side takes it; then what a browser says, and nothing at all.
    const std::string script =
        "for i in $(seq 20); do timeout 0.2 head -c 1000000 /dev/urandom > " + target +
        "; done 2>/dev/null; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >" + target + "; exec 3<>" +
        target + "; sleep 0.1";
    return bench.run(on(3, {"bash", "-c", script}), 60);
  };
  throw_rubbish_at("10.77.0.1:29500");
  Running second = bench.start(on(2, {e2e::runner_path(), "t.toml"}) + flags(2) + nodes(2));
  REQUIRE(comes_true([&] { return bench.trains(); }));
  const std::set<std::string> places = listening_on_first_host();
  CHECK(places.size() >= 1);
  for (const std::string& place : places) {
    CAPTURE(place);
    CHECK(place.starts_with("10.77.0.1:"));
    if (place.starts_with("10.77.0.1:")) throw_rubbish_at(place);
  }
  const std::string metrics = e2e::read_file(bench.only_run() / "metrics.csv");
  CHECK(comes_true([&] {
    return e2e::read_file(bench.only_run() / "metrics.csv").size() > metrics.size() + 200;
  }));
  CHECK_FALSE(first.ended());
  kill(first.pid(), SIGTERM);
  CHECK(first.result().status == 143);
  CHECK(second.result().status == 143);
}
