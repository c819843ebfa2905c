#include <doctest/doctest.h>

#include "runner/components/component.h"

using namespace runner::components;

TEST_CASE("losses: each says which targets it takes") {
  struct Row {
    const char* name;
    bool classes, binary;
  };
  constexpr Row kRows[] = {{"cross_entropy", true, false},
                           {"mse", false, false},
                           {"l1", false, false},
                           {"bce", false, true}};
  for (const Row& row : kRows) {
    CAPTURE(row.name);
    const Loss* loss = losses().find(row.name);
    REQUIRE(loss != nullptr);
    CHECK(loss->needs_classes == row.classes);
    CHECK(loss->needs_binary == row.binary);
  }
  CHECK(losses().entries().size() == std::size(kRows));
}

TEST_CASE("losses: label smoothing is a share") {
  const Loss& loss = *losses().find("cross_entropy");
  std::any options = loss.defaults;
  const auto set = [&](double v) {
    return !loss.options->set(loss.options->object(options), 0, v).has_value();
  };
  CHECK(set(0.1));
  CHECK(std::any_cast<const CrossEntropy&>(options).label_smoothing == 0.1);
  CHECK_FALSE(set(1.1));
  CHECK_FALSE(set(-0.1));
}
