// registry: how a thing gets a name and its options.
//
// A component's options are a plain struct plus a constexpr table with one row a member. From the
// table come parsing, checking, defaults, `--describe`, the docs and did-you-mean:
//
//   struct Options {
//     std::int64_t width = 128;
//     std::string activation = "relu";
//   };
//   constexpr auto kRows = registry::rows<Options>({
//       {.name = "width", .member = &Options::width, .doc = "units of the layer", .range =
//       at_least(1)},
//       {.name = "activation", .member = &Options::activation, .doc = "…", .choices = {"relu",
//       "gelu"}},
//   });
//   static_assert(registry::covers<Options>(kRows));   // a member without a row doesn't compile
#pragma once

#include <any>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "registry/value.h"

namespace runner::registry {

/// What a changed value means for `--resume`.
enum class Resume {
  fixed,  ///< refused: another model, other data
  warn,   ///< allowed, listed as a difference
  free,   ///< has no say in the result (log level)
};

/// Bounds of a number (or of each number of a list).
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool max_open = false;

  [[nodiscard]] bool holds(double v) const;  ///< false for nan
  /// "at least 1", "above 0", "0 to 1", "0 to below 1"; empty when unbounded.
  [[nodiscard]] std::string text() const;
};
constexpr Range at_least(double v) { return {.min = v}; }
constexpr Range above(double v) { return {.min = v, .min_open = true}; }
constexpr Range between(double a, double b) { return {.min = a, .max = b}; }
constexpr Range from_to_below(double a, double b) { return {.min = a, .max = b, .max_open = true}; }

/// The words a string option accepts; empty means any text.
class Choices {
 public:
  constexpr Choices() = default;
  template <class... Words>
  constexpr Choices(const char* first, Words... rest)  // NOLINT(google-explicit-constructor)
      : words_{std::string_view(first), std::string_view(rest)...}, size_(1 + sizeof...(rest)) {}
  [[nodiscard]] constexpr std::span<const std::string_view> words() const {
    return {words_.data(), size_};
  }

 private:
  std::array<std::string_view, 16> words_{};
  std::size_t size_ = 0;
};

/// Where an option lives in its struct. A `Value` member takes anything; its owner judges it.
template <class O>
using Member = std::variant<bool O::*, std::int64_t O::*, double O::*, std::string O::*,
                            std::optional<std::int64_t> O::*, std::optional<double> O::*,
                            std::optional<std::string> O::*, std::vector<std::int64_t> O::*,
                            std::vector<double> O::*, std::vector<std::string> O::*, Value O::*>;

template <class O>
struct Row {
  std::string_view name;
  Member<O> member;
  std::string_view doc;  ///< lower-case, no final period, with the unit
  Range range = {};
  Choices choices = {};
  Resume resume = Resume::fixed;
  std::string_view type = {};  ///< for `Value` members: what is accepted, in words
};

template <class O, std::size_t N>
constexpr std::array<Row<O>, N> rows(const Row<O> (&list)[N]) {
  return std::to_array(list);
}

namespace detail {
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): only for counting members
};
template <class O, class... Args>
constexpr std::size_t member_count() {
  if constexpr (requires { O{std::declval<Args>()..., std::declval<Anything>()}; }) {
    return member_count<O, Args..., Anything>();
  } else {
    return sizeof...(Args);
  }
}
}  // namespace detail

/// True if every member of the struct has a row; use it in a static_assert below the table.
template <class O, std::size_t N>
constexpr bool covers(const std::array<Row<O>, N>&) {
  return detail::member_count<O>() == N;
}

/// What the registry knows of one option, without its struct.
struct OptionInfo {
  std::string_view name;
  std::string type;  ///< "integer", "float", "string", "boolean", "list of integers", …
  std::string_view doc;
  Range range;
  std::vector<std::string_view> choices;
  Resume resume;
  Value default_value;  ///< nothing for an optional option
};

/// A value that an option doesn't take, in the words of a diagnostic.
struct Misfit {
  std::string message;               ///< "expected an integer, at least 1, found the string 'x'"
  std::optional<std::size_t> index;  ///< the element of a list at fault
  std::string suggestion;            ///< the nearest choice; may be empty
};

/// The table of one component with its struct's type erased.
class OptionTable {
 public:
  virtual ~OptionTable() = default;
  [[nodiscard]] const std::vector<OptionInfo>& options() const { return infos_; }
  [[nodiscard]] const OptionInfo* find(std::string_view name) const;
  /// The row's index; the name must exist.
  [[nodiscard]] std::size_t index(std::string_view name) const;
  [[nodiscard]] virtual Value get(const void* object, std::size_t index) const = 0;
  /// Stores the value, or says why it doesn't fit and leaves the object as it was. An integer fits
  /// a float option; nothing else is converted.
  [[nodiscard]] virtual std::optional<Misfit> set(void* object, std::size_t index,
                                                  const Value& value) const = 0;
  /// The struct inside an `any` that holds this table's struct.
  [[nodiscard]] virtual void* object(std::any& holder) const = 0;
  [[nodiscard]] const void* object(const std::any& holder) const {
    return object(const_cast<std::any&>(holder));
  }

 protected:
  std::vector<OptionInfo> infos_;
};

namespace detail {
/// Reads `value` into `out`; the shared, non-template part of every table.
std::optional<Misfit> read(const Value& value, const OptionInfo& option, bool& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::int64_t& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option, double& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::string& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option, Value& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option,
                           std::vector<std::int64_t>& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::vector<double>& out);
std::optional<Misfit> read(const Value& value, const OptionInfo& option,
                           std::vector<std::string>& out);
template <class T>
std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::optional<T>& out) {
  T inner{};
  std::optional<Misfit> misfit = read(value, option, inner);
  if (!misfit) out = std::move(inner);
  return misfit;
}

inline Value write(const Value& v) { return v; }
inline Value write(bool v) { return v; }
inline Value write(std::int64_t v) { return v; }
inline Value write(double v) { return v; }
inline Value write(const std::string& v) { return v; }
template <class T>
Value write(const std::vector<T>& v) {
  return Value::Array(v.begin(), v.end());
}
template <class T>
Value write(const std::optional<T>& v) {
  return v ? Value(*v) : Value();
}

constexpr std::string_view type_of(const bool*) { return "boolean"; }
constexpr std::string_view type_of(const std::int64_t*) { return "integer"; }
constexpr std::string_view type_of(const double*) { return "float"; }
constexpr std::string_view type_of(const std::string*) { return "string"; }
constexpr std::string_view type_of(const Value*) { return "value"; }
constexpr std::string_view type_of(const std::vector<std::int64_t>*) { return "list of integers"; }
constexpr std::string_view type_of(const std::vector<double>*) { return "list of floats"; }
constexpr std::string_view type_of(const std::vector<std::string>*) { return "list of strings"; }
template <class T>
constexpr std::string_view type_of(const std::optional<T>*) {
  return type_of(static_cast<const T*>(nullptr));
}
}  // namespace detail

template <class O>
class TypedTable final : public OptionTable {
 public:
  explicit TypedTable(std::span<const Row<O>> rows) : rows_(rows) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto words = rows_[i].choices.words();
      infos_.push_back({.name = rows_[i].name,
                        .type = std::string(rows_[i].type),
                        .doc = rows_[i].doc,
                        .range = rows_[i].range,
                        .choices = {words.begin(), words.end()},
                        .resume = rows_[i].resume,
                        .default_value = get(&defaults(), i)});
      if (rows_[i].type.empty()) infos_.back().type = type_name_of(i);
    }
  }

  [[nodiscard]] Value get(const void* object, std::size_t index) const override {
    return with_member(index, object, [](const auto& member) { return detail::write(member); });
  }
  [[nodiscard]] std::optional<Misfit> set(void* object, std::size_t index,
                                          const Value& value) const override {
    return with_member(index, object,
                       [&](auto& member) { return detail::read(value, infos_[index], member); });
  }
  [[nodiscard]] void* object(std::any& holder) const override { return std::any_cast<O>(&holder); }
  using OptionTable::object;

 private:
  // Inlined, g++ 12 warns of reading the one struct as every type of member.
  [[gnu::noinline]] static const O& defaults() {
    static const O value{};
    return value;
  }
  [[nodiscard]] std::string type_name_of(std::size_t index) const {
    return with_member(index, static_cast<const void*>(&defaults()),
                       [](const auto& member) { return std::string(detail::type_of(&member)); });
  }
  /// Calls `use` with the member of row `index` in the struct at `object`, const as `object` is.
  template <class Void, class Use>
  auto with_member(std::size_t index, Void* object, const Use& use) const {
    using Struct = std::conditional_t<std::is_const_v<Void>, const O, O>;
    using Result = decltype(use(
        std::declval<std::conditional_t<std::is_const_v<Void>, const bool&, bool&>>()));
    if constexpr (std::is_empty_v<O>) {
      return Result{};  // has no rows, so this is never called
    } else {
      return std::visit(
          [&](auto member) { return Result(use(static_cast<Struct*>(object)->*member)); },
          rows_[index].member);
    }
  }

  std::span<const Row<O>> rows_;
};

/// The one table of a struct; lives as long as the program.
template <class O, std::size_t N>
const OptionTable& table_of(const std::array<Row<O>, N>& rows) {
  static const TypedTable<O> table{std::span<const Row<O>>(rows)};
  return table;
}

}  // namespace runner::registry
