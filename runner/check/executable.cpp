#include "runner/check/executable.h"

#include "runner/check/text.h"

namespace runner::check {

namespace {

std::string devices_text(const Verdict& v) {
  std::string text = v.all_gpus ? "all GPUs"
                     : v.device_type == "cuda"
                         ? counted(static_cast<std::int64_t>(v.gpu_ids.size()), "GPU")
                         : counted(v.processes_per_node, "process") + " on the CPU";
  if (v.num_nodes > 1) text += " on each of " + std::to_string(v.num_nodes) + " nodes";
  return text;
}

}  // namespace

std::optional<std::string> not_yet_executable(const Verdict& v) {
  // Every precision runs on a single device; what is missing is work of several together.
  const bool is_single = v.backend == "none" && !v.all_gpus && v.gpu_ids.size() <= 1 &&
                         v.num_nodes == 1 && v.processes_per_node == 1;
  if (is_single) return {};
  return "backend '" + v.backend + "' on " + devices_text(v) +
         " is checked and planned, and this version runs one process on one device only";
}

}  // namespace runner::check
