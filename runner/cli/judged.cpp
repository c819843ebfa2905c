#include "runner/cli/judged.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "runner/cli/version.h"
#include "runner/diag/render.h"
#include "runner/host/environment.h"
#include "runner/host/files.h"
#include "runner/host/machine.h"
#include "runner/host/process.h"
#include "runner/plan/make.h"
#include "runner/report/terminal.h"

namespace runner::cli {

namespace {

/// Sections that other commands will use; saying nothing would let them be taken for settings.
void report_unused_sections(const config::Experiment& experiment, diag::Sink& sink) {
  for (const char* section : {"slurm", "sweep"}) {
    if (!experiment.has_section(section)) continue;
    sink.report({.code = diag::Code::section_without_effect,
                 .message = "[" + std::string(section) +
                            "] is checked, and has no effect on a run of this file",
                 .at = experiment.origins.at(section).key,
                 .notes = {},
                 .help = {},
                 .key = section});
  }
}

}  // namespace

void judge_file(const std::filesystem::path& file, std::span<const config::Override> overrides,
                const check::MachineView& machine, Judged& judged) {
  judged.experiment = config::load(file, overrides, host::system_files(),
                                   host::system_environment(), judged.sources, judged.sink);
  if (judged.experiment) report_unused_sections(*judged.experiment, judged.sink);
  // A value that is wrong by itself was replaced by its default, so what the rules would say about
  // it isn't about the file.
  if (!judged.experiment || judged.sink.errors() > 0) return;
  judged.verdict = check::judge(*judged.experiment, machine, dataset_context(), judged.sink);
}

check::MachineView machine_view(const Options& options) {
  if (options.here) return this_machine(".");
  check::MachineView view;
  view.gpus_available = options.gpus_available;
  return view;
}

check::MachineView this_machine(const std::filesystem::path& root) {
  check::MachineView view;
  const host::Environment& environment = host::system_environment();
  view.visible_mask = environment.get("CUDA_VISIBLE_DEVICES");
  const std::vector<host::Gpu> gpus =
      host::visible_gpus(host::system_machine().gpus(), view.visible_mask);
  view.gpus_available = static_cast<std::int64_t>(gpus.size());
  for (const host::Gpu& gpu : gpus) {
    view.gpu_memory_bytes =
        std::min(view.gpu_memory_bytes.value_or(gpu.memory_bytes), gpu.memory_bytes);
  }
  view.free_disk_bytes = host::system_files().free_bytes(root);
  view.in_slurm_step =
      environment.get("SLURM_PROCID").has_value() && environment.get("SLURM_STEP_ID").has_value();
  return view;
}

datasets::Context dataset_context() {
  return {.base = std::filesystem::current_path(),
          .shared = host::data_folder() / "datasets" / "data"};
}

plan::Plan make_plan(const Judged& judged, plan::Mode mode, const Options& options) {
  plan::Plan plan = plan::make(*judged.experiment, *judged.verdict, mode);
  plan.base_folder = std::filesystem::current_path().string();
  plan.shared_folder = dataset_context().shared.string();
  plan.command_line = options.command_line;
  plan.version = kVersion;
  plan.quiet = options.quiet;
  return plan;
}

void print_error(std::string_view message, std::string_view help) {
  const bool tint = color(STDERR_FILENO);
  std::cout.flush();
  std::cerr << (tint ? "\x1b[1;31merror\x1b[0m: " : "error: ") << diag::visible(message) << "\n";
  if (!help.empty())
    std::cerr << (tint ? "  \x1b[1mhelp\x1b[0m: " : "  help: ") << diag::visible(help) << "\n";
  std::cerr.flush();
}

bool color(int fd) { return report::can_color(fd, host::system_environment()); }

}  // namespace runner::cli
