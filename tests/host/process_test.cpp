#include "runner/host/process.h"

#include <doctest/doctest.h>

#include "tests/fakes/fake_files.h"

namespace runner::host {
namespace {

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kOther = "ffffffffffffffffffffffffffffffffffffffff";

TEST_CASE("self_exe_folder: the folder of this test program") {
  CHECK(std::filesystem::exists(self_exe_folder() / "test_host"));
}

TEST_CASE("data_folder: share/runner beside bin/, else the source tree") {
  const FakeFiles installed({{"/opt/x/share/runner/configs/digits.toml", ""}});
  CHECK(data_folder("/opt/x/bin", installed) == "/opt/x/share/runner");
  CHECK(data_folder("/opt/y/bin", installed) == RUNNER_SOURCE_DIR);
}

TEST_CASE("git_commit: from wherever git keeps it") {
  struct Case {
    const char* name;
    FakeFiles files;
    std::optional<std::string> expected;
  };
  const Case cases[] = {
      {"a branch's own file",
       {{"/p/.git/HEAD", "ref: refs/heads/main\n"}, {"/p/.git/refs/heads/main", kCommit + "\n"}},
       kCommit},
      {"a packed branch",
       {{"/p/.git/HEAD", "ref: refs/heads/main\n"},
        {"/p/.git/packed-refs", "# pack-refs with: peeled\n" + kOther + " refs/heads/main2\n" +
                                    kCommit + " refs/heads/main\n^" + kOther + "\n"}},
       kCommit},
      {"its own file beats the packed one",
       {{"/p/.git/HEAD", "ref: refs/heads/main\n"},
        {"/p/.git/refs/heads/main", kCommit + "\n"},
        {"/p/.git/packed-refs", kOther + " refs/heads/main\n"}},
       kCommit},
      {"a detached head", {{"/p/.git/HEAD", kCommit + "\n"}}, kCommit},
      {"a linked work tree",
       {{"/p/.git", "gitdir: /main/.git/worktrees/p\n"},
        {"/main/.git/worktrees/p/HEAD", "ref: refs/heads/topic\n"},
        {"/main/.git/worktrees/p/commondir", "../..\n"},
        {"/main/.git/refs/heads/topic", kCommit + "\n"}},
       kCommit},
      {"no commit yet", {{"/p/.git/HEAD", "ref: refs/heads/main\n"}}, std::nullopt},
      {"no work tree", {{"/p/a.txt", ""}}, std::nullopt},
      {"garbage", {{"/p/.git/HEAD", "hello\n"}}, std::nullopt},
      {"a reference that leaves the folder",
       {{"/p/.git/HEAD", "ref: refs/../../../etc/x\n"}, {"/etc/x", kCommit}},
       std::nullopt},
  };
  for (const Case& c : cases)
    CHECK_MESSAGE(git_commit("/p/deep/down", c.files) == c.expected, c.name);
}

TEST_CASE("boot_id: the kernel's, without its newline") {
  const FakeFiles files({{"/proc/sys/kernel/random/boot_id", "6d0a-11\n"}});
  CHECK(boot_id(files) == "6d0a-11");
  CHECK(boot_id(FakeFiles()) == "");
  CHECK(boot_id().size() == 36);
}

}  // namespace
}  // namespace runner::host
