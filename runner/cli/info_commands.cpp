// The commands that tell what there is: --list, --describe, --matrix, --explain, --help, --version.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>

#include "registry/suggest.h"
#include "runner/check/matrix.h"
#include "runner/cli/commands.h"
#include "runner/cli/judged.h"
#include "runner/cli/options.h"
#include "runner/cli/version.h"
#include "runner/diag/render.h"
#include "runner/report/summary.h"
#include "runner/report/terminal.h"

namespace runner::cli {

namespace {

constexpr std::array<std::string_view, 6> kCatalogs = {"models",     "datasets", "optimizers",
                                                       "schedulers", "losses",   "layers"};

std::string singular(std::string_view catalog) {
  return std::string(catalog == "losses" ? "loss" : catalog.substr(0, catalog.size() - 1));
}

int width() { return report::terminal_width(STDOUT_FILENO); }

void list_catalog(std::string_view catalog) {
  report::Table table({{std::string(catalog)}, {""}});
  for (const registry::Entry* entry : config::catalog_entries(catalog)) {
    table.add_row({std::string(entry->name), std::string(entry->doc)});
  }
  std::cout << table.render(width()) << "\n";
}

std::string limits(const registry::OptionInfo& option) {
  if (option.choices.empty()) return option.range.text();
  std::string out;
  for (const std::string_view choice : option.choices)
    out += (out.empty() ? "" : " | ") + std::string(choice);
  return out;
}

void describe_table(const std::string& title, std::string_view doc,
                    const std::vector<const registry::OptionTable*>& tables) {
  std::cout << title << ": " << doc << "\n\n";
  report::Table text({{"key"}, {"type"}, {"default"}, {"allowed"}, {"what it does"}});
  for (const registry::OptionTable* table : tables) {
    for (const registry::OptionInfo& option : table->options()) {
      text.add_row(
          {std::string(option.name), option.type,
           option.default_value.has_value() ? registry::to_toml(option.default_value) : "-",
           limits(option), std::string(option.doc)});
    }
  }
  std::cout << text.render(width());
}

struct Described {
  std::string_view catalog;
  const registry::Entry* entry;
};

std::vector<Described> find_entries(std::string_view kind, std::string_view name) {
  std::vector<Described> found;
  for (const std::string_view catalog : kCatalogs) {
    if (!kind.empty() && kind != catalog && kind != singular(catalog)) continue;
    for (const registry::Entry* entry : config::catalog_entries(catalog)) {
      if (entry->name == name) found.push_back({catalog, entry});
    }
  }
  return found;
}

const config::SectionInfo* find_section(std::string_view name) {
  for (const config::SectionInfo& section : config::sections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

[[noreturn]] void nothing_called(const std::string& what) {
  std::vector<std::string_view> names;
  for (const config::SectionInfo& section : config::sections()) {
    if (!section.name.empty()) names.push_back(section.name);
  }
  for (const std::string_view catalog : kCatalogs) {
    for (const registry::Entry* entry : config::catalog_entries(catalog))
      names.push_back(entry->name);
  }
  const std::string_view near = registry::nearest(what.substr(what.find('/') + 1), names);
  throw diag::Error(diag::Exit::invalid, "nothing is called '" + diag::visible(what) + "'",
                    near.empty() ? "`runner --list` shows what there is"
                                 : "did you mean '" + std::string(near) + "'?");
}

}  // namespace

int list_command(const Options& options) {
  if (options.files.empty()) {
    for (const std::string_view catalog : kCatalogs) list_catalog(catalog);
    std::cout << "`runner --describe KIND/NAME` shows the options of one, `runner --describe "
                 "SECTION` those of a section.\n";
    return 0;
  }
  for (const std::string& name : options.files) {
    if (std::find(kCatalogs.begin(), kCatalogs.end(), name) == kCatalogs.end()) {
      const std::string_view near = registry::nearest(name, kCatalogs);
      throw diag::Error(diag::Exit::invalid, "no list of '" + diag::visible(name) + "'",
                        (near.empty() ? "" : "did you mean '" + std::string(near) + "'? ") +
                            "the lists are " + registry::join_or(kCatalogs));
    }
    list_catalog(name);
  }
  return 0;
}

int describe_command(const Options& options) {
  const std::string& what = options.argument;
  const std::size_t slash = what.find('/');
  const std::string kind = slash == std::string::npos ? "" : what.substr(0, slash);
  const std::string name = slash == std::string::npos ? what : what.substr(slash + 1);
  if (const config::SectionInfo* section = find_section(what);
      section != nullptr && section->table != nullptr) {
    describe_table("[" + what + "]", section->doc, {section->table});
    return 0;
  }
  for (const std::string_view catalog : kCatalogs) {
    if (what != catalog && what != singular(catalog)) continue;
    list_catalog(catalog);
    return 0;
  }
  const std::vector<Described> found = find_entries(kind, name);
  if (found.empty()) nothing_called(what);
  for (const Described& d : found) {
    describe_table(singular(d.catalog) + " " + name, d.entry->doc, {d.entry->options});
  }
  return 0;
}

int matrix_command(const Options& options) {
  std::cout << (options.format == "markdown" ? check::matrix_markdown() : check::matrix_text());
  return 0;
}

int explain_command(const Options& options) {
  if (const diag::CodeInfo* code = diag::find_code(options.argument)) {
    std::cout << check::explain(code->code);
    return 0;
  }
  if (options.files.empty()) {
    throw diag::Error(diag::Exit::invalid, "no code '" + diag::visible(options.argument) + "'",
                      "codes are printed in brackets, C001; to explain a key's value, name the "
                      "file too: runner --explain optimizer.lr FILE.toml");
  }
  Judged judged;
  judge_file(options.files.front(), options.overrides, surroundings(options), judged);
  if (judged.sink.errors() > 0) {
    std::cerr << diag::render_text(judged.sink.sorted(), color(STDERR_FILENO));
    return static_cast<int>(judged.sink.exit());
  }
  std::cout << config::explain_key(*judged.experiment, options.argument);
  return 0;
}

int help_command(const Options&) {
  std::cout << help_text();
  return 0;
}

int version_command(const Options&) {
  std::cout << "runner " << kVersion << "\n";
  return 0;
}

}  // namespace runner::cli
