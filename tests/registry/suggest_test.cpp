#include "registry/suggest.h"

#include <doctest/doctest.h>

#include <array>

using runner::registry::edit_distance;
using runner::registry::nearest;

TEST_CASE("suggest: the edit distance counts a swap of neighbours once") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("optimzer", "optimizer") == 1);
  CHECK(edit_distance("lr", "rl") == 1);
  CHECK(edit_distance("DDP", "ddp") == 0);
}

TEST_CASE("suggest: the nearest name is offered, and none when all are far") {
  constexpr std::array<std::string_view, 4> kNames = {"optimizer", "scheduler", "trainer", "lr"};
  CHECK(nearest("optimzer", kNames) == "optimizer");
  CHECK(nearest("Trainer", kNames) == "trainer");
  CHECK(nearest("train", kNames) == "trainer");
  CHECK(nearest("lrr", kNames) == "lr");
  CHECK(nearest("banana", kNames).empty());
  CHECK(nearest("", kNames).empty());
}
