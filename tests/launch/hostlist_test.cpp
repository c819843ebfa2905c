// The expectations are what `scontrol show hostnames` of SLURM 22.05.8 prints, or what the comment
// beside them says.
#include "runner/launch/hostlist.h"

#include <doctest/doctest.h>

#include <chrono>
#include <set>

#include "runner/diag/error.h"

using namespace runner;

namespace {

using Names = std::vector<std::string>;
using Tasks = std::vector<std::int64_t>;

struct Refusal {
  diag::Exit exit = diag::Exit::ok;
  std::string message;
  std::string help;
};

template <class Call>
Refusal refusal_of(Call call) {
  try {
    (void)call();
  } catch (const diag::Error& error) {
    return {.exit = error.exit(), .message = error.what(), .help = error.help()};
  }
  return {};
}

Refusal refused_hosts(std::string_view text) {
  return refusal_of([text] { return launch::expand_hosts(text); });
}

Refusal refused_tasks(std::string_view text) {
  return refusal_of([text] { return launch::tasks_per_node(text); });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("hostlist: names, numbers in brackets and their zeros expand as SLURM does") {
  struct Row {
    const char* text;
    Names names;
  };
  const std::vector<Row> rows = {
      {"alpha", {"alpha"}},
      {"alpha,beta,gamma", {"alpha", "beta", "gamma"}},
      {"node[1-3]", {"node1", "node2", "node3"}},
      {"node[001-003,007]", {"node001", "node002", "node003", "node007"}},
      {"node[8-11]", {"node8", "node9", "node10", "node11"}},
      {"node[08-11]", {"node08", "node09", "node10", "node11"}},
      {"node[098-101]", {"node098", "node099", "node100", "node101"}},
      {"node[9-010]", {"node9", "node10"}},
      {"node[1-3,5],gpu[01-02]", {"node1", "node2", "node3", "node5", "gpu01", "gpu02"}},
      {"node[5],gpu[1-2]", {"node5", "gpu1", "gpu2"}},
      {"node-[7]", {"node-7"}},
      {"jean-zay-ia810", {"jean-zay-ia810"}},
      {"jean-zay-ia[810-811]", {"jean-zay-ia810", "jean-zay-ia811"}},
      {"compute-permanent-node-[583,752,801,869]",
       {"compute-permanent-node-583", "compute-permanent-node-752", "compute-permanent-node-801",
        "compute-permanent-node-869"}},
      {"linux[1,2]", {"linux1", "linux2"}},
      {"host[5-9,1]", {"host5", "host6", "host7", "host8", "host9", "host1"}},
      {"1.2.3.[100-102]", {"1.2.3.100", "1.2.3.101", "1.2.3.102"}},
      {"cn[0001-0003],login,cn[0100]", {"cn0001", "cn0002", "cn0003", "login", "cn0100"}},
      {"[1-3]", {"1", "2", "3"}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(launch::expand_hosts(row.text) == row.names);
  }
}

TEST_CASE("hostlist: of several brackets the last one counts fastest, then the first") {
  CHECK(launch::expand_hosts("rack[1-2]node[3-4]") ==
        Names{"rack1node3", "rack1node4", "rack2node3", "rack2node4"});
  CHECK(launch::expand_hosts("x[01-03]y[1-2]") ==
        Names{"x01y1", "x01y2", "x02y1", "x02y2", "x03y1", "x03y2"});
  CHECK(launch::expand_hosts("a[1-2]b[3-4]c[5-6]") ==
        Names{"a1b3c5", "a1b3c6", "a2b3c5", "a2b3c6", "a1b4c5", "a1b4c6", "a2b4c5", "a2b4c6"});
}

TEST_CASE("hostlist: blanks separate, and separators may repeat") {
  CHECK(launch::expand_hosts("a b c") == Names{"a", "b", "c"});
  CHECK(launch::expand_hosts("a\tb\nc") == Names{"a", "b", "c"});
  CHECK(launch::expand_hosts("node[1-2] node[5-6]") == Names{"node1", "node2", "node5", "node6"});
  CHECK(launch::expand_hosts("a,,b") == Names{"a", "b"});
  CHECK(launch::expand_hosts(",a,") == Names{"a"});
}

TEST_CASE("hostlist: text after the last bracket belongs to the name, as in newer SLURM") {
  CHECK(launch::expand_hosts("node[01-04]-ib") ==
        Names{"node01-ib", "node02-ib", "node03-ib", "node04-ib"});
  CHECK(launch::expand_hosts("n[1-2].cluster.local") ==
        Names{"n1.cluster.local", "n2.cluster.local"});
  CHECK(launch::expand_hosts("[1-3]host") == Names{"1host", "2host", "3host"});
  CHECK(launch::expand_hosts("tux[0-1]x[0-1]y") ==
        Names{"tux0x0y", "tux0x1y", "tux1x0y", "tux1x1y"});
}

TEST_CASE("hostlist: a host named twice is refused, and the message names it") {
  const Refusal refusal = refused_hosts("host[1-2,2-3]");
  CHECK(refusal.exit == diag::Exit::invalid);
  CHECK(refusal.message ==
        "the list of hosts is 'host[1-2,2-3]': 'host[1-2,2-3]' at character 1 names the host "
        "'host2' a second time");
  CHECK(has(refused_hosts("a,b,a").message, "'a' at character 5"));
  // The same name by two ways of writing it.
  CHECK(has(refused_hosts("n[1-2],n2").message, "'n2' at character 8"));
  // Zeros make another name.
  CHECK(launch::expand_hosts("n[1,01]") == Names{"n1", "n01"});
}

TEST_CASE("hostlist: what isn't a list is refused with its text, the piece and the place") {
  struct Row {
    const char* text;
    const char* words;
  };
  for (const Row& row : {Row{"node[3-1]", "'3-1' at character 6 runs backwards"},
                         Row{"node[]", "']' at character 6 is not a digit"},
                         Row{"node[a-c]", "'a' at character 6 is not a digit"},
                         Row{"node[-1]", "'-' at character 6 is not a digit"},
                         Row{"node[1--3]", "'-' at character 8 is not a digit"},
                         Row{"node[1,]", "']' at character 8 is not a digit"},
                         Row{"node[1-3x]", "'x' at character 9 is not '-', ',' or ']'"},
                         Row{"node[0x1-0x3]", "'x' at character 7 is not '-', ',' or ']'"},
                         Row{"node[[1-2]]", "'[' at character 6 is not a digit"},
                         Row{"node[1-2]]", "']' at character 10 is not part of a host's name"},
                         Row{"node[1-", "it ends where a digit belongs"},
                         Row{"node[1-2", "it ends where '-', ',' or ']' belongs"},
                         Row{"node[", "it ends where a digit belongs"},
                         Row{"node1-3]", "']' at character 8 is not part of a host's name"},
                         Row{"node[ 1, 2]", "' ' at character 6 is not a digit"},
                         Row{"node[1, 2]", "' ' at character 8 is not a digit"},
                         Row{"node[1-2-3]", "'-' at character 9 is not '-', ',' or ']'"},
                         Row{"", "it ends where a host's name belongs"},
                         Row{" , ", "it ends where a host's name belongs"},
                         Row{"a,node{1-2}", "'{' at character 7 is not part of a host's name"},
                         Row{"a\x1b[31m", "is not part of a host's name"},
                         Row{"n\xc3\xb6", "at character 2 is not part of a host's name"}}) {
    CAPTURE(row.text);
    const Refusal refusal = refused_hosts(row.text);
    CHECK(refusal.exit == diag::Exit::invalid);
    CAPTURE(refusal.message);
    CHECK(has(refusal.message, row.words));
    CHECK(refusal.help == "a list of hosts looks like node1,node2 or node[01-04,07]");
  }
  CHECK(has(refused_hosts("node[3-1]").message, "the list of hosts is 'node[3-1]': "));
}

TEST_CASE("hostlist: messages call the list by the name of its source") {
  const Refusal refusal =
      refusal_of([] { return launch::expand_hosts("n[", "SLURM_STEP_NODELIST"); });
  CHECK(refusal.message == "SLURM_STEP_NODELIST is 'n[': it ends where a digit belongs");
}

TEST_CASE("hostlist: 65,536 hosts are the most, whichever way a list asks for more") {
  const Names most = launch::expand_hosts("a[1-65536]");
  REQUIRE(most.size() == 65'536);
  CHECK(most.front() == "a1");
  CHECK(most.back() == "a65536");
  CHECK(std::set<std::string>(most.begin(), most.end()).size() == 65'536);
  CHECK(launch::expand_hosts("a[0-1]b[0-32767]").size() == 65'536);
  for (const char* text :
       {"a[1-65537]", "a[0-99999]", "a[0-1]b[0-65535]", "a[1-65536],b", "a[1-40000,50000-90000]",
        "a[0-999]b[0-999]c[0-999]d[0-999]", "a[1-40000] b[1-40000]"}) {
    CAPTURE(text);
    const Refusal refusal = refused_hosts(text);
    CHECK(refusal.exit == diag::Exit::invalid);
    CHECK(has(refusal.message, "more than 65536 hosts"));
  }
}

TEST_CASE("hostlist: hostile numbers and lengths are refused at once") {
  const std::string zeros(100'000, '0');
  std::string brackets = "a";
  for (int i = 0; i < 30'000; ++i) brackets += "[1]";
  const std::string name(100'000, 'n');
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text :
       {std::string("node[0-18446744073709551615]"), std::string("node[0-18446744073709551616]"),
        "node[1-9" + zeros + "]", "node[" + zeros + "1-65536]", brackets, name}) {
    CAPTURE(text.substr(0, 40));
    const Refusal refusal = refused_hosts(text);
    CHECK(refusal.exit == diag::Exit::invalid);
    CHECK(refusal.message.size() < 600);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
  // The largest number there is has a name like any other.
  CHECK(launch::expand_hosts("n[18446744073709551614-18446744073709551615]") ==
        Names{"n18446744073709551614", "n18446744073709551615"});
}

TEST_CASE("hostlist: tasks per node are spelled out") {
  CHECK(launch::tasks_per_node("2") == Tasks{2});
  CHECK(launch::tasks_per_node("2(x3),1") == Tasks{2, 2, 2, 1});
  CHECK(launch::tasks_per_node("72(x2),36") == Tasks{72, 72, 36});
  CHECK(launch::tasks_per_node("1(x2)") == Tasks{1, 1});
  CHECK(launch::tasks_per_node("1(x65536)").size() == 65'536);
}

TEST_CASE("hostlist: tasks per node that make no sense are refused with the piece and its place") {
  struct Row {
    const char* text;
    const char* words;
  };
  for (const Row& row :
       {Row{"2(x0)", "'0' at character 4 is not a number of nodes, 1 to 65536"},
        Row{"2(x", "it ends where a digit belongs"}, Row{"2(x3", "it ends where ')' belongs"},
        Row{"(x2)", "'(' at character 1 is not a digit"},
        Row{"2,,1", "',' at character 3 is not a digit"},
        Row{"2(x99999999)", "'99999999' at character 4 is not a number of nodes"},
        Row{"0", "'0' at character 1 is not a number of tasks, 1 to 65536"},
        Row{"99999999999999999999", "at character 1 is not a number of tasks"},
        Row{"-2", "'-' at character 1 is not a digit"},
        Row{"2(3)", "'3' at character 3 is not 'x'"}, Row{"2 ", "' ' at character 2 is not"},
        Row{"2(x3)1", "'1' at character 6 is not"}, Row{"2,", "it ends where a digit belongs"},
        Row{"", "it ends where a digit belongs"},
        Row{"1(x65536),1", "'1' at character 11 makes more than 65536 nodes"}}) {
    CAPTURE(row.text);
    const Refusal refusal = refused_tasks(row.text);
    CHECK(refusal.exit == diag::Exit::invalid);
    CAPTURE(refusal.message);
    CHECK(has(refusal.message, row.words));
    CHECK(has(refusal.message, "the tasks per node is "));
    CHECK(has(refusal.help, "2(x3),1"));
  }
}
