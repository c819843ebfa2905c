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

bool on_one_line(const diag::Span& a, const diag::Span& b) {
  return a.file != nullptr && a.file == b.file && a.line == b.line;
}

std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }

/// Whether a diagnostic of the rules would stand if `error` were mended: it speaks of other lines,
/// and of a key that is written, so that `error` isn't the reason for its absence.
bool is_independent(const diag::Diagnostic& d, const diag::Diagnostic& error,
                    const config::Experiment& experiment) {
  if (on_one_line(d.at, error.at)) return false;
  for (const diag::Note& note : d.notes) {
    if (on_one_line(note.at, error.at)) return false;
  }
  return experiment.is_set(d.key) || section_of(d.key) != section_of(error.key);
}

/// With errors in the file, its defaults stand in for what is wrong. Rules that speak of other keys
/// hold all the same and are reported too; whether model and data fit can't be known yet.
void judge_what_stands(const check::MachineView& machine, Judged& judged) {
  config::Experiment experiment = *judged.experiment;
  for (const config::Component* c :
       {&experiment.model, &experiment.dataset, &experiment.optimizer, &experiment.scheduler}) {
    if (c->entry == nullptr) return;
  }
  diag::Sink rules;
  (void)check::judge(experiment, machine, dataset_context(), rules);
  const std::vector<diag::Diagnostic> errors = judged.sink.all();
  for (const diag::Diagnostic& d : rules.all()) {
    const std::string_view id = diag::info(d.code).id;
    const bool is_rule = id.starts_with('M') || id.starts_with('G') || id.starts_with('L');
    const bool stands = std::all_of(errors.begin(), errors.end(), [&](const diag::Diagnostic& e) {
      return is_independent(d, e, experiment);
    });
    if (is_rule && stands) judged.sink.report(d);
  }
}

}  // namespace

void judge_file(const std::filesystem::path& file, std::span<const config::Override> overrides,
                const check::MachineView& machine, Judged& judged) {
  judged.experiment = config::load(file, overrides, host::system_files(),
                                   host::system_environment(), judged.sources, judged.sink);
  if (judged.experiment) report_unused_sections(*judged.experiment, judged.sink);
  if (!judged.experiment) return;
  if (judged.sink.errors() > 0) {
    judge_what_stands(machine, judged);
    return;
  }
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
