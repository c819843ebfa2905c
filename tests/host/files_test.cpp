#include "runner/host/files.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "runner/diag/error.h"
#include "tests/fakes/temp_folder.h"

namespace runner::host {
namespace {

std::string error_of(const std::filesystem::path& path, std::int64_t limit = 1000) {
  try {
    const std::string content = system_files().read_file(path, limit);
    return "read " + std::to_string(content.size()) + " bytes";
  } catch (const diag::Error& error) {
    CHECK(error.exit() == diag::Exit::invalid);
    return error.what();
  }
}

TEST_CASE("read_file: gives every byte, zeros included, up to exactly the limit") {
  const TempFolder folder;
  const std::string content("a\0\r\n\xff", 5);
  const auto path = folder.write("x.toml", content);
  CHECK(system_files().read_file(path, 5) == content);
  CHECK(error_of(path, 4) == "can't read '" + path.native() + "': it is longer than 4 bytes");
  CHECK(system_files().read_file(folder.write("empty", ""), 0).empty());
}

TEST_CASE("read_file: a file of several reads comes whole") {
  const TempFolder folder;
  std::string content;
  for (int i = 0; i < 100'000; ++i) content += std::to_string(i);
  CHECK(system_files().read_file(folder.write("long", content), 1 << 20) == content);
}

TEST_CASE("read_file: files whose size the kernel doesn't tell are read to their end") {
  CHECK(system_files().read_file("/proc/self/status", 1 << 20).starts_with("Name:"));
  CHECK(error_of("/proc/self/status", 10) ==
        "can't read '/proc/self/status': it is longer than 10 bytes");
}

TEST_CASE("read_file: what isn't a regular file is refused without blocking") {
  const TempFolder folder;
  const auto fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const auto sock = folder / "socket";
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, sock.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::close(fd);
  const auto dangling = folder / "dangling";
  std::filesystem::create_symlink("nowhere", dangling);
  const auto loop = folder / "loop";
  std::filesystem::create_symlink("loop", loop);

  const auto text = [](const std::filesystem::path& path, const std::string& reason) {
    return "can't read '" + path.native() + "': " + reason;
  };
  CHECK(error_of(fifo) == text(fifo, "it is a FIFO, not a regular file"));
  CHECK(error_of(sock) == text(sock, "it is not a regular file"));
  CHECK(error_of(folder.path()) == text(folder.path(), "it is a directory"));
  CHECK(error_of("/dev/zero") == text("/dev/zero", "it is a device, not a regular file"));
  CHECK(error_of(folder / "none") == text(folder / "none", "no such file"));
  CHECK(error_of(dangling) == text(dangling, "no such file"));
  CHECK(error_of(loop) == text(loop, "too many symbolic links"));
  CHECK(error_of(std::string("a\0b", 3)) == R"(can't read 'a\x00b': the name holds a NUL byte)");
  CHECK(error_of("a\x1b[31m") == R"(can't read 'a\x1b[31m': no such file)");
}

TEST_CASE("read_file: an unreadable file is refused") {
  const TempFolder folder;
  const auto path = folder.write("secret", "x");
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  REQUIRE(::chmod(path.c_str(), 0) == 0);
  const uid_t user = ::geteuid();
  if (user == 0) REQUIRE(::seteuid(65534) == 0);  // root may read everything
  const std::string error = error_of(path);
  REQUIRE(::seteuid(user) == 0);
  CHECK(error == "can't read '" + path.native() + "': permission denied");
}

TEST_CASE("files: exists and is_directory follow links and never throw") {
  const TempFolder folder;
  folder.write("file", "x");
  std::filesystem::create_symlink(folder.path(), folder / "link");
  const Files& files = system_files();
  CHECK(files.exists(folder / "file"));
  CHECK_FALSE(files.is_directory(folder / "file"));
  CHECK(files.is_directory(folder / "link"));
  CHECK_FALSE(files.exists(folder / "none"));
  CHECK_FALSE(files.exists(std::string(5000, 'x')));
}

TEST_CASE("free_bytes: a path that doesn't exist yet has the space of the folder it will lie in") {
  const TempFolder folder;
  struct statvfs status {};
  REQUIRE(::statvfs(folder.path().c_str(), &status) == 0);
  const double expected =
      static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize);
  // Others write to the same disk meanwhile.
  const auto told = static_cast<double>(system_files().free_bytes(folder / "a/b/c"));
  CHECK(told == doctest::Approx(expected).epsilon(0.05));
}

}  // namespace
}  // namespace runner::host
