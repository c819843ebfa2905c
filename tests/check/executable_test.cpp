#include "runner/check/executable.h"

#include <doctest/doctest.h>

#include "tests/check/check_fixture.h"

using namespace runner;
using check::base_with;
using check::Judged;
using check::Keys;

namespace {

std::string reason(const Keys& changes, const check::MachineView& machine = {}) {
  return check::not_yet_executable(Judged(base_with(changes), machine).verdict).value_or("");
}

}  // namespace

TEST_CASE("executable: one device at any precision runs") {
  CHECK(reason({}).empty());
  CHECK(reason({{"trainer.gpus", 1}}).empty());
  CHECK(reason({{"trainer.gpus", -1}}, {.gpus_available = 1}).empty());
  CHECK(reason({{"trainer.precision", 64}}).empty());
  CHECK(reason({{"trainer.precision", 16}}).empty());
  CHECK(reason({{"trainer.precision", "bf16"}, {"trainer.gpus", 1}}).empty());
}

TEST_CASE("executable: what works together is one honest line") {
  const std::string end =
      " is checked and planned, and this version runs one process on one device "
      "only";
  CHECK(reason({{"trainer.gpus", 2}}) == "backend 'ddp' on 2 GPUs" + end);
  CHECK(reason({{"trainer.num_processes", 2}}) == "backend 'ddp' on 2 processes on the CPU" + end);
  CHECK(reason({{"trainer.gpus", -1}}) == "backend 'ddp' on all GPUs" + end);
  CHECK(reason({{"trainer.gpus", 1}, {"trainer.num_nodes", 2}}) ==
        "backend 'ddp' on 1 GPU on each of 2 nodes" + end);
  CHECK(reason({{"trainer.backend", "tpu"}}) == "backend 'tpu' on 1 process on the CPU" + end);
}
