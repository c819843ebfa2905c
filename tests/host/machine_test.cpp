#include "runner/host/machine.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/fakes/fake_machine.h"

namespace runner::host {
namespace {

bool is_loaded(const char* library) {
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) ::dlclose(handle);
  return handle != nullptr;
}

TEST_CASE(
    "machine: GPUs come from the driver's library, which isn't loaded before they are asked") {
  const auto machine = make_machine(RUNNER_FAKE_NVML);
  CHECK(machine->cpu_count() >= 1);
  CHECK(machine->memory_bytes() > 0);
  CHECK_FALSE(is_loaded(RUNNER_FAKE_NVML));

  const std::vector<Gpu> gpus = machine->gpus();
  CHECK(is_loaded(RUNNER_FAKE_NVML));
  REQUIRE(gpus.size() == 2);  // the lost one is left out, and the others keep their numbers
  CHECK(gpus[0].index == 0);
  CHECK(gpus[0].name == "Fake 0");
  CHECK(gpus[0].uuid == "GPU-abc0");
  CHECK(gpus[0].memory_bytes == 1000);
  CHECK(gpus[0].free_bytes == 900);
  CHECK(gpus[0].capability_major == 9);
  CHECK(gpus[0].capability_minor == 1);
  CHECK(gpus[0].processes.empty());
  CHECK(gpus[1].index == 2);
  CHECK(gpus[1].free_bytes == 100);
  CHECK(gpus[1].capability_major == 0);
  REQUIRE(gpus[1].processes.size() == 100);
  CHECK(gpus[1].processes.back() == 599);
}

TEST_CASE("machine: without a driver, or with a library that isn't one, there are no GPUs") {
  CHECK(make_machine("libnothing-of-this-name.so.1")->gpus().empty());
  CHECK(make_machine("libm.so.6")->gpus().empty());
}

TEST_CASE("machine: the CPU count follows the affinity mask") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(system_machine().cpu_count() == CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(system_machine().cpu_count() == 1);
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST_CASE("machine: memory is at most what the kernel says, and the name is the kernel's") {
  std::ifstream in("/proc/meminfo");
  std::string word;
  std::int64_t kibibytes = 0;
  in >> word >> kibibytes;
  REQUIRE(word == "MemTotal:");
  CHECK(system_machine().memory_bytes() <= kibibytes * 1024);
  CHECK(system_machine().memory_bytes() > 0);

  std::string name;
  std::getline(std::ifstream("/proc/sys/kernel/hostname"), name);
  CHECK(system_machine().hostname() == name);
}

TEST_CASE("visible_gpus: a mask is read as CUDA reads it") {
  FakeMachine machine(4);
  machine.gpu_list[2].uuid = "GPU-c0ffee11-2222";
  struct Case {
    const char* mask;
    std::vector<int> expected;
  };
  const Case cases[] = {
      {"0,1,2,3", {0, 1, 2, 3}},
      {"3,1", {3, 1}},
      {" 2 , 0 ", {2, 0}},
      {"", {}},
      {"-1", {}},
      {"0,-1,2", {0}},
      {"1,9,2", {1}},
      {"1,,2", {1}},
      {"0,1,0", {}},
      {"abc", {}},
      {"1,", {1}},
      {"GPU-c0ffee", {2}},
      {"GPU-c0ffee11-2222,0", {2, 0}},
      {"GPU-dead", {}},
      {"c0ffee", {}},
  };
  for (const Case& c : cases) {
    std::vector<int> indices;
    for (const Gpu& gpu : visible_gpus(machine.gpus(), c.mask)) indices.push_back(gpu.index);
    CHECK_MESSAGE(indices == c.expected, "mask '" << c.mask << "'");
  }
  CHECK(visible_gpus(machine.gpus(), std::nullopt).size() == 4);
}

}  // namespace
}  // namespace runner::host
