#include "runner/diag/diagnostic.h"

#include <algorithm>
#include <cctype>
#include <tuple>

namespace runner::diag {

namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

}  // namespace

const std::vector<CodeInfo>& all_codes() {
  static const std::vector<CodeInfo> codes = {
#define RUNNER_DIAGNOSTIC(id, name, severity, exit, summary, explanation) \
  {Code::name, id, #name, Severity::severity, Exit::exit, summary, explanation},
#include "runner/diag/diagnostics.def"
#undef RUNNER_DIAGNOSTIC
  };
  return codes;
}

const CodeInfo& info(Code code) { return all_codes()[static_cast<std::size_t>(code)]; }

const CodeInfo* find_code(std::string_view id_or_name) {
  for (const CodeInfo& code : all_codes()) {
    if (equal_ignoring_case(code.id, id_or_name) || equal_ignoring_case(code.name, id_or_name)) {
      return &code;
    }
  }
  return nullptr;
}

std::string_view SourceFile::line(std::uint32_t number) const {
  std::string_view rest = text;
  for (std::uint32_t i = 1; i < number; ++i) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return {};
    rest.remove_prefix(end + 1);
  }
  rest = rest.substr(0, rest.find('\n'));
  if (rest.ends_with('\r')) rest.remove_suffix(1);
  return rest;
}

const SourceFile* Sources::add(std::string name, std::string text, bool is_argument) {
  files_.push_back({std::move(name), std::move(text), is_argument});
  return &files_.back();
}

void Sink::place_rest(const Span& at) {
  for (Diagnostic& d : diagnostics_) {
    if (d.at.file == nullptr) d.at = at;
  }
}

std::vector<Diagnostic> Sink::sorted() const {
  // Files in the order in which they first appear, arguments after them, no place last.
  std::vector<const SourceFile*> order;
  for (const Diagnostic& d : diagnostics_) {
    if (d.at.file != nullptr && std::find(order.begin(), order.end(), d.at.file) == order.end()) {
      order.push_back(d.at.file);
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const SourceFile* a, const SourceFile* b) {
    return std::make_tuple(a->is_argument, a->is_argument ? a->name : "") <
           std::make_tuple(b->is_argument, b->is_argument ? b->name : "");
  });
  const auto rank = [&order](const Span& at) {
    const auto position = std::find(order.begin(), order.end(), at.file) - order.begin();
    return std::make_tuple(position, at.line, at.column);
  };
  std::vector<Diagnostic> result = diagnostics_;
  std::stable_sort(result.begin(), result.end(), [&rank](const Diagnostic& a, const Diagnostic& b) {
    return rank(a.at) < rank(b.at);
  });
  return result;
}

std::size_t Sink::errors() const {
  return static_cast<std::size_t>(
      std::count_if(diagnostics_.begin(), diagnostics_.end(),
                    [](const Diagnostic& d) { return info(d.code).severity == Severity::error; }));
}

std::size_t Sink::warnings() const {
  return static_cast<std::size_t>(std::count_if(
      diagnostics_.begin(), diagnostics_.end(),
      [](const Diagnostic& d) { return info(d.code).severity == Severity::warning; }));
}

Exit Sink::exit() const {
  Exit gravest = Exit::ok;
  const auto gravity = [](Exit e) {
    switch (e) {
      case Exit::ok:
        return 0;
      case Exit::machine:
        return 1;
      case Exit::failed:
        return 2;
      case Exit::incompatible:
        return 3;
      case Exit::invalid:
        return 4;
    }
    return 0;
  };
  for (const Diagnostic& d : diagnostics_) {
    if (info(d.code).severity != Severity::error) continue;
    if (gravity(info(d.code).exit) > gravity(gravest)) gravest = info(d.code).exit;
  }
  return gravest;
}

}  // namespace runner::diag
