#include "runner/store/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runner/diag/error.h"
#include "runner/host/text.h"
#include "runner/store/process_id.h"

namespace runner::store {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLockName = ".lock";
constexpr const char* kChooseAnother = "choose another run folder";
constexpr int kMostOfOneSecond = 10'000;

void check_name(const std::string& name) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  std::string why;
  if (name.empty()) why = "is empty";
  if (name.starts_with('.')) why = "begins with a dot";
  if (name.find('/') != std::string::npos) why = "holds a slash";
  if (std::ranges::any_of(name, is_control)) why = "holds a control character";
  if (why.empty()) return;
  throw diag::Error(diag::Exit::invalid,
                    "the run name " + host::quote(name) + " can't name a folder: it " + why);
}

std::string local_time_text(std::chrono::system_clock::time_point time, const char* format) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, &parts);
  return text.data();
}

/// Makes the first of <base>, <base>-2, <base>-3, ... that isn't there. mkdir itself says whether
/// the name was free, so no other process can slip in between.
fs::path make_unused_folder(FileOps& ops, const fs::path& base) {
  fs::path path = base;
  int made = ops.make_folder(path);
  for (int n = 2; made == -EEXIST && n <= kMostOfOneSecond; ++n) {
    path = base;
    path += "-" + std::to_string(n);
    made = ops.make_folder(path);
  }
  must(made, "make the folder", path);
  return path;
}

/// Runs `work`; what fails there is the machine's, before anything was spent.
template <class Work>
auto at_start(Work&& work) {
  try {
    return work();
  } catch (const FileError& error) {
    throw diag::Error(diag::Exit::machine, error.what(), kChooseAnother);
  }
}

fs::path nearest_existing(const fs::path& path) {
  fs::path folder = path.lexically_normal();
  std::error_code error;
  while (folder.has_relative_path() &&
         fs::status(folder, error).type() == fs::file_type::not_found) {
    folder = folder.parent_path();
  }
  return folder.empty() ? fs::path(".") : folder;
}

// ---- the lock

struct Holder {
  std::string pid;
  std::string host;
  std::string started;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string record_text() {
  const ProcessId self = ProcessId::self();
  return "pid: " + std::to_string(self.pid) + "\nhost: " + host_name() +
         "\nstarted: " + local_time_text(std::chrono::system_clock::now(), "%Y-%m-%d %H:%M:%S %z") +
         "\nboot id: " + self.boot_id + "\n";
}

/// The text after "<key>: " up to the end of its line; empty if there is none.
std::string field(const std::string& record, const std::string& key) {
  const std::size_t found = ("\n" + record).find("\n" + key + ": ");
  if (found == std::string::npos) return {};
  const std::size_t begin = found + key.size() + 2;
  return record.substr(begin, record.find('\n', begin) - begin);
}

Holder read_holder(int fd) {
  std::array<char, 1024> buffer{};
  const ssize_t count = ::pread(fd, buffer.data(), buffer.size(), 0);
  const std::string record(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return {.pid = field(record, "pid"),
          .host = field(record, "host"),
          .started = field(record, "started")};
}

[[noreturn]] void refuse_held(const fs::path& folder, int fd) {
  const Holder holder = read_holder(fd);
  // A holder that hasn't yet written its record has only just started.
  const std::string by = holder.pid.empty() ? "by a process that is just starting"
                                            : "by process " + host::escape_text(holder.pid) +
                                                  " on host " + host::quote(holder.host) +
                                                  " since " + host::escape_text(holder.started);
  throw diag::Error(diag::Exit::failed,
                    "the run folder " + host::quote(folder.native()) + " is in use " + by,
                    "wait for that run to end, or stop it");
}

[[noreturn]] void refuse_unlockable(const fs::path& path, int error) {
  throw diag::Error(
      diag::Exit::machine,
      "cannot lock " + host::quote(path.native()) + ": " + std::generic_category().message(error),
      "put the run folder on a file system with locks that this user can write to");
}

bool write_record(int fd) {
  const std::string record = record_text();
  return ::ftruncate(fd, 0) == 0 &&
         ::pwrite(fd, record.data(), record.size(), 0) == static_cast<ssize_t>(record.size());
}

}  // namespace

RunFolder RunFolder::create(const fs::path& root, const std::string& name,
                            std::chrono::system_clock::time_point time, FileOps& ops) {
  check_name(name);
  return at_start([&] {
    const fs::path parent = root / name;
    make_folders(ops, parent);
    const fs::path path = make_unused_folder(ops, parent / local_time_text(time, "%F_%H-%M-%S"));
    must(ops.sync_folder(parent), "sync the folder", parent);
    return RunFolder(path);
  });
}

void probe(const fs::path& path, std::int64_t needed_bytes, FileOps& ops) {
  const fs::path folder = nearest_existing(path);
  at_start([&] {
    const fs::path file = folder / (".probe-" + ProcessId::self().str());
    const int fd = static_cast<int>(must(ops.create(file), "write in", folder));
    ops.close(fd);
    must(ops.unlink(file), "remove", file);
  });
  const std::int64_t free =
      at_start([&] { return must(ops.free_bytes(folder), "ask for the free space of", folder); });
  if (free >= needed_bytes) return;
  throw diag::Error(diag::Exit::machine,
                    host::quote(path.native()) +
                        " has too little space: " + std::to_string(needed_bytes) +
                        " bytes are needed, " + std::to_string(free) + " are free",
                    "free some space, keep fewer checkpoints, or choose another run folder");
}

RunLock::RunLock(const fs::path& folder) {
  const fs::path path = folder / kLockName;
  fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd_) refuse_unlockable(path, errno);
  // The file is never removed: whoever opened it before that would lock a file without a name.
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) refuse_held(folder, fd_.get());
    refuse_unlockable(path, errno);
  }
  if (!write_record(fd_.get())) refuse_unlockable(path, errno);
}

}  // namespace runner::store
