#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runner/diag/diagnostic.h"

namespace runner::diag {

/// For people: place, severity, code and message; the source line with a caret; notes; help. Lines
/// are cut to 200 columns around the caret, control characters made visible.
///
///   digits.toml:14:1: error[C001]: unknown key 'lrr' in [optimizer]
///     14 | lrr = 0.1
///        | ^^^
///        = help: did you mean 'lr'?
[[nodiscard]] std::string render_text(const Diagnostic& diagnostic, bool color);
[[nodiscard]] std::string render_text(std::span<const Diagnostic> diagnostics, bool color);

/// GitHub workflow commands: one annotation a diagnostic, on its file, line and column.
[[nodiscard]] std::string render_github(std::span<const Diagnostic> diagnostics);

/// "file.toml:3:7", "argument 2"; empty for no place.
[[nodiscard]] std::string place(const Span& span);

/// Text with control characters written as \x1b, \n, …; for anything that a user typed.
[[nodiscard]] std::string visible(std::string_view text);

}  // namespace runner::diag
