#include "runner/check/matrix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "runner/check/rules.h"

using namespace runner;

namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("matrix: docs/matrix.md is what the rules say") {
  std::ostringstream text;
  text << std::ifstream(std::string(RUNNER_SOURCE_DIR) + "/docs/matrix.md").rdbuf();
  INFO("regenerate with: runner --matrix --format markdown > docs/matrix.md");
  const bool is_fresh = text.str() == check::matrix_markdown();
  CHECK(is_fresh);
}

TEST_CASE("matrix: the table shows what runs, what is inferred and what is refused") {
  const std::string text = check::matrix_markdown();
  CHECK(has(text,
            "| dp | 16 | no M010 | no M010 | no M010 | no M010 | no M010 M011 | no M010 M011 |"));
  CHECK(has(text,
            "| (absent) | 64, 32, bf16 | yes | ddp M001 | yes | ddp M001 | ddp M002 | ddp M002 |"));
  CHECK(
      has(text, "| balanced | 64, 32, bf16 | no M013 | yes | no M013 | yes | no M011 | no M011 |"));
}

TEST_CASE("matrix: every rule is listed, in both forms") {
  for (const check::Rule& rule : check::rules()) {
    const diag::CodeInfo& info = diag::info(rule.code);
    CAPTURE(info.id);
    CHECK(has(check::matrix_text(), std::string(info.id) + "  "));
    CHECK(has(check::matrix_markdown(), "| " + std::string(info.id) + " |"));
  }
}

TEST_CASE("matrix: cells of the Markdown table hold no bars of their own") {
  std::istringstream lines(check::matrix_markdown());
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| M")) continue;
    CAPTURE(line);
    CHECK(std::count(line.begin(), line.end(), '|') == 6);
  }
}

TEST_CASE("explain: a rule comes with its reason, its fix and an example") {
  CHECK(check::explain(diag::Code::dp_16) ==
        "M010 dp_16: dp with precision 16\n"
        "error, exit status 3\n\n"
        "dp runs all replicas in one process with one loss scale; the casts that mixed\n"
        "precision makes for one replica don't hold for another, which ends in type\n"
        "errors or in silently wrong casts.\n\n"
        "verdict: refused\n"
        "fix: use backend = \"ddp\", or precision = 32\n\n"
        "example:\n"
        "  [trainer]\n"
        "  backend = \"dp\"\n"
        "  gpus = 2\n"
        "  precision = 16\n");
}

TEST_CASE("explain: every code has a text of lines that fit a terminal") {
  for (const diag::CodeInfo& info : diag::all_codes()) {
    CAPTURE(info.id);
    const std::string text = check::explain(info.code);
    CHECK(text.starts_with(std::string(info.id) + " " + std::string(info.name) + ": "));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  }
}
