// Files and arguments made to hurt: each is refused at once, in one message, without a crash.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "tests/e2e/process.h"
#include "tests/fakes/temp_folder.h"

using namespace runner;
namespace fs = std::filesystem;

namespace {

// A sanitizer makes programs slow and large; only plain ones are held to the figures.
#ifdef __SANITIZE_ADDRESS__
constexpr double kFactor = 10;
#else
constexpr double kFactor = 1;
#endif
constexpr double kSoon = 1.0 * kFactor;           // seconds
constexpr double kLittle = 100 * 1024 * kFactor;  // KiB

void refused(const e2e::Result& result, const std::string& words) {
  CHECK(result.status == 2);
  CHECK(result.seconds < kSoon);
  CHECK(static_cast<double>(result.max_rss_kib) < kLittle);
  CAPTURE(result.out + result.err);
  CHECK((result.out + result.err).find(words) != std::string::npos);
  CHECK((result.out + result.err).size() < 10'000);
}

const std::string kHead = "[model]\nname = \"mlp\"\n[dataset]\nname = \"digits\"\n";

}  // namespace

TEST_CASE("hostile: texts") {
  const TempFolder folder;
  const fs::path file = folder.path() / "t.toml";
  struct Row {
    std::string text;
    const char* words;
  };
  std::string dots = "a";
  for (int i = 0; i < 150'000; ++i) dots += ".a";
  for (const Row& row : {
           Row{"", "[F006]"},
           Row{"[\n", "t.toml:1:2: error[F002]"},
           Row{"[.]", "[F002]"},
           Row{"not toml at all", "[F002]"},
           Row{dots + " = 1\n", "[F002]"},
           Row{"[" + dots + "]\n", "[F002]"},
           Row{"x = " + std::string(10'000, '[') + std::string(10'000, ']'), "[F002]"},
           Row{"seed = 9223372036854775808\n", "[F002]"},
           Row{"seed = " + std::string(1'000'000, '9'), "[F002]"},
           Row{"seed = \xff\n", "[F002]"},
           Row{"seed = \"\xc0\xaf\"\n", "[F002]"},
           Row{std::string("seed = 1\0\n", 10), "[F002]"},
           Row{std::string("\xff\xfes\0e\0", 6), "[F002]"},
           Row{"seed = 1\rname = \"x\"\n", "[F002]"},
           Row{kHead + "[optimizer]\nlr = nan\n", "[C002]"},
           Row{kHead + "[optimizer]\nlr = 1e400\n", "[F002]"},
           Row{std::string(2'000'000, '#'), "[F001]"},
           Row{"name = \"" + std::string(900'000, 'x') + "\"\nsed = 1\n", "[C001]"},
       }) {
    CAPTURE(row.text.substr(0, 40));
    e2e::write_file(file, row.text);
    refused(e2e::runner({"--check", "t.toml"}, folder.path()), row.words);
  }
}

TEST_CASE("hostile: what is no file") {
  const TempFolder folder;
  REQUIRE(mkfifo((folder.path() / "fifo.toml").c_str(), 0600) == 0);
  fs::create_directory(folder.path() / "dir.toml");
  for (const char* name : {"fifo.toml", "dir.toml", "missing.toml", "/dev/zero", "/dev/null/x"}) {
    CAPTURE(name);
    refused(e2e::runner({"--check", name}, folder.path()), "[F001]");
    refused(e2e::runner({name}, folder.path()), "[F001]");
  }
}

TEST_CASE("hostile: a file of 100 MB") {
  const TempFolder folder;
  e2e::write_file(folder.path() / "big.toml", "x = \"");
  fs::resize_file(folder.path() / "big.toml", 100'000'000);
  refused(e2e::runner({"--check", "big.toml"}, folder.path()), "[F001]");
}

TEST_CASE("hostile: extends of itself, in a circle, of a folder, out of the tree") {
  const TempFolder folder;
  e2e::write_file(folder.path() / "a.toml", "extends = \"b.toml\"\n");
  e2e::write_file(folder.path() / "b.toml", "extends = [\"a.toml\"]\n");
  fs::create_symlink("a.toml", folder.path() / "link.toml");
  e2e::write_file(folder.path() / "self.toml", "extends = \"link2.toml\"\n");
  fs::create_symlink("self.toml", folder.path() / "link2.toml");
  refused(e2e::runner({"--check", "a.toml"}, folder.path()), "[F003]");
  refused(e2e::runner({"--check", "link.toml"}, folder.path()), "[F003]");
  refused(e2e::runner({"--check", "self.toml"}, folder.path()), "[F003]");
  e2e::write_file(folder.path() / "out.toml", "extends = \"../../../../../../etc/shadow\"\n");
  const e2e::Result result = e2e::runner({"--check", "out.toml"}, folder.path());
  CHECK(result.status == 2);
  CHECK((result.out + result.err).find("root:") == std::string::npos);
}

TEST_CASE("hostile: arguments") {
  const TempFolder folder;
  e2e::write_file(folder.path() / "t.toml", kHead);
  refused(e2e::runner({"--check", "t.toml", "seed=1\nname=\"x\""}, folder.path()), "[F005]");
  refused(e2e::runner({"--check", "t.toml", "seed=\x1b[31m"}, folder.path()), "[F005]");
  refused(e2e::runner({"--check", "t.toml", "optimizer.lr=" + std::string(100'000, '1')},
                      folder.path()),
          "[C002]");
  refused(e2e::runner({"--check", "t.toml", std::string(1000, '.') + "=1"}, folder.path()),
          "[F005]");
  const e2e::Result shell = e2e::runner(
      {"--check", "t.toml", "root=$(touch pwned)", "trainer.max_epochs=1"}, folder.path());
  CHECK(shell.status == 0);
  CHECK_FALSE(fs::exists(folder.path() / "pwned"));
}

TEST_CASE("hostile: terminal escapes in a file or its name don't reach the terminal") {
  const TempFolder folder;
  const std::string name = "t\x1b[31m.toml";
  e2e::write_file(folder.path() / name, "sed = \"\\u001b[2J\"\n[model]\nname = \"\\u001b[5m\"\n");
  const e2e::Result result = e2e::runner({"--check", name}, folder.path());
  CHECK(result.status == 2);
  CHECK((result.out + result.err).find('\x1b') == std::string::npos);
}
