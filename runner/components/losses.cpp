#include "runner/components/component.h"

namespace runner::components {

namespace {

constexpr auto kCrossEntropy = registry::rows<CrossEntropy>({
    {.name = "label_smoothing",
     .member = &CrossEntropy::label_smoothing,
     .doc = "share of each target that is spread evenly over all classes",
     .range = registry::between(0, 1),
     .resume = registry::Resume::warn},
});
static_assert(kCrossEntropy.size() == 1);

template <class O>
constexpr std::array<registry::Row<O>, 0> kNoRows{};

template <class O>
Loss plain(std::string_view name, std::string_view doc, bool needs_binary = false) {
  auto result = entry<O, Loss>(name, doc, kNoRows<O>);
  result.needs_binary = needs_binary;
  return result;
}

}  // namespace

const Losses& losses() {
  static const Losses catalog = [] {
    Losses c;
    auto cross_entropy = entry<CrossEntropy, Loss>(
        "cross_entropy", "classes: softmax of the outputs against the class number", kCrossEntropy);
    cross_entropy.needs_classes = true;
    c.add(std::move(cross_entropy));
    c.add(plain<Mse>("mse", "values: mean of the squared errors"));
    c.add(plain<L1>("l1", "values: mean of the absolute errors"));
    c.add(plain<Bce>("bce", "values that are 0 or 1: sigmoid of the outputs, binary cross entropy",
                     /*needs_binary=*/true));
    return c;
  }();
  return catalog;
}

}  // namespace runner::components
