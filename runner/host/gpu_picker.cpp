#include "runner/host/gpu_picker.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "runner/diag/error.h"
#include "runner/host/text.h"

namespace runner::host {

namespace {

using diag::Error;
using diag::Exit;

std::string gibibytes(std::int64_t bytes) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.1f",
                static_cast<double>(bytes) / static_cast<double>(1LL << 30));
  return buffer.data();
}

std::string gpus_word(std::size_t count) { return count == 1 ? "GPU" : "GPUs"; }

bool contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// The UUID names the GPU also in a container that counts from 0 again.
std::string lock_name(const Gpu& gpu) {
  const bool usable = !gpu.uuid.empty() && gpu.uuid.size() < 128 &&
                      std::all_of(gpu.uuid.begin(), gpu.uuid.end(),
                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
  return (usable ? gpu.uuid : std::to_string(gpu.index)) + ".lock";
}

bool try_lock(int fd, int kind) {
  int status = -1;
  do {
    status = ::flock(fd, kind | LOCK_NB);
  } while (status != 0 && errno == EINTR);
  return status == 0;
}

/// For the message of the next one that comes; the lock itself doesn't depend on it.
void write_holder(int fd) {
  const std::string text = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd, 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(fd, text.data(), text.size(), 0);
}

std::string held_by(int fd) {
  std::array<char, 32> buffer{};
  const ssize_t got = ::pread(fd, buffer.data(), buffer.size() - 1, 0);
  const long pid = got > 0 ? std::strtol(buffer.data(), nullptr, 10) : 0;
  return pid > 0 ? "is held by another run (process " + std::to_string(pid) + ")"
                 : "is held by another run";
}

[[noreturn]] void fail_folder(const std::filesystem::path& folder, const std::string& reason) {
  throw Error(Exit::machine, "can't use " + quote(folder.native()) + " for GPU locks: " + reason,
              "remove it, or name the GPUs in trainer.gpus");
}

[[noreturn]] void fail_too_few(std::size_t asked, std::size_t free, std::size_t candidates,
                               const std::vector<std::string>& busy) {
  std::string message = std::to_string(asked) + " free " + gpus_word(asked) +
                        (asked == 1 ? " was" : " were") + " asked for, but ";
  if (candidates == 0) {
    throw Error(Exit::machine, message + "no GPU is available here",
                "run `nvidia-smi` and look at CUDA_VISIBLE_DEVICES, or train on the CPU: "
                "trainer.gpus = 0");
  }
  message += std::to_string(free) + " of " + std::to_string(candidates) + " available " +
             (free == 1 ? "is" : "are") + " free";
  if (!busy.empty()) message += ": " + join(busy);
  throw Error(Exit::machine, message,
              asked > candidates ? "ask for fewer GPUs"
                                 : "wait for them, ask for fewer, or name them in trainer.gpus");
}

}  // namespace

GpuPicker::GpuPicker(const Machine& machine, const Environment& environment, Clock& clock,
                     GpuPickerOptions options)
    : machine_(machine), environment_(environment), clock_(clock), options_(std::move(options)) {
  if (options_.lock_folder.empty()) {
    options_.lock_folder = "/tmp/runner-gpu-" + std::to_string(::getuid());
  }
}

GpuLease GpuPicker::pick_single_gpu(const std::vector<int>& exclude) {
  return std::move(pick_multiple_gpus(1, exclude).front());
}

std::vector<GpuLease> GpuPicker::pick_multiple_gpus(int count, const std::vector<int>& exclude) {
  if (count < 0) throw Error(Exit::invalid, "can't pick " + std::to_string(count) + " GPUs");
  if (count == 0) return {};
  const auto wanted = static_cast<std::size_t>(count);
  open_lock_folder();  // a folder that can't be used won't get better by waiting
  // Waiting doesn't add a GPU: with too few in sight, one try says why each isn't free.
  const auto visible = visible_gpus(machine_.gpus(), environment_.get("CUDA_VISIBLE_DEVICES"));
  const auto excluded = std::count_if(visible.begin(), visible.end(),
                                      [&](const Gpu& gpu) { return contains(exclude, gpu.index); });
  const bool hopeless = visible.size() - static_cast<std::size_t>(excluded) < wanted;
  return retry_jittered_backoff([&] { return try_pick(wanted, exclude); },
                                hopeless ? 0 : options_.retries, clock_, random_, options_.backoff);
}

std::vector<GpuLease> GpuPicker::try_pick(std::size_t count,
                                          const std::vector<int>& exclude) const {
  std::vector<GpuLease> leases;
  std::vector<std::string> busy;
  std::size_t candidates = 0;
  const auto visible = visible_gpus(machine_.gpus(), environment_.get("CUDA_VISIBLE_DEVICES"));
  for (const Gpu& gpu : visible) {
    if (contains(exclude, gpu.index)) continue;
    ++candidates;
    if (leases.size() == count) continue;
    std::optional<std::string> reason = why_busy(gpu);
    if (!reason) {
      UniqueFd lock = open_lock(gpu);
      if (try_lock(lock.get(), LOCK_EX)) {
        write_holder(lock.get());
        leases.emplace_back(gpu, std::move(lock));
        continue;
      }
      reason = held_by(lock.get());
    }
    busy.push_back("GPU " + std::to_string(gpu.index) + " " + *reason);
  }
  if (leases.size() < count) fail_too_few(count, leases.size(), candidates, busy);
  return leases;
}

std::vector<GpuLease> GpuPicker::hold_gpus(const std::vector<int>& indices) {
  std::vector<GpuLease> leases;
  for (const Gpu& gpu : machine_.gpus()) {
    if (!contains(indices, gpu.index)) continue;
    UniqueFd lock = open_lock(gpu);
    if (!try_lock(lock.get(), LOCK_SH)) continue;
    write_holder(lock.get());
    leases.emplace_back(gpu, std::move(lock));
  }
  return leases;
}

std::optional<std::string> GpuPicker::why_busy(const Gpu& gpu) const {
  if (!gpu.processes.empty()) {
    std::string ids;
    for (const std::int64_t id : gpu.processes)
      ids += (ids.empty() ? "" : ", ") + std::to_string(id);
    return std::string("is used by process") + (gpu.processes.size() > 1 ? "es " : " ") + ids;
  }
  const double needed = options_.min_free_share * static_cast<double>(gpu.memory_bytes);
  if (static_cast<double>(gpu.free_bytes) >= needed) return std::nullopt;
  return "has only " + gibibytes(gpu.free_bytes) + " of " + gibibytes(gpu.memory_bytes) +
         " GiB free";
}

/// Lock files are never removed: a removed file could be locked by one run and made anew, and
/// locked again, by another.
UniqueFd GpuPicker::open_lock(const Gpu& gpu) const {
  const UniqueFd folder = open_lock_folder();
  const std::string name = lock_name(gpu);
  UniqueFd lock(::openat(folder.get(), name.c_str(),
                         O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!lock) {
    fail_folder(options_.lock_folder, quote(name) + ": " + std::system_category().message(errno));
  }
  return lock;
}

/// /tmp is everybody's: somebody else's folder, or a link, under our name must not be used.
UniqueFd GpuPicker::open_lock_folder() const {
  const std::filesystem::path& path = options_.lock_folder;
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    fail_folder(path, std::system_category().message(errno));
  }
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) fail_folder(path, std::system_category().message(errno));
  struct stat status {};
  if (::fstat(folder.get(), &status) != 0) {
    fail_folder(path, std::system_category().message(errno));
  }
  if (status.st_uid != ::getuid()) fail_folder(path, "it belongs to another user");
  if ((status.st_mode & 077) != 0) fail_folder(path, "other users have access to it");
  return folder;
}

}  // namespace runner::host
