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
#include "runner/store/run_folder.h"

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
  const std::string_view section = section_of(error.key);
  if (section != section_of(d.key)) return true;
  // A component's options work together, so one that is wrong leaves nothing to say of the others.
  const bool of_component = section == "model" || section == "dataset" || section == "optimizer" ||
                            section == "scheduler" || section == "loss";
  return experiment.is_set(d.key) && !of_component;
}

/// A component whose name is unknown gets a stand-in, so that the rules about other keys can speak.
void stand_in(config::Component& component, std::string_view catalog) {
  if (component.entry != nullptr) return;
  component.entry = config::catalog_entries(catalog).front();
  component.name = component.entry->name;
  component.options = component.entry->defaults;
}

/// With errors in the file, its defaults stand in for what is wrong. What the rules say of other
/// keys holds all the same and is reported too; whether model and data fit can't be known yet.
void judge_what_stands(const check::MachineView& machine, Judged& judged) {
  config::Experiment experiment = *judged.experiment;
  stand_in(experiment.model, "models");
  stand_in(experiment.dataset, "datasets");
  stand_in(experiment.optimizer, "optimizers");
  stand_in(experiment.scheduler, "schedulers");
  diag::Sink rules;
  (void)check::judge(experiment, machine, judged.context, rules);
  const std::vector<diag::Diagnostic> errors = judged.sink.all();
  for (const diag::Diagnostic& d : rules.all()) {
    const bool about_fit =
        diag::info(d.code).id.starts_with('D') || d.code == diag::Code::dataset_files;
    const bool stands = std::all_of(errors.begin(), errors.end(), [&](const diag::Diagnostic& e) {
      return is_independent(d, e, experiment);
    });
    if (!about_fit && stands) judged.sink.report(d);
  }
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
  view.host_memory_bytes = host::system_machine().memory_bytes();
  view.free_disk_bytes = host::system_files().free_bytes(root);
  view.in_slurm_step = launch::in_slurm_step(environment);
  const std::int64_t on_node = launch::slurm_gpus_on_node(environment).value_or(0);
  if (on_node > *view.gpus_available) {
    // A task that was bound to its own GPU stands for a node that has more; the mask is the task's.
    view.gpus_available = on_node;
    view.visible_mask.reset();
  }
  return view;
}

check::MachineView machine_view(const Surroundings& surroundings, const config::Experiment& e) {
  if (surroundings.here) return this_machine(e.general.root);
  check::MachineView view;
  view.gpus_available = surroundings.gpus_available;
  return view;
}

/// What started this process, if anything did, for the plan.
void remark_starter(const launch::ByHand& by_hand, check::Verdict& verdict) {
  const launch::Started started = launch::detect(host::system_environment(), by_hand);
  if (started.why.empty()) return;
  verdict.inferred.push_back({.key = {}, .value = {}, .reason = started.why, .code = {}});
}

/// Only `load` knows how to get a file that is missing, so it is called when one is, and throws.
void need_data(const config::Experiment& experiment, const datasets::Context& context) {
  const auto& dataset = static_cast<const datasets::Dataset&>(*experiment.dataset.entry);
  for (const std::filesystem::path& file : dataset.files(experiment.dataset.options, context)) {
    if (std::filesystem::exists(file)) continue;
    for (const auto part :
         {datasets::Part::train, datasets::Part::validation, datasets::Part::test}) {
      (void)dataset.load(experiment.dataset.options, context, part);
    }
    throw diag::Error(diag::Exit::machine, "the dataset's file '" + file.string() + "' is missing");
  }
}

/// What must be there before anything is made or started: the data, and a run folder to write to.
void look_around(Judged& judged) {
  const config::Experiment& e = *judged.experiment;
  const auto report = [&](diag::Code code, const diag::Error& error, const std::string& key) {
    judged.sink.report({.code = code,
                        .message = error.what(),
                        .at = e.at(key),
                        .notes = {},
                        .help = error.help(),
                        .key = key});
  };
  try {
    need_data(e, judged.context);
  } catch (const diag::Error& error) {
    const bool has_root = e.setting("dataset.root") != nullptr;
    report(diag::Code::dataset_files, error, has_root ? "dataset.root" : "dataset.name");
  }
  try {
    store::probe(e.general.root, kLogBytes);
  } catch (const diag::Error& error) {
    report(diag::Code::run_folder, error, "root");
  }
}

}  // namespace

Surroundings surroundings(const Options& options) {
  Surroundings result;
  result.here = options.here;
  result.gpus_available = options.gpus_available;
  result.by_hand = options.by_hand;
  return result;
}

void judge_file(const std::filesystem::path& file, std::span<const config::Override> overrides,
                const Surroundings& surroundings, Judged& judged) {
  judged.context = {.base = surroundings.base, .shared = host::data_folder() / "datasets" / "data"};
  judged.experiment = config::load(file, overrides, host::system_files(),
                                   host::system_environment(), judged.sources, judged.sink);
  if (!judged.experiment) return;
  report_unused_sections(*judged.experiment, judged.sink);
  const check::MachineView machine = machine_view(surroundings, *judged.experiment);
  if (judged.sink.errors() > 0) {
    judge_what_stands(machine, judged);
  } else {
    judged.verdict = check::judge(*judged.experiment, machine, judged.context, judged.sink);
    if (surroundings.here && judged.sink.errors() == 0) {
      remark_starter(surroundings.by_hand, *judged.verdict);
      look_around(judged);
    }
  }
  judged.sink.place_rest({judged.experiment->source, 0, 0, 0});
}

plan::Plan make_plan(const Judged& judged, plan::Mode mode, const Options& options) {
  plan::Plan plan = plan::make(*judged.experiment, *judged.verdict, mode);
  plan.base_folder = judged.context.base.string();
  plan.shared_folder = judged.context.shared.string();
  plan.command_line = options.command_line;
  plan.version = kVersion;
  plan.quiet = options.quiet;
  return plan;
}

void print_error(std::string_view message, std::string_view help, std::string_view log) {
  const bool tint = color(STDERR_FILENO);
  std::cout.flush();
  std::cerr << (tint ? "\x1b[1;31merror\x1b[0m: " : "error: ");
  for (std::string_view rest = message; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::cerr << diag::visible(rest.substr(0, end)) << "\n";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (!help.empty()) {
    std::cerr << (tint ? "  \x1b[1mhelp\x1b[0m: " : "  help: ") << diag::visible(help) << "\n";
  }
  if (!log.empty()) {
    std::cerr << (tint ? "  \x1b[1mlog\x1b[0m: " : "  log: ") << diag::visible(log) << "\n";
  }
  std::cerr.flush();
}

bool color(int fd) { return report::can_color(fd, host::system_environment()); }

}  // namespace runner::cli
