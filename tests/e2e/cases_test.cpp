// Golden cases: tests/cases/check/<case>.toml is checked, and what `runner --check` prints and its
// exit status must equal <case>.txt. A first line "# runner: ARGUMENTS" in the file adds arguments.
// RUNNER_UPDATE_CASES=1 rewrites the expectations.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runner/diag/diagnostic.h"
#include "tests/e2e/process.h"

using namespace runner;
namespace fs = std::filesystem;

namespace {

std::vector<fs::path> cases() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(e2e::source_path("tests/cases/check"))) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> arguments_of(const fs::path& file) {
  std::vector<std::string> arguments = {"--check", file.filename().string()};
  std::istringstream text(e2e::read_file(file));
  std::string line;
  std::getline(text, line);
  constexpr std::string_view kMark = "# runner: ";
  if (line.starts_with(kMark)) {
    std::istringstream words(line.substr(kMark.size()));
    for (std::string word; words >> word;) arguments.push_back(word);
  }
  return arguments;
}

std::string outcome(const fs::path& file) {
  const e2e::Result result = e2e::runner(arguments_of(file), file.parent_path());
  return result.out + result.err + "exit " + std::to_string(result.status) + "\n";
}

}  // namespace

TEST_CASE("cases: each file is judged as its expectation says") {
  const bool update = std::getenv("RUNNER_UPDATE_CASES") != nullptr;
  REQUIRE(cases().size() > 10);
  for (const fs::path& file : cases()) {
    CAPTURE(file.filename().string());
    const fs::path expected = fs::path(file).replace_extension(".txt");
    const std::string text = outcome(file);
    if (update) e2e::write_file(expected, text);
    CHECK(text == e2e::read_file(expected));
  }
}

TEST_CASE("cases: every diagnostic of the table occurs in a case") {
  // What needs another machine, or a file that git can't hold, is provoked by other tests.
  const std::set<std::string_view> elsewhere = {
#include "tests/cases/provoked_elsewhere.inc"
  };
  std::string all;
  for (const fs::path& file : cases())
    all += e2e::read_file(fs::path(file).replace_extension(".txt"));
  for (const diag::CodeInfo& code : diag::all_codes()) {
    CAPTURE(code.id);
    CAPTURE(code.name);
    if (elsewhere.contains(code.name)) continue;
    CHECK(all.find("[" + std::string(code.id) + "]") != std::string::npos);
  }
}
