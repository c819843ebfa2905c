// Runs that mpirun starts, with their numbers over MPI.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"
#include "tests/fakes/temp_folder.h"

using namespace runner;
namespace fs = std::filesystem;

namespace {

const std::string kText =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [32]\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 32\n"
    "[trainer]\nbackend = \"horovod\"\nnum_processes = 2\nmax_epochs = 2\nthreads = 1\n"
    "[optimizer]\nname = \"sgd\"\nlr = 0.1\n";

struct Bench {
  TempFolder folder;

  Bench() { folder.write("t.toml", kText); }

  [[nodiscard]] e2e::Result start(std::vector<std::string> command,
                                  const std::vector<std::string>& overrides) const {
    command.insert(command.end(), {e2e::runner_path(), "t.toml", "--quiet"});
    command.insert(command.end(), overrides.begin(), overrides.end());
    return e2e::run({.arguments = std::move(command),
                     .environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                     "OMPI_MCA_rmaps_base_oversubscribe=1"},
                     .folder = folder.path()});
  }
  [[nodiscard]] e2e::Result mpirun(const std::vector<std::string>& overrides = {}) const {
    return start({RUNNER_MPIRUN, "-np", "2"}, overrides);
  }
  [[nodiscard]] nlohmann::json manifest() const {
    fs::path last;
    for (const auto& run : fs::directory_iterator(folder / "runs/t")) {
      last = std::max(last, run.path());
    }
    return nlohmann::json::parse(e2e::read_file(last / "manifest.json"));
  }
};

}  // namespace

TEST_CASE("mpi: a run under mpirun trains the very weights of one that runner starts with gloo") {
  const Bench over_mpi;
  const e2e::Result mpi = over_mpi.mpirun();
  INFO(mpi.out);
  INFO(mpi.err);
  REQUIRE(mpi.status == 0);
  CHECK(mpi.err.find("mpirun") == std::string::npos);  // it complains of ranks that just end
  const nlohmann::json manifest = over_mpi.manifest();
  CHECK(manifest["backend"] == "horovod");
  CHECK(manifest["ranks"].size() == 2);
  CHECK(manifest["steps"] == 46);

  const Bench over_gloo;
  const e2e::Result gloo = over_gloo.start({}, {"trainer.backend=ddp"});
  INFO(gloo.err);
  REQUIRE(gloo.status == 0);
  // A sum of two numbers is the same in either order.
  CHECK(manifest["weights_xxh3_128"] == over_gloo.manifest()["weights_xxh3_128"]);
}

TEST_CASE("mpi: a rank that fails ends the run at once, with its own reason") {
  for (const std::string rank : {"0", "1"}) {
    CAPTURE(rank);
    const Bench bench;
    const e2e::Result result = bench.mpirun({"debug.fail=rank=" + rank + ",step=10,how=throw"});
    CHECK(result.status == 1);
    CHECK(result.seconds < 60);  // not trainer.timeout's 600
    CHECK((result.out + result.err).find("failed on demand (debug.fail)") != std::string::npos);
  }
}

TEST_CASE("mpi: without mpirun a run says how to start it") {
  const Bench bench;
  const e2e::Result result = bench.start({}, {});
  CHECK(result.status == 3);
  CHECK(result.err.find("mpirun -np 2") != std::string::npos);
}
