#include "registry/value.h"

#include <array>
#include <charconv>
#include <cmath>

namespace runner::registry {

namespace {

std::string real_text(double v) {
  if (std::isnan(v)) return std::signbit(v) ? "-nan" : "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), v).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          constexpr std::string_view kHex = "0123456789ABCDEF";
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[static_cast<unsigned char>(c) & 15];
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

bool is_bare_key(std::string_view key) {
  return !key.empty() && key.find_first_not_of(
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                             "0123456789_-") == std::string_view::npos;
}

struct TomlText {
  std::string operator()(std::monostate) const { return "\"\""; }
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(std::int64_t v) const { return std::to_string(v); }
  std::string operator()(double v) const { return real_text(v); }
  std::string operator()(const std::string& v) const { return quoted(v); }
  std::string operator()(const Value::Array& v) const {
    std::string out = "[";
    for (std::size_t i = 0; i < v.size(); ++i) out += (i == 0 ? "" : ", ") + to_toml(v[i]);
    return out + "]";
  }
  std::string operator()(const Value::Table& v) const {
    if (v.empty()) return "{}";
    std::string out = "{ ";
    for (std::size_t i = 0; i < v.size(); ++i) {
      out += (i == 0 ? "" : ", ") + key_text(v[i].first) + " = " + to_toml(v[i].second);
    }
    return out + " }";
  }
};

}  // namespace

std::string key_text(std::string_view key) {
  return is_bare_key(key) ? std::string(key) : quoted(key);
}

bool operator==(const Value& a, const Value& b) { return a.data == b.data; }

const Value* find(const Value::Table& table, std::string_view key) {
  for (const auto& [name, value] : table) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string to_toml(const Value& value) { return std::visit(TomlText{}, value.data); }

std::string_view type_name(const Value& value) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "nothing", "a boolean", "an integer", "a float", "a string", "an array", "a table"};
  return kNames[value.data.index()];
}

}  // namespace runner::registry
