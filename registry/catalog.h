#pragma once

#include <any>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "registry/option.h"
#include "registry/suggest.h"

namespace runner::registry {

/// What every registered thing has; a catalog's entry type adds what its kind needs.
struct Entry {
  std::string_view name;
  std::string_view doc;  ///< one line, lower-case, no final period
  const OptionTable* options = nullptr;
  std::any
      defaults;  ///< a default-constructed option struct; copied and filled by the config layer
};

/// The registered models, datasets, …, in order of registration.
template <class E>
class Catalog {
 public:
  /// Throws std::logic_error when the name is taken: a programming error.
  void add(E entry) {
    if (find(entry.name) != nullptr) {
      throw std::logic_error("'" + std::string(entry.name) + "' is registered twice");
    }
    entries_.push_back(std::move(entry));
  }
  [[nodiscard]] const E* find(std::string_view name) const {
    for (const E& entry : entries_) {
      if (entry.name == name) return &entry;
    }
    return nullptr;
  }
  [[nodiscard]] std::vector<std::string_view> names() const {
    std::vector<std::string_view> names;
    for (const E& entry : entries_) names.push_back(entry.name);
    return names;
  }
  [[nodiscard]] const std::deque<E>& entries() const { return entries_; }

 private:
  std::deque<E> entries_;
};

}  // namespace runner::registry
