#include "runner/host/environment.h"

#include <doctest/doctest.h>
#include <stdlib.h>

namespace runner::host {
namespace {

TEST_CASE("environment: an empty variable differs from one that isn't set") {
  ::setenv("RUNNER_TEST_VARIABLE", "", 1);
  CHECK(system_environment().get("RUNNER_TEST_VARIABLE") == "");
  ::setenv("RUNNER_TEST_VARIABLE", "value = x", 1);
  CHECK(system_environment().get("RUNNER_TEST_VARIABLE") == "value = x");
  ::unsetenv("RUNNER_TEST_VARIABLE");
  CHECK(system_environment().get("RUNNER_TEST_VARIABLE") == std::nullopt);
}

}  // namespace
}  // namespace runner::host
