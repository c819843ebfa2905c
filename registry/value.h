#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace runner::registry {

/// What one key of an experiment can hold, free of any file format: configs decode from it, plans
/// carry it to the workers.
struct Value {
  using Array = std::vector<Value>;
  using Table = std::vector<std::pair<std::string, Value>>;  ///< in the order written

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Table> data;

  Value() = default;
  Value(bool v) : data(v) {}                      // NOLINT(google-explicit-constructor)
  Value(int v) : data(std::int64_t{v}) {}         // NOLINT(google-explicit-constructor)
  Value(std::int64_t v) : data(v) {}              // NOLINT(google-explicit-constructor)
  Value(double v) : data(v) {}                    // NOLINT(google-explicit-constructor)
  Value(std::string v) : data(std::move(v)) {}    // NOLINT(google-explicit-constructor)
  Value(const char* v) : data(std::string(v)) {}  // NOLINT(google-explicit-constructor)
  Value(Array v) : data(std::move(v)) {}          // NOLINT(google-explicit-constructor)
  Value(Table v) : data(std::move(v)) {}          // NOLINT(google-explicit-constructor)

  /// False for the value of an optional key that is absent.
  [[nodiscard]] bool has_value() const { return !std::holds_alternative<std::monostate>(data); }
  template <class T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&data);
  }
  friend bool operator==(const Value& a, const Value& b);
};

/// The member of a table, or nullptr.
[[nodiscard]] const Value* find(const Value::Table& table, std::string_view key);

/// As TOML would write it: `true`, `3`, `0.001`, `"text"`, `[1, 2]`, `{ a = 1 }`. Floats are the
/// shortest text that reads back to the same bits, always with a point or an exponent.
[[nodiscard]] std::string to_toml(const Value& value);

/// A key as TOML would write it: bare where that is allowed, else quoted.
[[nodiscard]] std::string key_text(std::string_view key);

/// "a boolean", "an integer", "a float", "a string", "an array", "a table", "nothing".
[[nodiscard]] std::string_view type_name(const Value& value);

}  // namespace runner::registry
