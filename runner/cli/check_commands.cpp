// The commands that judge files: --check, --plan, --print-config, --summary.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runner/cli/commands.h"
#include "runner/cli/judged.h"
#include "runner/cli/options.h"
#include "runner/diag/render.h"
#include "runner/graph/summary.h"
#include "runner/plan/make.h"
#include "runner/report/terminal.h"

namespace runner::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kCheckFormat = 1;

void need_files(const Options& options) {
  if (!options.files.empty()) return;
  throw diag::Error(diag::Exit::invalid, "--" + options.command + " needs an experiment file",
                    "runner --" + options.command + " configs/digits.toml");
}

const std::string& one_file(const Options& options) {
  need_files(options);
  if (options.files.size() > 1) {
    throw diag::Error(diag::Exit::invalid,
                      "--" + options.command + " takes one experiment file, not '" +
                          options.files[0] + "' and '" + options.files[1] + "'",
                      "--check takes several");
  }
  return options.files.front();
}

std::string plural(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

Json span_json(const diag::Span& at) {
  if (at.file == nullptr) return nullptr;
  return {{"file", at.file->name}, {"line", at.line}, {"column", at.column}, {"length", at.length}};
}

Json diagnostic_json(const diag::Diagnostic& d) {
  const diag::CodeInfo& code = diag::info(d.code);
  Json notes = Json::array();
  for (const diag::Note& note : d.notes)
    notes.push_back({{"message", note.message}, {"at", span_json(note.at)}});
  return {{"code", code.id},
          {"name", code.name},
          {"severity", code.severity == diag::Severity::error     ? "error"
                       : code.severity == diag::Severity::warning ? "warning"
                                                                  : "note"},
          {"message", d.message},
          {"key", d.key},
          {"at", span_json(d.at)},
          {"notes", notes},
          {"help", d.help}};
}

/// Totals over the files of one call.
struct Total {
  std::size_t errors = 0;
  std::size_t warnings = 0;
  std::size_t bad_files = 0;
  int exit = 0;

  void add(const diag::Sink& sink) {
    errors += sink.errors();
    warnings += sink.warnings();
    if (sink.errors() == 0) return;
    ++bad_files;
    // An invalid file weighs more than an incompatible one, that more than a lacking machine.
    const int own = static_cast<int>(sink.exit());
    exit = exit == 0 ? own : std::min(exit, own);
  }
};

void print_text(const Judged& judged, const std::string& file, bool alone) {
  const std::vector<diag::Diagnostic> diagnostics = judged.sink.sorted();
  std::cout << diag::render_text(diagnostics, color(STDOUT_FILENO));
  if (judged.sink.errors() > 0) {
    std::cout << (diagnostics.empty() ? "" : "\n");
    return;
  }
  std::cout << diag::visible(file) << ": fine\n";
  if (!alone) return;
  for (const check::Inference& i : judged.verdict->inferred) {
    std::cout << "  note: " << diag::visible(i.key)
              << (i.value.empty() || i.key.empty() ? "" : " = ") << diag::visible(i.value)
              << (i.key.empty() ? "" : ": ") << diag::visible(i.reason)
              << (i.code.empty() ? "" : " [" + i.code + "]") << "\n";
  }
}

Json file_json(const Judged& judged, const std::string& file, const Options& options) {
  Json diagnostics = Json::array();
  for (const diag::Diagnostic& d : judged.sink.sorted()) diagnostics.push_back(diagnostic_json(d));
  Json plan = nullptr;
  if (judged.verdict && judged.sink.errors() == 0) {
    plan = Json::parse(plan::to_json(make_plan(judged, plan::Mode::fit, options)));
    plan.erase("command_line");
  }
  return {{"file", file},
          {"exit", static_cast<int>(judged.sink.exit())},
          {"errors", judged.sink.errors()},
          {"warnings", judged.sink.warnings()},
          {"diagnostics", diagnostics},
          {"plan", plan}};
}

/// Reports the diagnostics of a file that a command can't go on with; returns the exit status.
int report_errors(const Judged& judged) {
  std::cerr << diag::render_text(judged.sink.sorted(), color(STDERR_FILENO));
  if (judged.sink.errors() > 0) std::cerr << "\n" << plural(judged.sink.errors(), "error") << "\n";
  return static_cast<int>(judged.sink.exit());
}

}  // namespace

int check_command(const Options& options) {
  need_files(options);
  const Surroundings around = surroundings(options);
  Total total;
  Json files = Json::array();
  for (const std::string& file : options.files) {
    Judged judged;
    judge_file(file, options.overrides, around, judged);
    total.add(judged.sink);
    if (options.format == "json") {
      files.push_back(file_json(judged, file, options));
    } else if (options.format == "github") {
      std::cout << diag::render_github(judged.sink.sorted());
    } else {
      print_text(judged, file, options.files.size() == 1);
    }
  }
  if (options.format == "json") {
    const Json report = {{"format", kCheckFormat},
                         {"exit", total.exit},
                         {"errors", total.errors},
                         {"warnings", total.warnings},
                         {"files", files}};
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else if (options.format == "text" &&
             (options.files.size() > 1 || total.errors + total.warnings > 0)) {
    std::cout << plural(options.files.size(), "file") << ", " << plural(total.bad_files, "bad one")
              << ": " << plural(total.errors, "error") << ", " << plural(total.warnings, "warning")
              << "\n";
  }
  return total.exit;
}

int plan_command(const Options& options) {
  Judged judged;
  judge_file(one_file(options), options.overrides, surroundings(options), judged);
  if (judged.sink.errors() > 0) return report_errors(judged);
  report_errors(judged);
  const plan::Plan plan = make_plan(judged, plan::Mode::fit, options);
  std::cout << (options.format == "json"
                    ? plan::to_json(plan)
                    : plan::print(plan, report::terminal_width(STDOUT_FILENO)));
  return 0;
}

int print_config_command(const Options& options) {
  Judged judged;
  judge_file(one_file(options), options.overrides, surroundings(options), judged);
  if (judged.sink.errors() > 0) return report_errors(judged);
  std::cout << config::print_config(*judged.experiment);
  return 0;
}

int summary_command(const Options& options) {
  Judged judged;
  judge_file(one_file(options), options.overrides, surroundings(options), judged);
  if (judged.sink.errors() > 0) return report_errors(judged);
  if (!judged.verdict->graph) {
    throw diag::Error(diag::Exit::machine, "the model's shapes depend on data that isn't here",
                      "put the dataset's files in place, see `runner --check --here`");
  }
  std::cout << graph::summary(*judged.verdict->graph, judged.experiment->data.batch_size);
  return 0;
}

}  // namespace runner::cli
