// diag: diagnostics as data.
//
// Everything that can be wrong with an experiment is a Diagnostic: a code from the one table
// (diagnostics.def), a severity, a message, the place, notes and a help line. Finders report into a
// Sink and go on, so that one call shows every mistake; renderers (render.h) turn the collected
// list into text, JSON, SARIF or GitHub annotations.
//
//   sink.report({.code = Code::unknown_key, .message = "unknown key 'lrr' in [optimizer]",
//                .at = span, .help = "did you mean 'lr'?"});
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runner/diag/error.h"

namespace runner::diag {

enum class Severity { note, warning, error };

/// One row of diagnostics.def.
enum class Code {
#define RUNNER_DIAGNOSTIC(id, name, severity, exit, summary, explanation) name,
#include "runner/diag/diagnostics.def"
#undef RUNNER_DIAGNOSTIC
};

struct CodeInfo {
  Code code;
  std::string_view id;    ///< "C001": stable, printed, searched for
  std::string_view name;  ///< "unknown_key"
  Severity severity;
  Exit exit;
  std::string_view summary;      ///< one line
  std::string_view explanation;  ///< what `--explain` prints below it
};

/// All codes in the order of the table.
[[nodiscard]] const std::vector<CodeInfo>& all_codes();
[[nodiscard]] const CodeInfo& info(Code code);
/// By id ("C001") or name, any case; nullptr if there is none.
[[nodiscard]] const CodeInfo* find_code(std::string_view id_or_name);

/// A text that spans point into: a file, or a command-line argument (name "argument 2").
struct SourceFile {
  std::string name;
  std::string text;
  bool is_argument = false;

  /// Line `number` (from 1) without its newline; empty past the end.
  [[nodiscard]] std::string_view line(std::uint32_t number) const;
};

/// A stretch of a source; line and column count from 1, columns and length in code points.
/// `file == nullptr` means no place (a default, say); line 0 means the file as a whole.
struct Span {
  const SourceFile* file = nullptr;
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  std::uint32_t length = 0;
};

struct Note {
  std::string message;
  Span at;
};

struct Diagnostic {
  Code code;
  std::string message;
  Span at;
  std::vector<Note> notes;
  std::string help;
  std::string key;  ///< dotted key concerned, "optimizer.lr"; empty when none
};

/// Owns source texts with stable addresses, so that spans stay valid as long as it lives.
class Sources {
 public:
  const SourceFile* add(std::string name, std::string text, bool is_argument = false);

 private:
  std::deque<SourceFile> files_;
};

/// Collects diagnostics; never prints.
class Sink {
 public:
  void report(Diagnostic diagnostic) { diagnostics_.push_back(std::move(diagnostic)); }

  /// Gives the diagnostics that have no place this one: the file as a whole, say.
  void place_rest(const Span& at);

  /// In the order of the sources and their lines; arguments after files, placeless ones last.
  [[nodiscard]] std::vector<Diagnostic> sorted() const;
  [[nodiscard]] const std::vector<Diagnostic>& all() const { return diagnostics_; }
  [[nodiscard]] std::size_t errors() const;
  [[nodiscard]] std::size_t warnings() const;
  /// ok without errors, else the status of the gravest kind: invalid before incompatible before
  /// machine, because an invalid file can't be judged any further.
  [[nodiscard]] Exit exit() const;

 private:
  std::vector<Diagnostic> diagnostics_;
};

}  // namespace runner::diag
