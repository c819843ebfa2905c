#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "registry/value.h"
#include "runner/config/experiment.h"
#include "runner/diag/diagnostic.h"

namespace runner::config {

/// TOML values with the place of each: what one file says, or several merged.
struct Document {
  registry::Value::Table values;
  std::map<std::string, Origin> origins;  ///< by path: "model.layers[2].kernel"
};

/// "model" + "hidden" -> "model.hidden"; the key is quoted where TOML would.
[[nodiscard]] std::string child_path(const std::string& parent, std::string_view key);
/// "model.layers" + 2 -> "model.layers[2]".
[[nodiscard]] std::string element_path(const std::string& parent, std::size_t index);

/// Parses one file's text. Reports a syntax error and returns nothing; what would crash or stall
/// the parser (a dotted key of thousands of parts) is refused before it is tried.
[[nodiscard]] std::optional<Document> parse_document(const diag::SourceFile& source,
                                                     diag::Sink& sink);

/// Reads the right-hand side of an override: the values of `[ text ]`. Nothing if that isn't TOML;
/// `why` then says what the parser found.
[[nodiscard]] std::optional<registry::Value::Array> parse_values(std::string_view text,
                                                                 std::string& why);

/// Lays `over` on top of `base`: tables merge, everything else (lists too) is replaced, and the
/// place that lost is kept in the winner's origin. A table over a value, or the reverse, is
/// reported with both places.
void merge(Document& base, const Document& over, diag::Sink& sink);

}  // namespace runner::config
