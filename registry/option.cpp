#include "registry/option.h"

#include <cmath>
#include <stdexcept>

#include "registry/suggest.h"

namespace runner::registry {

namespace {

std::string number(double v) {
  return std::floor(v) == v && std::abs(v) < 1e16 ? std::to_string(static_cast<std::int64_t>(v))
                                                  : to_toml(Value(v));
}

/// "the string 'x'", "the float 0.5", "a table".
std::string shown(const Value& value) {
  if (value.get_if<std::string>() != nullptr) return "the string " + to_toml(value);
  if (value.get_if<bool>() != nullptr) return "the boolean " + to_toml(value);
  if (value.get_if<std::int64_t>() != nullptr) return "the integer " + to_toml(value);
  if (value.get_if<double>() != nullptr) return "the float " + to_toml(value);
  return std::string(type_name(value));
}

std::string with_range(const std::string& text, const Range& range) {
  const std::string bounds = range.text();
  return bounds.empty() ? text : text + ", " + bounds;
}

Misfit expected(const std::string& what, const Value& value) {
  return {.message = "expected " + what + ", found " + shown(value), .index = {}, .suggestion = {}};
}

std::optional<Misfit> element_of(std::optional<Misfit> misfit, std::size_t index) {
  if (misfit) {
    misfit->message = "element " + std::to_string(index) + ": " + misfit->message;
    misfit->index = index;
  }
  return misfit;
}

template <class T>
std::optional<Misfit> read_list(const Value& value, const OptionInfo& option, std::vector<T>& out,
                                const char* what) {
  const auto* array = value.get_if<Value::Array>();
  if (array == nullptr) return expected(what, value);
  std::vector<T> result;
  for (std::size_t i = 0; i < array->size(); ++i) {
    T element{};
    if (auto misfit = detail::read((*array)[i], option, element)) {
      return element_of(std::move(misfit), i);
    }
    result.push_back(std::move(element));
  }
  out = std::move(result);
  return {};
}

}  // namespace

bool Range::holds(double v) const {
  if (std::isnan(v)) return false;
  return (min_open ? v > min : v >= min) && (max_open ? v < max : v <= max);
}

std::string Range::text() const {
  const bool low = std::isfinite(min);
  const bool high = std::isfinite(max);
  if (low && high) {
    return (min_open ? "above " : "") + number(min) + " to " + (max_open ? "below " : "") +
           number(max);
  }
  if (low) return (min_open ? "above " : "at least ") + number(min);
  if (high) return (max_open ? "below " : "at most ") + number(max);
  return {};
}

const OptionInfo* OptionTable::find(std::string_view name) const {
  for (const OptionInfo& option : infos_) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::size_t OptionTable::index(std::string_view name) const {
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    if (infos_[i].name == name) return i;
  }
  throw std::logic_error("no option '" + std::string(name) + "'");
}

namespace detail {

std::optional<Misfit> read(const Value& value, const OptionInfo&, bool& out) {
  const auto* v = value.get_if<bool>();
  if (v == nullptr) return expected("true or false", value);
  out = *v;
  return {};
}

std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::int64_t& out) {
  const auto* v = value.get_if<std::int64_t>();
  if (v == nullptr || !option.range.holds(static_cast<double>(*v))) {
    return expected(with_range("an integer", option.range), value);
  }
  out = *v;
  return {};
}

std::optional<Misfit> read(const Value& value, const OptionInfo& option, double& out) {
  double v = 0;
  if (const auto* real = value.get_if<double>()) {
    v = *real;
  } else if (const auto* integer = value.get_if<std::int64_t>()) {
    v = static_cast<double>(*integer);
  } else {
    return expected(with_range("a number", option.range), value);
  }
  if (!std::isfinite(v)) return expected(with_range("a finite number", option.range), value);
  if (!option.range.holds(v)) return expected(with_range("a number", option.range), value);
  out = v;
  return {};
}

std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::string& out) {
  const auto* v = value.get_if<std::string>();
  if (option.choices.empty()) {
    if (v == nullptr) return expected("a string", value);
    out = *v;
    return {};
  }
  const std::string allowed = join_or(option.choices);
  if (v == nullptr) return expected("one of " + allowed, value);
  for (const std::string_view choice : option.choices) {
    if (choice == *v) {
      out = *v;
      return {};
    }
  }
  Misfit misfit = expected("one of " + allowed, value);
  misfit.suggestion = nearest(*v, option.choices);
  return misfit;
}

std::optional<Misfit> read(const Value& value, const OptionInfo&, Value& out) {
  out = value;
  return {};
}

std::optional<Misfit> read(const Value& value, const OptionInfo& option,
                           std::vector<std::int64_t>& out) {
  return read_list(value, option, out, "a list of integers");
}

std::optional<Misfit> read(const Value& value, const OptionInfo& option, std::vector<double>& out) {
  return read_list(value, option, out, "a list of numbers");
}

std::optional<Misfit> read(const Value& value, const OptionInfo& option,
                           std::vector<std::string>& out) {
  return read_list(value, option, out, "a list of strings");
}

}  // namespace detail
}  // namespace runner::registry
