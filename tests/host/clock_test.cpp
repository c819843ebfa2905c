#include "runner/host/clock.h"

#include <doctest/doctest.h>

namespace runner::host {
namespace {

TEST_CASE("clock: a sleep takes at least its time on the steady clock") {
  Clock& clock = system_clock();
  const Seconds before = clock.now();
  clock.sleep(Seconds{0.002});
  CHECK((clock.now() - before).count() >= 0.002);
}

TEST_CASE("clock: a sleep of a negative time returns at once") {
  Clock& clock = system_clock();
  const Seconds before = clock.now();
  clock.sleep(Seconds{-100});
  CHECK((clock.now() - before).count() < 1);
}

TEST_CASE("clock: the wall time is that of the system clock") {
  const auto before = std::chrono::system_clock::now();
  const auto told = system_clock().wall_time();
  CHECK(told >= before);
  CHECK(told <= std::chrono::system_clock::now());
}

}  // namespace
}  // namespace runner::host
