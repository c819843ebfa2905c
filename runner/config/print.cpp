#include <algorithm>

#include "registry/suggest.h"
#include "runner/config/load.h"
#include "runner/diag/error.h"
#include "runner/diag/render.h"

namespace runner::config {

namespace {

std::string source_of(const Origin& origin) {
  switch (origin.kind) {
    case Origin::Kind::default_value:
      return "default";
    case Origin::Kind::inferred:
      return "inferred";
    case Origin::Kind::file: {
      const diag::Span& at = origin.value;
      return at.file == nullptr ? "file"
                                : diag::visible(at.file->name) + ":" + std::to_string(at.line);
    }
    case Origin::Kind::argument:
      return diag::place(origin.value);
  }
  return {};
}

}  // namespace

std::string print_config(const Experiment& experiment) {
  struct Line {
    std::string text;
    std::string comment;
  };
  std::vector<Line> lines;
  std::string section;
  for (const Setting& setting : experiment.settings) {
    if (!setting.value.has_value()) continue;
    const std::size_t dot = setting.key.find('.');
    const std::string own_section = dot == std::string::npos ? "" : setting.key.substr(0, dot);
    if (own_section != section) {
      section = own_section;
      lines.push_back({"", ""});
      lines.push_back({"[" + section + "]", ""});
    }
    const std::string key = dot == std::string::npos ? setting.key : setting.key.substr(dot + 1);
    std::string comment = source_of(setting.origin);
    if (!setting.origin.overridden.empty()) {
      comment += ", over";
      for (const diag::Span& lost : setting.origin.overridden) {
        comment += " " + diag::visible(lost.file == nullptr ? "" : lost.file->name);
        if (lost.file != nullptr && !lost.file->is_argument)
          comment += ":" + std::to_string(lost.line);
      }
    }
    lines.push_back({key + " = " + registry::to_toml(setting.value), comment});
  }
  constexpr std::size_t kWidest = 48;
  std::size_t width = 0;
  for (const Line& line : lines) {
    if (line.text.size() <= kWidest) width = std::max(width, line.text.size());
  }
  std::string out;
  for (const Line& line : lines) {
    out += line.text;
    if (!line.comment.empty()) {
      out += std::string(line.text.size() < width ? width - line.text.size() : 0, ' ') + "  # " +
             line.comment;
    }
    out += "\n";
  }
  return out;
}

std::string explain_key(const Experiment& experiment, std::string_view key) {
  const Setting* setting = experiment.setting(key);
  if (setting == nullptr) {
    std::vector<std::string_view> keys;
    for (const Setting& s : experiment.settings) keys.emplace_back(s.key);
    const std::string_view near = registry::nearest(key, keys);
    throw diag::Error(diag::Exit::invalid, "no key '" + diag::visible(key) + "' in this experiment",
                      near.empty() ? "`runner --print-config FILE` lists the keys"
                                   : "did you mean '" + std::string(near) + "'?");
  }
  std::string out = setting->key + " = " +
                    (setting->value.has_value() ? registry::to_toml(setting->value) : "(absent)") +
                    "\n";
  out += "  from " + source_of(setting->origin) + "\n";
  const auto& overridden = setting->origin.overridden;
  for (auto at = overridden.rbegin(); at != overridden.rend(); ++at) {
    out += "  over " + diag::place(*at);
    if (at->file != nullptr && !at->file->is_argument)
      out += "  " + std::string(at->file->line(at->line));
    out += "\n";
  }
  if (setting->option != nullptr) out += "  " + std::string(setting->option->doc) + "\n";
  return out;
}

}  // namespace runner::config
