// The commands that train or evaluate: run, --resume, --test. Everything that can be found out
// before a worker starts is found out here.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runner/cli/commands.h"
#include "runner/cli/judged.h"
#include "runner/cli/launchers.h"
#include "runner/cli/options.h"
#include "runner/diag/render.h"
#include "runner/host/environment.h"
#include "runner/host/process.h"
#include "runner/launch/supervisor.h"
#include "runner/launch/write.h"
#include "runner/plan/make.h"
#include "runner/report/terminal.h"
#include "runner/store/checkpoint.h"
#include "runner/store/run_folder.h"

namespace runner::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpoints = "checkpoints";
constexpr std::string_view kConfig = "config.toml";

enum class Warnings { shown, hidden };

/// Whether this is the launcher that tells what all of them find, in files that all of them read.
/// Errors are told by each: they may be its own.
bool speaks(const Options& options) {
  return launch::detect(host::system_environment(), options.by_hand).rank == 0;
}

/// Reads and judges for this machine; prints what is wrong and says whether it can go on. The
/// warnings of a stored configuration were shown when its run began.
bool judge_here(const fs::path& file, std::span<const config::Override> overrides,
                const Options& options, const fs::path& base, Warnings warnings, Judged& judged) {
  Surroundings here;
  here.by_hand = options.by_hand;
  here.here = true;
  here.base = base;
  judge_file(file, overrides, here, judged);
  const bool fine = judged.sink.errors() == 0;
  if (!judged.sink.all().empty() && (!fine || (warnings == Warnings::shown && speaks(options)))) {
    std::cerr << diag::render_text(judged.sink.sorted(), color(STDERR_FILENO)) << "\n";
  }
  if (fine) return true;
  std::cerr << judged.sink.errors() << (judged.sink.errors() == 1 ? " error\n" : " errors\n");
  return false;
}

/// The checkpoint to go on from; says which damaged ones were passed over.
std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const store::CheckpointFolder folder(run / kCheckpoints);
  std::vector<std::string> skipped;
  const auto manifest = folder.newest_valid(&skipped);
  for (const std::string& reason : skipped)
    std::cerr << "warning: " << diag::visible(reason) << "\n";
  if (!manifest) return {};
  return folder.path(manifest->step);
}

nlohmann::ordered_json read_json(const fs::path& file) {
  std::ifstream in(file);
  if (!in) return nullptr;
  return nlohmann::ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
}

bool is_finished(const fs::path& run) {
  const nlohmann::ordered_json manifest = read_json(run / "manifest.json");
  return manifest.is_object() && manifest.value("status", "") == "finished";
}

/// The newest run of this name that has a checkpoint and isn't finished.
std::optional<fs::path> unfinished_run(const config::General& general) {
  const fs::path parent = fs::path(general.root) / general.name;
  std::error_code error;
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (entry.is_directory() && !entry.is_symlink()) runs.push_back(entry.path());
  }
  std::sort(runs.rbegin(), runs.rend());
  for (const fs::path& run : runs) {
    if (!is_finished(run) && !store::CheckpointFolder(run / kCheckpoints).list().empty())
      return run;
  }
  return {};
}

/// What differs between a run's stored configuration and the one to go on with.
struct Difference {
  std::string key, before, after;
  registry::Resume resume = registry::Resume::warn;
};

std::vector<Difference> differences(const config::Experiment& stored,
                                    const config::Experiment& now) {
  std::vector<Difference> result;
  const auto text = [](const config::Setting* setting) {
    return setting == nullptr || !setting->value.has_value() ? std::string("absent")
                                                             : registry::to_toml(setting->value);
  };
  const auto add = [&](const config::Setting& setting, const std::string& before,
                       const std::string& after) {
    if (before == after) return;
    // Under plateau the rate has a history, which a new start value would silently lose against.
    const bool plateau_rate = setting.key == "optimizer.lr" && now.scheduler.name == "plateau";
    result.push_back({setting.key, before, after,
                      plateau_rate ? registry::Resume::fixed : setting.option->resume});
  };
  for (const config::Setting& setting : now.settings)
    add(setting, text(stored.setting(setting.key)), text(&setting));
  for (const config::Setting& setting : stored.settings) {
    if (now.setting(setting.key) == nullptr) add(setting, text(&setting), "absent");
  }
  return result;
}

/// Prints the differences and refuses those that make it another run.
void report_differences(const std::vector<Difference>& found, bool print) {
  std::string fixed;
  for (const Difference& d : found) {
    if (print)
      std::cerr << "changed: " << diag::visible(d.key) << " was " << diag::visible(d.before)
                << ", is " << diag::visible(d.after) << "\n";
    if (d.resume == registry::Resume::fixed) fixed += (fixed.empty() ? "" : ", ") + d.key;
  }
  if (!fixed.empty()) {
    throw diag::Error(diag::Exit::incompatible, "a run can't go on with another " + fixed,
                      "start a new run with the changed experiment");
  }
}

/// An override's text without the quotes that TOML would allow around it.
std::string unquoted(const std::string& text) {
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      text.back() == text.front();
  return quoted ? text.substr(1, text.size() - 2) : text;
}

/// Another model, dataset, … has other options, so the stored ones would be read as mistakes; it is
/// refused before that.
void refuse_other_components(const config::Experiment& stored,
                             std::span<const config::Override> overrides, bool print) {
  for (const config::SectionInfo& section : config::sections()) {
    if (section.catalog.empty()) continue;
    const std::string key = std::string(section.name) + ".name";
    const auto* before = stored.setting(key)->value.get_if<std::string>();
    for (const config::Override& o : overrides) {
      if (!o.text.starts_with(key + "=")) continue;
      const std::string after = unquoted(o.text.substr(key.size() + 1));
      if (before == nullptr || after == *before) continue;
      report_differences(
          {{.key = key, .before = *before, .after = after, .resume = registry::Resume::fixed}},
          print);
    }
  }
}

/// Says when the experiment file has changed since the run began; the stored one is used.
void report_changed_file(const fs::path& run, const config::Experiment& stored) {
  const nlohmann::ordered_json origin = read_json(run / "origin.json");
  if (!origin.is_object() || !origin.contains("file")) return;
  const fs::path file = origin.value("file", "");
  if (!fs::exists(file)) return;
  std::vector<config::Override> overrides;
  for (const auto& text : origin.value("overrides", nlohmann::json::array())) {
    overrides.push_back(
        {.text = text.get<std::string>(), .position = static_cast<int>(overrides.size()) + 1});
  }
  Judged today;
  judge_file(file, overrides, {}, today);
  if (!today.experiment || today.sink.errors() > 0) {
    std::cerr << "note: " << diag::visible(file.string())
              << " has changed and is no longer valid; the stored configuration is used\n";
    return;
  }
  const std::vector<Difference> found = differences(stored, *today.experiment);
  for (const Difference& d : found) {
    std::cerr << "note: " << diag::visible(d.key) << " is " << diag::visible(d.after) << " in "
              << diag::visible(file.string()) << " today; the stored " << diag::visible(d.before)
              << " is used\n";
  }
}

/// A worker that was killed couldn't say so in the run's manifest.
void close_manifest(const fs::path& run, int exit_status) {
  nlohmann::ordered_json manifest = read_json(run / "manifest.json");
  if (!manifest.is_object() || manifest.value("status", "") != "running") return;
  manifest["status"] = exit_status > 128 ? "interrupted" : "failed";
  try {
    launch::write_whole(run / "manifest.json", manifest.dump(2) + "\n");
  } catch (const diag::Error&) {
    // The run has failed already, and its own reason says more: a full disk, most likely.
  }
}

/// The log of the rank that failed; empty where this machine has none.
std::string log_of(const fs::path& run, const launch::Failure& failure) {
  if (failure.rank < 0) return {};
  const fs::path log =
      run / (failure.rank == 0 ? "runner.log" : "rank-" + std::to_string(failure.rank) + ".log");
  std::error_code ignored;
  return fs::exists(log, ignored) ? log.string() : "";
}

/// What a leader does with its plan: prints it, runs it and reports its end; returns the exit
/// status.
int execute(Launchers& launchers, const plan::Plan& plan) {
  if (!plan.quiet && plan.mode == plan::Mode::fit) {
    std::cout << plan::print(plan, report::terminal_width(STDOUT_FILENO)) << "\n";
    std::cout.flush();
  }
  const fs::path run = plan.run_folder;
  const launch::Outcome outcome = launchers.run(plan, [&](const launch::Failure& /*failure*/) {
    plan::Plan next = plan;
    if (const auto checkpoint = newest_checkpoint(run)) next.resume_from = checkpoint->string();
    return next;
  });
  if (outcome.failure) {
    print_error(outcome.failure->message, outcome.failure->help, log_of(run, *outcome.failure));
  }
  if (plan.mode != plan::Mode::fit) return outcome.exit_status;
  if (outcome.exit_status != 0) close_manifest(run, outcome.exit_status);
  const bool resumable = !store::CheckpointFolder(run / kCheckpoints).list().empty();
  if (outcome.exit_status > 128 && resumable && !plan.quiet) {
    std::cout << "go on with: runner --resume " << diag::visible(plan.run_folder) << "\n";
  }
  return outcome.exit_status;
}

int follow(Launchers& launchers, const plan::Plan& plan) {
  const launch::Outcome outcome = launchers.follow(plan);
  if (outcome.failure) print_error(outcome.failure->message, outcome.failure->help);
  return outcome.exit_status;
}

/// The plan of this command, but for what only the leader adds.
plan::Plan draft(const Judged& judged, plan::Mode mode, const Options& options) {
  plan::Plan plan = make_plan(judged, mode, options);
  plan.git_commit = host::git_commit(fs::current_path()).value_or("");
  return plan;
}

void take_gpus(const Launchers& launchers, const config::Experiment& experiment, plan::Plan& plan) {
  if (launchers.gpus().empty()) return;
  plan.devices.ids.clear();
  for (const std::int64_t id : launchers.gpus()) {
    if (id >= 0) plan.devices.ids.push_back(id);  // the others are picked by their own launchers
  }
  if (experiment.trainer.auto_select_gpus) plan.devices.note = "picked because they are free";
}

void keep_config(const fs::path& run, const Judged& judged, const Options& options) {
  launch::write_whole(run / kConfig, config::print_config(*judged.experiment));
  if (fs::exists(run / "origin.json")) return;  // a resumed run began elsewhere
  nlohmann::ordered_json origin;
  origin["file"] = fs::absolute(judged.experiment->file).string();
  origin["overrides"] = nlohmann::json::array();
  for (const config::Override& o : options.overrides) origin["overrides"].push_back(o.text);
  launch::write_whole(run / "origin.json",
                      origin.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

/// The folder that a run's relative paths were relative to.
fs::path base_of(const fs::path& run) {
  const nlohmann::ordered_json plan = read_json(run / "plan.json");
  const std::string base = plan.is_object() ? plan.value("base_folder", "") : "";
  return base.empty() ? fs::current_path() : fs::path(base);
}

/// The leader's part of a resumed run.
int resume(const fs::path& run, const Judged& judged, const Options& options, Launchers& launchers,
           plan::Plan plan) {
  const store::RunLock lock(run);
  const auto checkpoint = newest_checkpoint(run);
  if (!checkpoint) {
    throw diag::Error(diag::Exit::failed, "'" + run.string() + "' has no checkpoint to resume from",
                      "start the experiment again: runner " + (run / kConfig).string());
  }
  plan.run_folder = run.string();
  plan.resume_from = checkpoint->string();
  take_gpus(launchers, *judged.experiment, plan);
  store::probe(run, plan.checkpoint_bytes + kLogBytes);
  keep_config(run, judged, options);
  return execute(launchers, plan);
}

int resume(const fs::path& run, const Judged& judged, const Options& options) {
  plan::Plan plan = draft(judged, plan::Mode::fit, options);
  need_worker(plan);
  Launchers launchers(*judged.experiment, plan, options.by_hand);
  if (!launchers.leads()) return follow(launchers, plan);
  return resume(run, judged, options, launchers, std::move(plan));
}

/// A run folder given by a person: with a trailing slash, or one of its checkpoints.
fs::path run_folder_of(const std::string& argument) {
  fs::path run = fs::path(argument).lexically_normal();
  if (!run.has_filename()) run = run.parent_path();
  if (!fs::exists(run / kConfig)) {
    throw diag::Error(diag::Exit::invalid,
                      "'" + argument + "' is not a run folder: it has no " + std::string(kConfig),
                      "run folders are runs/<name>/<time>");
  }
  return run;
}

}  // namespace

int run_command(const Options& options) {
  if (options.files.empty()) {
    std::cerr
        << "usage: runner EXPERIMENT.toml [key=value …]   (runner --help lists all commands)\n";
    return static_cast<int>(diag::Exit::invalid);
  }
  if (options.files.size() > 1) {
    throw diag::Error(
        diag::Exit::invalid,
        "one experiment a run, not '" + options.files[0] + "' and '" + options.files[1] + "'",
        "`runner --check` takes several files");
  }
  Judged judged;
  if (!judge_here(options.files.front(), options.overrides, options, fs::current_path(),
                  Warnings::shown, judged))
    return static_cast<int>(judged.sink.exit());
  const config::Experiment& experiment = *judged.experiment;
  plan::Plan plan = draft(judged, plan::Mode::fit, options);
  need_worker(plan);
  Launchers launchers(experiment, plan, options.by_hand);
  if (!launchers.leads()) return follow(launchers, plan);

  if (experiment.checkpoint.resume == "auto") {
    if (const auto run = unfinished_run(experiment.general)) {
      Judged stored;
      judge_file(*run / kConfig, {}, {}, stored);
      if (stored.experiment)
        report_differences(differences(*stored.experiment, experiment), /*print=*/true);
      return resume(*run, judged, options, launchers, std::move(plan));
    }
  }
  const store::RunFolder folder = store::RunFolder::create(
      experiment.general.root, experiment.general.name, std::chrono::system_clock::now());
  const store::RunLock lock(folder.path());
  plan.run_folder = folder.path().string();
  take_gpus(launchers, experiment, plan);
  keep_config(folder.path(), judged, options);
  return execute(launchers, plan);
}

int resume_command(const Options& options) {
  const fs::path run = run_folder_of(options.argument);
  Judged stored;
  if (!judge_here(run / kConfig, {}, options, base_of(run), Warnings::hidden, stored))
    return static_cast<int>(stored.sink.exit());
  const bool changed = !options.files.empty() || !options.overrides.empty();
  if (!changed) {
    if (speaks(options)) report_changed_file(run, *stored.experiment);
    return resume(run, stored, options);
  }
  refuse_other_components(*stored.experiment, options.overrides, speaks(options));
  Judged today;
  const fs::path file = options.files.empty() ? run / kConfig : fs::path(options.files.front());
  if (!judge_here(file, options.overrides, options, base_of(run), Warnings::hidden, today))
    return static_cast<int>(today.sink.exit());
  report_differences(differences(*stored.experiment, *today.experiment), speaks(options));
  return resume(run, today, options);
}

int test_command(const Options& options) {
  if (!options.files.empty()) {
    throw diag::Error(diag::Exit::invalid,
                      "--test takes a run folder and overrides, not '" +
                          diag::visible(options.files.front()) + "'",
                      "the run's own configuration is used");
  }
  const fs::path run = run_folder_of(options.argument);
  Judged judged;
  if (!judge_here(run / kConfig, options.overrides, options, base_of(run), Warnings::hidden,
                  judged))
    return static_cast<int>(judged.sink.exit());
  plan::Plan plan = draft(judged, plan::Mode::test, options);
  need_worker(plan);
  Launchers launchers(*judged.experiment, plan, options.by_hand);
  if (!launchers.leads()) return follow(launchers, plan);
  const store::CheckpointFolder folder(run / kCheckpoints);
  std::optional<fs::path> checkpoint;
  if (const auto best = folder.linked(store::Link::best)) {
    (void)folder.verify(*best);
    checkpoint = folder.path(*best);
  } else {
    checkpoint = newest_checkpoint(run);
  }
  if (!checkpoint)
    throw diag::Error(diag::Exit::failed, "'" + run.string() + "' has no checkpoint to test");
  plan.run_folder = run.string();
  plan.resume_from = checkpoint->string();
  take_gpus(launchers, *judged.experiment, plan);
  return execute(launchers, plan);
}

}  // namespace runner::cli
