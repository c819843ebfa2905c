// The `gpus` key, value by value.
//
// What a value asks for is one question (parse_gpus), what the machine can give another (resolve).
// A count is an integer, a list of ids is a list or a string: 3 is the first three GPUs, "3" is
// GPU 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "registry/value.h"
#include "runner/diag/diagnostic.h"

namespace runner::check {

/// What a `gpus` value asks for, before anything is known of the machine.
struct GpuSpec {
  enum class Kind { cpu, count, all, ids } kind = Kind::cpu;
  std::int64_t count = 0;         ///< for Kind::count
  std::vector<std::int64_t> ids;  ///< for Kind::ids, root first
  bool is_text = false;           ///< written as a string
};

/// Why a value or the machine doesn't give GPUs.
struct GpuProblem {
  diag::Code code;
  std::string message;
  std::string help;
  std::optional<std::size_t> index = {};  ///< the element of a list at fault
};

struct ParsedGpus {
  GpuSpec spec;                      ///< the CPU when there is a problem
  std::vector<GpuProblem> problems;  ///< every bad element of a list, not just the first
};
[[nodiscard]] ParsedGpus parse_gpus(const registry::Value& value);

/// The GPUs that a process on the machine sees.
struct VisibleGpus {
  std::optional<std::int64_t> count;  ///< nothing: unknown, and any number is taken at face value
  std::optional<std::string> mask;    ///< CUDA_VISIBLE_DEVICES
};

/// MIG slices that a mask lists.
[[nodiscard]] std::int64_t mig_slices(const std::optional<std::string>& mask);

struct ResolvedGpus {
  std::vector<std::int64_t> ids;     ///< as the file numbers them, root first
  bool all = false;                  ///< all GPUs of a machine that isn't known
  std::vector<std::string> remarks;  ///< for the plan: what the numbers mean here
  std::optional<GpuProblem> problem;
};
[[nodiscard]] ResolvedGpus resolve(const GpuSpec& spec, const VisibleGpus& visible);

}  // namespace runner::check
