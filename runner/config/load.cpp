#include "runner/config/load.h"

#include <algorithm>
#include <functional>

#include "runner/config/document.h"
#include "runner/diag/render.h"

namespace runner::config {

namespace {

using registry::Value;

constexpr std::int64_t kLargestFile = 1 << 20;
constexpr std::size_t kDeepestExtends = 32;
constexpr std::size_t kMostKeyParts = 32;

bool is_key_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' ||
         c == '"';
}

/// "a.\"b.c\".d" -> a, b.c, d; nothing if it isn't a dotted key.
std::optional<std::vector<std::string>> split_key(std::string_view key) {
  std::vector<std::string> parts(1);
  bool quoted = false;
  for (const char c : key) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == '.' && !quoted) {
      parts.emplace_back();
    } else if (quoted || is_key_char(c)) {
      parts.back() += c;
    } else {
      return {};
    }
  }
  const bool hollow =
      std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.empty(); });
  if (quoted || hollow || parts.size() > kMostKeyParts) return {};
  return parts;
}

std::uint32_t code_points(std::string_view text) {
  return static_cast<std::uint32_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

void report_at(diag::Sink& sink, diag::Code code, std::string message, const diag::Span& at,
               std::string help, std::string key = {}) {
  sink.report({.code = code,
               .message = std::move(message),
               .at = at,
               .notes = {},
               .help = std::move(help),
               .key = std::move(key)});
}

/// Reads a file and everything it extends into one document.
class Reader {
 public:
  Reader(const host::Files& files, diag::Sources& sources, diag::Sink& sink)
      : files_(files), sources_(sources), sink_(sink) {}

  /// The text of the first file that was read.
  [[nodiscard]] const diag::SourceFile* main_source() const { return main_source_; }

  std::optional<Document> read(const std::filesystem::path& path, diag::Span from) {
    std::string text;
    try {
      text = files_.read_file(path, kLargestFile);
    } catch (const diag::Error& error) {
      report(diag::Code::unreadable_file, error.what(), from, error.help());
      return {};
    }
    const diag::SourceFile* source = sources_.add(path.string(), std::move(text));
    if (main_source_ == nullptr) main_source_ = source;
    std::optional<Document> own = parse_document(*source, sink_);
    if (!own) return {};
    return with_bases(std::move(*own), path);
  }

 private:
  std::optional<Document> with_bases(Document own, const std::filesystem::path& path) {
    std::vector<std::pair<std::string, diag::Span>> bases;
    if (!take_extends(own, bases)) return {};
    if (bases.empty()) return own;
    stack_.push_back(std::filesystem::weakly_canonical(path));
    Document merged;
    bool complete = true;
    for (const auto& [base, at] : bases) {
      const std::filesystem::path base_path = path.parent_path() / base;
      if (is_open(base_path)) {
        report(diag::Code::extends_cycle, "'" + base + "' extends itself: it is already being read",
               at, "remove it from extends");
        complete = false;
        continue;
      }
      // What isn't meant as an experiment must not end up in an error's excerpt.
      if (base_path.extension() != ".toml") {
        report(diag::Code::unreadable_file, "'" + base + "' is not a .toml file", at,
               "extends takes experiment files");
        complete = false;
        continue;
      }
      if (stack_.size() >= kDeepestExtends) {
        report(diag::Code::extends_cycle,
               "extends goes deeper than " + std::to_string(kDeepestExtends) + " files", at,
               "merge some of the files");
        complete = false;
        continue;
      }
      if (std::optional<Document> document = read(base_path, at)) {
        merge(merged, *document, sink_);
      } else {
        complete = false;
      }
    }
    stack_.pop_back();
    if (!complete) return {};
    merge(merged, own, sink_);
    return merged;
  }

  bool is_open(const std::filesystem::path& path) const {
    const auto canonical = std::filesystem::weakly_canonical(path);
    return std::find(stack_.begin(), stack_.end(), canonical) != stack_.end();
  }

  /// Moves `extends` out of the document; false if it isn't a string or a list of strings.
  bool take_extends(Document& document, std::vector<std::pair<std::string, diag::Span>>& bases) {
    const Value* value = registry::find(document.values, "extends");
    if (value == nullptr) return true;
    const auto add = [&](const Value& v, const std::string& path) {
      const auto* text = v.get_if<std::string>();
      if (text == nullptr) {
        report(diag::Code::bad_value,
               "'extends': expected a file name or a list of file names, found " +
                   std::string(registry::type_name(v)),
               document.origins[path].value, "extends = \"base.toml\"");
        return false;
      }
      bases.emplace_back(*text, document.origins[path].value);
      return true;
    };
    bool fine = true;
    if (const auto* list = value->get_if<Value::Array>()) {
      for (std::size_t i = 0; i < list->size(); ++i)
        fine = add((*list)[i], element_path("extends", i)) && fine;
    } else {
      fine = add(*value, "extends");
    }
    std::erase_if(document.values, [](const auto& item) { return item.first == "extends"; });
    return fine;
  }

  void report(diag::Code code, std::string message, diag::Span at, std::string help) {
    report_at(sink_, code, std::move(message), at, std::move(help));
  }

  const host::Files& files_;
  diag::Sources& sources_;
  diag::Sink& sink_;
  std::vector<std::filesystem::path> stack_;
  const diag::SourceFile* main_source_ = nullptr;
};

/// Applies overrides to a document.
class Overrider {
 public:
  Overrider(Document& document, diag::Sources& sources, diag::Sink& sink)
      : document_(document), sources_(sources), sink_(sink) {}

  void apply(std::span<const Override> overrides) {
    std::vector<Parsed> parsed;
    for (const Override& o : overrides) {
      if (auto p = parse(o)) parsed.push_back(std::move(*p));
    }
    find_final_names(parsed);
    for (const Parsed& p : parsed) apply(p);
  }

 private:
  enum class Kind { set, append, drop };
  struct Parsed {
    Kind kind;
    std::vector<std::string> parts;
    std::string path;
    std::string value;
    const diag::SourceFile* source;
    diag::Span key_at;
    diag::Span value_at;
  };

  /// The names that components will have in the end, wherever they are set: they decide which
  /// options, and so which types, the other keys have.
  void find_final_names(const std::vector<Parsed>& parsed) {
    names_ = document_.values;
    for (const Parsed& p : parsed) {
      const std::string& section = p.parts[0];
      if (p.kind == Kind::drop && p.parts.size() == 1) {
        std::erase_if(names_, [&](const auto& item) { return item.first == section; });
      } else if (p.kind == Kind::drop && p.path == section + ".name") {
        set_name(section, std::nullopt);
      } else if (p.kind == Kind::set && p.path == section + ".name") {
        set_name(section, p.value);
      }
    }
  }

  void set_name(const std::string& section, const std::optional<std::string>& name) {
    auto at = std::find_if(names_.begin(), names_.end(),
                           [&](const auto& item) { return item.first == section; });
    if (at == names_.end()) {
      names_.emplace_back(section, Value::Table{});
      at = names_.end() - 1;
    }
    auto* table = std::get_if<Value::Table>(&at->second.data);
    if (table == nullptr) return;
    std::erase_if(*table, [](const auto& item) { return item.first == "name"; });
    if (name) table->emplace_back("name", *name);
  }

  std::optional<Parsed> parse(const Override& o) {
    Parsed p;
    p.source = sources_.add("argument " + std::to_string(o.position), o.text, true);
    const std::string_view text = o.text;
    const bool drop = text.starts_with('-');
    const std::size_t equals = drop ? std::string_view::npos : text.find('=');
    const bool append = equals != std::string_view::npos && equals > 0 && text[equals - 1] == '+';
    p.kind = drop ? Kind::drop : append ? Kind::append : Kind::set;
    const std::size_t begin = drop ? 1 : 0;
    const std::size_t end = drop ? text.size() : append ? equals - 1 : equals;
    const std::string_view key = text.substr(begin, end - begin);
    p.key_at = {p.source, 1, static_cast<std::uint32_t>(begin + 1), code_points(key)};
    p.value_at = p.key_at;
    if (!drop) {
      p.value = text.substr(equals + 1);
      p.value_at = {p.source, 1, code_points(text.substr(0, equals + 1)) + 1,
                    std::max(1U, code_points(p.value))};
    }
    auto parts = split_key(key);
    if (!parts) {
      report(diag::Code::bad_override, "'" + std::string(key) + "' is not a key", p.key_at,
             "write section.key=value, for example optimizer.lr=3e-4");
      return {};
    }
    p.parts = std::move(*parts);
    for (const std::string& part : p.parts) p.path = child_path(p.path, part);
    if (p.path == "extends") {
      report(diag::Code::bad_override, "'extends' can't be an argument", p.key_at,
             "write a file that extends both");
      return {};
    }
    const bool control = std::any_of(text.begin(), text.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (control) {
      report(diag::Code::bad_override, "a control character in the value of '" + p.path + "'",
             p.value_at, "one argument sets one key, on one line");
      return {};
    }
    return p;
  }

  void apply(const Parsed& p) {
    if (p.kind == Kind::drop) {
      drop(p);
      return;
    }
    std::optional<Value> value = read_value(p);
    if (!value) return;
    Document over;
    Value::Table* table = &over.values;
    std::string path;
    for (std::size_t i = 0; i < p.parts.size(); ++i) {
      path = child_path(path, p.parts[i]);
      // A parent keeps the place of the file that opened its table.
      const auto known = document_.origins.find(path);
      const bool leaf = i + 1 == p.parts.size();
      over.origins[path] = !leaf && known != document_.origins.end()
                               ? known->second
                               : Origin{.kind = Origin::Kind::argument,
                                        .value = leaf ? p.value_at : p.key_at,
                                        .key = p.key_at,
                                        .overridden = {}};
      table->emplace_back(p.parts[i], leaf ? *value : Value(Value::Table{}));
      if (!leaf) table = std::get_if<Value::Table>(&table->back().second.data);
    }
    if (!fits_tree(p)) return;
    merge(document_, over, sink_);
  }

  /// A value can't hold keys: `seed.x=1`.
  bool fits_tree(const Parsed& p) {
    const Value::Table* table = &document_.values;
    for (std::size_t i = 0; i + 1 < p.parts.size(); ++i) {
      const Value* value = registry::find(*table, p.parts[i]);
      if (value == nullptr) return true;
      table = value->get_if<Value::Table>();
      if (table == nullptr) {
        report(diag::Code::not_a_table,
               "'" + p.parts[i] + "' is " + std::string(registry::type_name(*value)) +
                   " and has no keys",
               p.key_at, "a list is replaced whole: key=[…]");
        return false;
      }
    }
    return true;
  }

  void drop(const Parsed& p) {
    Value::Table* table = &document_.values;
    for (std::size_t i = 0; i < p.parts.size(); ++i) {
      const auto at = std::find_if(table->begin(), table->end(),
                                   [&](const auto& item) { return item.first == p.parts[i]; });
      if (at == table->end()) break;
      if (i + 1 == p.parts.size()) {
        table->erase(at);
        std::erase_if(document_.origins, [&](const auto& item) {
          return item.first == p.path || item.first.starts_with(p.path + ".") ||
                 item.first.starts_with(p.path + "[");
        });
        return;
      }
      table = std::get_if<Value::Table>(&at->second.data);
      if (table == nullptr) break;
    }
    report(diag::Code::bad_override, "no key '" + p.path + "' is written, so it can't be dropped",
           p.key_at, "only what a file or an earlier argument wrote can be dropped");
  }

  std::optional<Value> read_value(const Parsed& p) {
    const registry::OptionInfo* option = find_option(names_, p.path);
    // What nothing reads is reported by decode, whatever its value.
    if (option == nullptr) return Value(p.value);
    const std::string_view type = option->type;
    if (type == "string") return read_string(p);
    const bool list = type.starts_with("list of");
    if (p.kind == Kind::append && !list) {
      report(diag::Code::bad_override, "'" + p.path + "' is not a list, so nothing can be appended",
             p.value_at, "write " + p.path + "=" + p.value);
      return {};
    }
    std::string why;
    std::optional<Value::Array> values = parse_values(p.value, why);
    if (!values || values->empty()) {
      if (list && type == "list of strings") return with_appended(p, words(p.value));
      const bool words_allowed =
          type.find("string") != std::string_view::npos || type.find('"') != std::string_view::npos;
      if (words_allowed) return Value(p.value);
      if (values && list) return with_appended(p, {});
      report(diag::Code::bad_value,
             "'" + p.path + "': expected " + std::string(type) + ", found '" + p.value + "'" +
                 (why.empty() ? "" : " (" + why + ")"),
             p.value_at, "a value is written as in the file");
      return {};
    }
    if (!list) return values->size() == 1 ? values->front() : Value(std::move(*values));
    if (values->size() == 1) {
      if (auto* inner = std::get_if<Value::Array>(&values->front().data))
        return with_appended(p, std::move(*inner));
    }
    return with_appended(p, std::move(*values));
  }

  /// A string needs no quotes; quotes around all of it are TOML's.
  std::optional<Value> read_string(const Parsed& p) {
    const bool quoted = p.value.size() >= 2 &&
                        (p.value.front() == '"' || p.value.front() == '\'') &&
                        p.value.back() == p.value.front();
    if (quoted) {
      std::string why;
      const auto values = parse_values(p.value, why);
      if (values && values->size() == 1) return values->front();
    }
    return Value(p.value);
  }

  static Value::Array words(std::string_view text) {
    Value::Array result;
    while (!text.empty()) {
      const std::size_t comma = text.find(',');
      std::string_view word = text.substr(0, comma);
      const std::size_t first = word.find_first_not_of(' ');
      word = first == std::string_view::npos
                 ? ""
                 : word.substr(first, word.find_last_not_of(' ') - first + 1);
      result.emplace_back(std::string(word));
      text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    }
    return result;
  }

  Value with_appended(const Parsed& p, Value::Array values) const {
    if (p.kind != Kind::append) return values;
    const Value::Table* table = &document_.values;
    const Value* value = nullptr;
    for (const std::string& part : p.parts) {
      value = table == nullptr ? nullptr : registry::find(*table, part);
      table = value == nullptr ? nullptr : value->get_if<Value::Table>();
    }
    Value::Array all;
    if (value != nullptr) {
      if (const auto* old = value->get_if<Value::Array>()) all = *old;
    }
    all.insert(all.end(), values.begin(), values.end());
    return all;
  }

  void report(diag::Code code, std::string message, diag::Span at, std::string help) {
    report_at(sink_, code, std::move(message), at, std::move(help));
  }

  Document& document_;
  Value::Table names_;
  diag::Sources& sources_;
  diag::Sink& sink_;
};

/// Fills in ${env:NAME} and ${env:NAME:-default} in every string.
class EnvironmentFiller {
 public:
  EnvironmentFiller(const Document& document, const host::Environment& environment,
                    diag::Sink& sink)
      : document_(document), environment_(environment), sink_(sink) {}

  void fill(Value& value, const std::string& path) {
    if (auto* text = std::get_if<std::string>(&value.data)) {
      fill(*text, path);
    } else if (auto* array = std::get_if<Value::Array>(&value.data)) {
      for (std::size_t i = 0; i < array->size(); ++i) fill((*array)[i], element_path(path, i));
    } else if (auto* table = std::get_if<Value::Table>(&value.data)) {
      for (auto& [key, inner] : *table) fill(inner, child_path(path, key));
    }
  }

 private:
  void fill(std::string& text, const std::string& path) {
    static constexpr std::string_view kOpen = "${env:";
    std::string out;
    std::size_t done = 0;
    for (std::size_t at = text.find(kOpen); at != std::string::npos; at = text.find(kOpen, done)) {
      const std::size_t close = text.find('}', at);
      if (close == std::string::npos) {
        report(path, "'${env:' without its '}' in '" + path + "'",
               "write ${env:NAME} or ${env:NAME:-default}");
        return;
      }
      out.append(text, done, at - done);
      const std::string inside = text.substr(at + kOpen.size(), close - at - kOpen.size());
      const std::size_t split = inside.find(":-");
      const std::string name = inside.substr(0, split);
      if (const auto value = environment_.get(name)) {
        out += *value;
      } else if (split != std::string::npos) {
        out += inside.substr(split + 2);
      } else {
        report(path, "'" + path + "' needs the environment variable " + name + ", which is not set",
               "set it, or give a default: ${env:" + name + ":-…}");
      }
      done = close + 1;
    }
    out.append(text, done, std::string::npos);
    text = std::move(out);
  }

  void report(const std::string& path, std::string message, std::string help) {
    const auto at = document_.origins.find(path);
    report_at(sink_, diag::Code::environment, std::move(message),
              at == document_.origins.end() ? diag::Span{} : at->second.value, std::move(help),
              path);
  }

  const Document& document_;
  const host::Environment& environment_;
  diag::Sink& sink_;
};

/// The name becomes a folder.
void check_name(const Experiment& experiment, diag::Sink& sink) {
  const auto& found = sink.all();
  if (std::any_of(found.begin(), found.end(), [](const auto& d) { return d.key == "name"; }))
    return;
  constexpr std::size_t kLongestName = 200;
  const std::string& name = experiment.general.name;
  const bool odd = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!odd && !name.empty() && name.front() != '.' && name.size() <= kLongestName) return;
  report_at(sink, diag::Code::bad_value,
            "'name' can't be the name of a folder: '" + name.substr(0, kLongestName) + "'",
            experiment.at("name"),
            "1 to 200 bytes, no slash, no control character, no dot at the start", "name");
}

}  // namespace

bool is_override(std::string_view argument) {
  if (argument.starts_with('-')) {
    return argument.size() > 1 && argument[1] != '-' &&
           argument.find('=') == std::string_view::npos;
  }
  const std::size_t equals = argument.find('=');
  const std::size_t slash = argument.find('/');
  return equals != std::string_view::npos && (slash == std::string_view::npos || slash > equals);
}

std::optional<Experiment> load(const std::filesystem::path& file,
                               std::span<const Override> overrides, const host::Files& files,
                               const host::Environment& environment, diag::Sources& sources,
                               diag::Sink& sink) {
  Reader reader(files, sources, sink);
  std::optional<Document> document = reader.read(file, {});
  if (!document) return {};
  Document& base = *document;
  if (base.values.empty() && overrides.empty()) {
    sink.report(
        {.code = diag::Code::empty_file,
         .message = "the file is empty: an experiment needs at least a [model] and a [dataset]",
         .at = {sources.add(file.string(), ""), 1, 1, 1},
         .notes = {},
         .help = "start from one of the files in configs/",
         .key = {}});
    return {};
  }
  Overrider(base, sources, sink).apply(overrides);
  EnvironmentFiller filler(base, environment, sink);
  for (auto& [key, value] : base.values) filler.fill(value, child_path("", key));
  Experiment experiment = decode(base.values, base.origins, sink);
  experiment.file = file;
  experiment.source = reader.main_source();
  if (!experiment.is_set("name")) infer(experiment, "name", file.stem().string());
  check_name(experiment, sink);
  return experiment;
}

}  // namespace runner::config
