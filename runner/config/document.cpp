#include "runner/config/document.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

namespace runner::config {

namespace {

using registry::Value;

constexpr std::size_t kMostKeyParts = 64;

/// The most dots between two delimiters of a line, outside strings and comments: the parts of its
/// longest dotted key (a list of floats has one dot an element). toml++ recurses once for each
/// part.
std::size_t longest_key(std::string_view line) {
  std::size_t longest = 0;
  std::size_t dots = 0;
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\' && quote == '"')
        ++i;
      else if (c == quote)
        quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      break;
    } else if (std::string_view(",={}[]").find(c) != std::string_view::npos) {
      dots = 0;
    } else if (c == '.') {
      longest = std::max(longest, ++dots);
    }
  }
  return longest;
}

/// Reports the first line whose key has too many parts.
bool has_endless_key(const diag::SourceFile& source, diag::Sink& sink) {
  std::string_view rest = source.text;
  for (std::uint32_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (line.size() > kMostKeyParts && longest_key(line) > kMostKeyParts) {
      sink.report({.code = diag::Code::syntax,
                   .message = "a key of more than " + std::to_string(kMostKeyParts) + " parts",
                   .at = {&source, number, 1, 1},
                   .notes = {},
                   .help = "no section is nested that deeply",
                   .key = {}});
      return true;
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return false;
}

diag::Span span_of(const diag::SourceFile& source, const toml::source_region& region) {
  diag::Span span{&source, static_cast<std::uint32_t>(region.begin.line),
                  static_cast<std::uint32_t>(region.begin.column), 1};
  if (region.end.line == region.begin.line && region.end.column > region.begin.column) {
    span.length = static_cast<std::uint32_t>(region.end.column - region.begin.column);
  } else if (region.end.line > region.begin.line) {
    const std::string_view line = source.line(span.line);
    const auto columns =
        static_cast<std::uint32_t>(std::count_if(line.begin(), line.end(), [](char c) {
          return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
        }));
    if (columns >= span.column) span.length = columns - span.column + 1;
  }
  return span;
}

/// toml++ tree -> Value, keeping the order in which keys were written (toml++ sorts them by name).
class Converter {
 public:
  Converter(const diag::SourceFile& source, Document& document, diag::Sink& sink)
      : source_(source), document_(document), sink_(sink) {}

  Value::Table table(const toml::table& table, const std::string& path) {
    struct Item {
      const toml::key* key;
      const toml::node* node;
    };
    std::vector<Item> items;
    for (auto&& [key, node] : table) items.push_back({&key, &node});
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      const auto x = a.key->source().begin;
      const auto y = b.key->source().begin;
      return x.line != y.line ? x.line < y.line : x.column < y.column;
    });
    Value::Table result;
    for (const Item& item : items) {
      const std::string child = child_path(path, item.key->str());
      Origin origin{.kind = Origin::Kind::file,
                    .value = span_of(source_, item.node->source()),
                    .key = span_of(source_, item.key->source()),
                    .overridden = {}};
      if (item.node->is_table()) origin.value = origin.key;
      document_.origins[child] = origin;
      result.emplace_back(std::string(item.key->str()), value(*item.node, child));
    }
    return result;
  }

  Value value(const toml::node& node, const std::string& path) {
    if (const auto* v = node.as_boolean()) return v->get();
    if (const auto* v = node.as_integer()) return v->get();
    if (const auto* v = node.as_floating_point()) return v->get();
    if (const auto* v = node.as_string()) return v->get();
    if (const auto* v = node.as_table()) return table(*v, path);
    if (const auto* v = node.as_array()) return array(*v, path);
    sink_.report({.code = diag::Code::bad_value,
                  .message = "'" + path + "' is a date or a time, which no key takes",
                  .at = span_of(source_, node.source()),
                  .notes = {},
                  .help = "write it as a string in quotes",
                  .key = path});
    return {};
  }

 private:
  Value::Array array(const toml::array& array, const std::string& path) {
    Value::Array result;
    for (std::size_t i = 0; i < array.size(); ++i) {
      const std::string child = element_path(path, i);
      const diag::Span at = span_of(source_, array.get(i)->source());
      document_.origins[child] = {
          .kind = Origin::Kind::file, .value = at, .key = at, .overridden = {}};
      result.push_back(value(*array.get(i), child));
    }
    return result;
  }

  const diag::SourceFile& source_;
  Document& document_;
  diag::Sink& sink_;
};

/// toml++ starts every description with what it was doing; the place already says where.
std::string syntax_message(std::string_view description) {
  std::string text(description);
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.starts_with("Error while ")) text = text.substr(std::string_view("Error while ").size());
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return "not valid TOML: " + text;
}

/// What a line defines: a table by its header, or a key by what stands before its '='.
struct Definition {
  bool is_header = false;
  std::string_view name;
  std::uint32_t column = 0;
};

std::optional<Definition> definition_in(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos || line[first] == '#') return {};
  const bool is_header = line[first] == '[';
  const std::size_t begin = is_header ? line.find_first_not_of("[ \t", first) : first;
  const std::size_t end = line.find(is_header ? ']' : '=', first);
  if (begin == std::string_view::npos || end == std::string_view::npos || end <= begin) return {};
  std::string_view name = line.substr(begin, end - begin);
  name = name.substr(0, name.find_last_not_of(" \t") + 1);
  return Definition{is_header, name, static_cast<std::uint32_t>(begin + 1)};
}

/// For a key or a table that is defined twice: the place of the second definition in `again`, and
/// that of the first one as the result. toml++ reports the end of the second one only.
std::optional<diag::Span> first_definition(const diag::SourceFile& source, diag::Span& again,
                                           std::string_view description) {
  if (description.find("redefine existing") == std::string_view::npos) return {};
  const auto second = definition_in(source.line(again.line));
  if (!second) return {};
  const auto span = [&source](std::uint32_t line, const Definition& d) {
    return diag::Span{&source, line, d.column, static_cast<std::uint32_t>(d.name.size())};
  };
  again = span(again.line, *second);
  for (std::uint32_t number = again.line - 1; number > 0; --number) {
    const auto definition = definition_in(source.line(number));
    if (!definition) continue;
    if (definition->is_header == second->is_header && definition->name == second->name) {
      return span(number, *definition);
    }
    if (definition->is_header && !second->is_header) return {};
  }
  return {};
}

void forget_children(Document& document, const std::string& path) {
  const auto belongs = [&path](const std::string& candidate) {
    return candidate.size() > path.size() && candidate.starts_with(path) &&
           (candidate[path.size()] == '.' || candidate[path.size()] == '[');
  };
  std::erase_if(document.origins, [&](const auto& item) { return belongs(item.first); });
}

class Merger {
 public:
  Merger(Document& base, const Document& over, diag::Sink& sink)
      : base_(base), over_(over), sink_(sink) {}

  void tables(Value::Table& base, const Value::Table& over, const std::string& path) {
    for (const auto& [key, value] : over) {
      const std::string child = child_path(path, key);
      auto at = std::find_if(base.begin(), base.end(),
                             [&key = key](const auto& item) { return item.first == key; });
      if (at == base.end()) {
        base.emplace_back(key, value);
        adopt(child, {});
        continue;
      }
      auto* base_table = std::get_if<Value::Table>(&at->second.data);
      const auto* over_table = value.get_if<Value::Table>();
      if (base_table != nullptr && over_table != nullptr) {
        base_.origins[child] = over_.origins.at(child);
        tables(*base_table, *over_table, child);
        continue;
      }
      if ((base_table != nullptr) != (over_table != nullptr)) conflict(child, at->second, value);
      const Origin old = base_.origins[child];
      std::vector<diag::Span> overridden = old.overridden;
      overridden.push_back(old.value);
      forget_children(base_, child);
      at->second = value;
      adopt(child, std::move(overridden));
    }
  }

 private:
  /// Takes over's origins for a path and everything below it.
  void adopt(const std::string& path, std::vector<diag::Span> overridden) {
    for (const auto& [candidate, origin] : over_.origins) {
      const bool below = candidate.size() > path.size() && candidate.starts_with(path) &&
                         (candidate[path.size()] == '.' || candidate[path.size()] == '[');
      if (candidate == path || below) base_.origins[candidate] = origin;
    }
    base_.origins[path].overridden = std::move(overridden);
  }

  void conflict(const std::string& path, const Value& base, const Value& over) {
    const Origin& origin = over_.origins.at(path);
    if (origin.kind == Origin::Kind::argument) {
      sink_.report({.code = diag::Code::not_a_table,
                    .message = "'" + path + "' is " + std::string(registry::type_name(base)) +
                               ", and can't be set as a whole",
                    .at = origin.key,
                    .notes = {},
                    .help = "write " + path + ".KEY=value",
                    .key = path});
      return;
    }
    sink_.report({.code = diag::Code::not_a_table,
                  .message = "'" + path + "' is " + std::string(registry::type_name(over)) +
                             " here and " + std::string(registry::type_name(base)) +
                             " in the file that this one extends",
                  .at = origin.key,
                  .notes = {{"the other one is here", base_.origins[path].key}},
                  .help = "a table merges with a table; a value or a list is replaced by one",
                  .key = path});
  }

  Document& base_;
  const Document& over_;
  diag::Sink& sink_;
};

}  // namespace

std::string child_path(const std::string& parent, std::string_view key) {
  const std::string text = registry::key_text(key);
  return parent.empty() ? text : parent + "." + text;
}

std::string element_path(const std::string& parent, std::size_t index) {
  return parent + "[" + std::to_string(index) + "]";
}

std::optional<Document> parse_document(const diag::SourceFile& source, diag::Sink& sink) {
  if (has_endless_key(source, sink)) return {};
  try {
    const toml::table table = toml::parse(std::string_view(source.text));
    Document document;
    Converter converter(source, document, sink);
    document.values = converter.table(table, "");
    return document;
  } catch (const toml::parse_error& error) {
    const auto begin = error.source().begin;
    diag::Span at{&source, static_cast<std::uint32_t>(begin.line),
                  static_cast<std::uint32_t>(begin.column), 1};
    const auto first = first_definition(source, at, error.description());
    diag::Diagnostic d{.code = diag::Code::syntax,
                       .message = syntax_message(error.description()),
                       .at = at,
                       .notes = {},
                       .help = {},
                       .key = {}};
    if (first) {
      d.notes.push_back({"first defined here", *first});
      d.help = "keep one of the two";
    }
    sink.report(std::move(d));
    return {};
  }
}

std::optional<Value::Array> parse_values(std::string_view text, std::string& why) {
  try {
    const std::string line = "v = [" + std::string(text) + "]";
    const toml::table table = toml::parse(std::string_view(line));
    const toml::array* array = table.size() == 1 ? table["v"].as_array() : nullptr;
    if (array == nullptr) {
      why = "not one value";
      return {};
    }
    const diag::SourceFile source{.name = {}, .text = line, .is_argument = true};
    Document scratch;
    diag::Sink sink;
    Converter converter(source, scratch, sink);
    Value value = converter.value(*array, "v");
    if (sink.errors() > 0) {
      why = sink.all().front().message;
      return {};
    }
    return std::get<Value::Array>(std::move(value.data));
  } catch (const toml::parse_error& error) {
    why = syntax_message(error.description());
    return {};
  }
}

void merge(Document& base, const Document& over, diag::Sink& sink) {
  Merger(base, over, sink).tables(base.values, over.values, "");
}

}  // namespace runner::config
