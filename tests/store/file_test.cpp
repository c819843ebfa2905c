#include "runner/store/file.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/fakes/temp_folder.h"
#include "tests/store/faulty_file_ops.h"
#include "tests/store/store_testing.h"

using namespace runner;
using namespace runner::store;
namespace fs = std::filesystem;

namespace {

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>((i * 2654435761U) >> 13);
  return text;
}

}  // namespace

TEST_CASE("file: pieces of any size arrive whole and hashed") {
  TempFolder temp;
  const std::vector<std::vector<std::size_t>> cases = {
      {},
      {0},
      {1},
      {1 << 20},
      {(1 << 20) - 1, 1},
      {1, 1 << 20, 1},
      {100, (3 << 20) + 7, 5, 0, 9},
      {1 << 19, 1 << 19, 1 << 19},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    std::size_t total = 0;
    for (const std::size_t size : cases[i]) total += size;
    const std::string content = pattern(total);
    FileWriter out(system_file_ops(), temp / std::to_string(i));
    std::size_t at = 0;
    for (const std::size_t size : cases[i]) {
      out.write(std::string_view(content).substr(at, size));
      at += size;
    }
    CHECK(out.finish() == digest_of(content));
    CHECK(temp.read(std::to_string(i)) == content);
  }
}

TEST_CASE("file: interrupted and short writes go on where they stopped") {
  TempFolder temp;
  FaultyFileOps ops(temp / "graveyard");
  ops.write_at_most(7);
  const std::string content = pattern(1000);
  FileWriter out(ops, temp / "a");
  out.write(content);
  CHECK(out.finish() == digest_of(content));
  CHECK(temp.read("a") == content);
}

TEST_CASE("file: a name that is taken is refused, a link too") {
  TempFolder temp;
  temp.write("a", "old");
  fs::create_symlink("nowhere", temp / "b");
  CHECK(message_of([&] { FileWriter(system_file_ops(), temp / "a"); }) ==
        "cannot create '" + (temp / "a").native() + "': File exists");
  CHECK(message_of([&] { FileWriter(system_file_ops(), temp / "b"); }) ==
        "cannot create '" + (temp / "b").native() + "': File exists");
  CHECK(temp.read("a") == "old");
}

TEST_CASE("file: a failure names the path, what was tried and why, and a failed sync is final") {
  TempFolder temp;
  const struct {
    const char* kind;
    const char* attempted;
  } cases[] = {{"create", "create"}, {"write", "write"}, {"sync", "sync"}, {"close", "close"}};
  for (const auto& c : cases) {
    CAPTURE(c.kind);
    FaultyFileOps ops(temp / "graveyard");
    ops.fail_kind(c.kind, EIO);
    const fs::path path = temp / (std::string(c.kind) + "\n");
    int calls_at_failure = 0;
    const auto error = error_of([&] {
      FileWriter out(ops, path);
      out.write("x");
      try {
        out.finish();
      } catch (const FileError& failure) {
        calls_at_failure = ops.calls();
        CHECK(failure.error_number() == EIO);
        CHECK_FALSE(failure.no_space());
        throw;
      }
    });
    REQUIRE(error);
    CHECK(error->what() == std::string("cannot ") + c.attempted + " '" + (temp / c.kind).native() +
                               "\\n': Input/output error");
    CHECK(error->exit() == diag::Exit::failed);
    // What follows a failure is at most the close.
    CHECK(ops.calls() <= calls_at_failure + 1);
  }
}

TEST_CASE("file: folders are made with what is missing above, each name durable") {
  TempFolder temp;
  FaultyFileOps ops(temp / "graveyard");
  make_folders(ops, temp / "a/b/c/");
  CHECK(fs::is_directory(temp / "a/b/c"));
  CHECK(ops.log() == std::vector<std::string>{
                         "make_folder a", "sync_folder " + temp.path().filename().native(),
                         "make_folder b", "sync_folder a", "make_folder c", "sync_folder b"});
  make_folders(ops, temp / "a/b");
  CHECK(ops.calls() == 6);

  temp.write("file", "");
  CHECK(message_of([&] { make_folders(ops, temp / "file"); }) ==
        "cannot make the folder '" + (temp / "file").native() + "': File exists");
  CHECK(message_of([&] { make_folders(ops, temp / "file/below"); }) ==
        "cannot make the folder '" + (temp / "file").native() + "': File exists");
}

TEST_CASE(
    "file: remove_all takes a tree, never what a link points to, and goes on after a failure") {
  TempFolder temp;
  temp.write("tree/a/b", "x");
  temp.write("tree/c", "x");
  temp.write("outside/kept", "x");
  fs::create_directory_symlink(temp / "outside", temp / "tree/link");
  CHECK(remove_all(system_file_ops(), temp / "tree") == 0);
  CHECK_FALSE(fs::exists(temp / "tree"));
  CHECK(fs::exists(temp / "outside/kept"));
  CHECK(remove_all(system_file_ops(), temp / "tree") == 0);

  temp.write("tree/a", "x");
  temp.write("tree/b", "x");
  FaultyFileOps ops(temp / "graveyard");
  ops.fail_call(1, EPERM);
  CHECK(remove_all(ops, temp / "tree") == -EPERM);
  CHECK(names_in(temp / "tree").size() == 1);
}

TEST_CASE("file: the machine's file system exchanges two names and tells its free bytes") {
  TempFolder temp;
  temp.write("a/x", "1");
  temp.write("b/y", "2");
  const int exchanged = system_file_ops().exchange(temp / "a", temp / "b");
  if (exchanged == 0) {
    CHECK(temp.read("b/x") == "1");
    CHECK(temp.read("a/y") == "2");
  } else {
    CHECK(exchanged == -EINVAL);
  }
  CHECK(system_file_ops().free_bytes(temp.path()) > 0);
  CHECK(system_file_ops().free_bytes(temp / "missing") == -ENOENT);
}
