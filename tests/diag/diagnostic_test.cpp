#include "runner/diag/diagnostic.h"

#include <doctest/doctest.h>

#include <set>

using namespace runner::diag;

TEST_CASE("diag: ids and names of the code table are unique, and texts follow the house style") {
  std::set<std::string_view> seen;
  for (const CodeInfo& code : all_codes()) {
    CAPTURE(code.id);
    CHECK(seen.insert(code.id).second);
    CHECK(seen.insert(code.name).second);
    CHECK_FALSE(code.summary.ends_with('.'));
    CHECK(code.explanation.ends_with('.'));
    CHECK((code.severity == Severity::error) == (code.exit != Exit::ok));
    CHECK(find_code(code.id) == &code);
    CHECK(find_code(code.name) == &code);
  }
  CHECK(find_code("c001") == find_code("unknown_key"));
  CHECK(find_code("Z999") == nullptr);
}

TEST_CASE("diag: diagnostics come in the order of the files, then arguments, then placeless ones") {
  Sources sources;
  const SourceFile* file = sources.add("a.toml", "x\ny\n");
  const SourceFile* second = sources.add("argument 2", "b=1", true);
  const SourceFile* first = sources.add("argument 1", "a=1", true);
  Sink sink;
  const auto report = [&sink](const char* message, Span at) {
    sink.report({.code = Code::unknown_key,
                 .message = message,
                 .at = at,
                 .notes = {},
                 .help = {},
                 .key = {}});
  };
  report("placeless", {});
  report("argument 2", {second, 1, 1, 1});
  report("line 2", {file, 2, 1, 1});
  report("argument 1", {first, 1, 1, 1});
  report("line 1", {file, 1, 5, 1});
  std::vector<std::string> order;
  for (const Diagnostic& d : sink.sorted()) order.push_back(d.message);
  CHECK(order ==
        std::vector<std::string>{"line 1", "line 2", "argument 1", "argument 2", "placeless"});
  CHECK(sink.errors() == 5);
  CHECK(sink.exit() == Exit::invalid);
}

TEST_CASE("diag: warnings alone leave the exit status at 0") {
  Sink sink;
  sink.report({.code = Code::section_without_effect,
               .message = "m",
               .at = {},
               .notes = {},
               .help = {},
               .key = {}});
  CHECK(sink.warnings() == 1);
  CHECK(sink.exit() == Exit::ok);
}
