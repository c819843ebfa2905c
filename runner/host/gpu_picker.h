// Picking free GPUs, so that two runs started at once never get the same one.
//
// A GPU is free when no process computes on it, most of its memory is free, and no other run of
// this user holds its lock: an flock on a file of its own, which the kernel drops when the holder
// dies, however it dies. A lease holds the lock; keep it as long as the run lives.
//
//   host::GpuPicker picker(host::system_machine(), host::system_environment(),
//                          host::system_clock());
//   const std::vector<host::GpuLease> leases = picker.pick_multiple_gpus(2);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runner/host/clock.h"
#include "runner/host/environment.h"
#include "runner/host/machine.h"
#include "runner/host/retry.h"
#include "runner/host/unique_fd.h"

namespace runner::host {

/// One GPU, ours as long as this object lives. Programs started meanwhile don't inherit the lock.
class GpuLease {
 public:
  GpuLease(Gpu gpu, UniqueFd lock) : gpu_(std::move(gpu)), lock_(std::move(lock)) {}

  [[nodiscard]] const Gpu& gpu() const { return gpu_; }
  /// As in Gpu::index: counted over all GPUs of the machine, not within CUDA_VISIBLE_DEVICES.
  [[nodiscard]] int index() const { return gpu_.index; }

 private:
  Gpu gpu_;
  UniqueFd lock_;
};

struct GpuPickerOptions {
  /// Where the lock files lie: private to the user, made when missing. The same for all runs of a
  /// user, whatever TMPDIR is; empty means /tmp/runner-gpu-<uid>.
  std::filesystem::path lock_folder = {};
  /// A GPU with a smaller share of its memory free counts as busy.
  double min_free_share = 0.8;
  int retries = 5;
  Backoff backoff = {};
};

/// The GPUs to pick from are those that CUDA_VISIBLE_DEVICES lets this process see. A GPU that is
/// busy may be so for a moment only: picks are tried again with back-off, for about 2 s in all.
class GpuPicker {
 public:
  GpuPicker(const Machine& machine, const Environment& environment, Clock& clock,
            GpuPickerOptions options = {});

  /// The first free GPU whose index isn't in `exclude`. Errors as below.
  [[nodiscard]] GpuLease pick_single_gpu(const std::vector<int>& exclude = {});

  /// The first `count` free GPUs, or none: throws diag::Error(Exit::machine), naming the busy ones
  /// and why, when there are fewer, and diag::Error(Exit::invalid) when `count` is negative.
  [[nodiscard]] std::vector<GpuLease> pick_multiple_gpus(int count,
                                                         const std::vector<int>& exclude = {});

  /// Marks GPUs that a person has named as in use, so that picking runs keep off them. Runs may
  /// share a GPU this way; one that a picking run holds is left out of the result.
  [[nodiscard]] std::vector<GpuLease> hold_gpus(const std::vector<int>& indices);

 private:
  std::vector<GpuLease> try_pick(std::size_t count, const std::vector<int>& exclude) const;
  std::optional<std::string> why_busy(const Gpu& gpu) const;
  UniqueFd open_lock(const Gpu& gpu) const;
  UniqueFd open_lock_folder() const;

  const Machine& machine_;
  const Environment& environment_;
  Clock& clock_;
  GpuPickerOptions options_;
  std::random_device random_;
};

}  // namespace runner::host
