// Runs of several ranks give the same bits again, whatever happens to them on the way.
#include "tests/dist/bench.h"

using namespace runner;
using namespace runner::dist;

namespace {

/// All that must survive a stop: dropout, whose masks differ between ranks, accumulation, moments,
/// a schedule, and a model of several buckets; 18 batches, or 12, or 9, an epoch.
const std::string kRich =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [512, 512, 512]\ndropout = 0.2\nbatch_norm = true\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 40\n"
    "[trainer]\nmax_epochs = 3\naccumulate = 2\nthreads = 1\nbucket_mb = 1\n"
    "[optimizer]\nname = \"adamw\"\nlr = 1e-3\n"
    "[scheduler]\nname = \"cosine\"\n"
    "[checkpoint]\nevery_n_steps = 2\nkeep = 1\n"
    "[logger]\nevery_n_steps = 3\n";

/// What an uninterrupted run ends with.
struct End {
  std::string weights;
  std::string metrics;
};
bool operator==(const End& a, const End& b) {
  return a.weights == b.weights && a.metrics == b.metrics;
}
End end_of(const fs::path& run) { return {weights_hash(run), metrics_of(run)}; }

const End& uninterrupted(int ranks, const Backend& backend) {
  static std::map<std::pair<int, std::string>, End> known;
  const auto key = std::pair(ranks, backend.name);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const Bench t(kRich);
  return known.emplace(key, end_of(t.train(ranks, backend))).first->second;
}

Arguments several(int ranks, const Backend& backend) {
  Arguments all = {"t.toml", "--quiet", set("trainer.num_processes", ranks)};
  all.insert(all.end(), backend.overrides.begin(), backend.overrides.end());
  return all;
}

/// Resumes until the run has ended by itself.
void finish(const Bench& t) {
  const e2e::Result resumed = t.run({"--resume", t.last_run().string(), "--quiet"});
  CAPTURE(resumed.out + resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK(t.runs().size() == 1);
}

std::int64_t steps_so_far(const Bench& t) {
  return store::CheckpointFolder(t.last_run() / "checkpoints").list().front();
}

}  // namespace

TEST_CASE("ranks: the same run twice gives the same weights and metrics to the bit") {
  for (const Backend& backend : backends()) {
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(backend.name);
      CAPTURE(ranks);
      const Bench t(kRich);
      const fs::path run = t.train(ranks, backend);
      CHECK(end_of(run) == uninterrupted(ranks, backend));
    }
    const Bench t(kRich);
    CHECK(weights_hash(t.train(2, backend, {"seed=4"})) != uninterrupted(2, backend).weights);
  }
}

TEST_CASE("replicas and stages: the same bits when run again, and when stopped and resumed") {
  const std::vector<Backend> of_one_process = {{"dp", {"trainer.backend=dp"}},
                                               {"balanced", {"trainer.backend=balanced"}}};
  for (const Backend& backend : of_one_process) {
    for (const int devices : {2, 3}) {
      CAPTURE(backend.name);
      CAPTURE(devices);
      const Bench again(kRich);
      CHECK(end_of(again.train(devices, backend)) == uninterrupted(devices, backend));
      const Bench t(kRich);
      const e2e::Result stopped = t.run(several(devices, backend), [&](pid_t pid) {
        CHECK(t.wait_for_checkpoint());
        kill(pid, SIGTERM);
      });
      CAPTURE(stopped.err);
      if (stopped.status == 0) continue;  // it was faster than the signal
      REQUIRE(stopped.status == 128 + SIGTERM);
      finish(t);
      CHECK(end_of(t.last_run()) == uninterrupted(devices, backend));
    }
  }
}

TEST_CASE(
    "ranks: stopped by SIGTERM anywhere and resumed, the end is that of a run never stopped") {
  for (const Backend& backend : backends()) {
    for (const int ranks : {2, 3, 4}) {
      for (int i = 0; i < repetitions(1, 10); ++i) {
        CAPTURE(backend.name);
        CAPTURE(ranks);
        const Bench t(kRich);
        const int delay = random_number(0, 400);
        const e2e::Result stopped = t.run(several(ranks, backend), [&](pid_t pid) {
          CHECK(t.wait_for_checkpoint());
          sleep_ms(delay);
          kill(pid, SIGTERM);
        });
        CAPTURE(stopped.err);
        CHECK(t.all_gone(1));
        if (stopped.status == 0) continue;  // it was faster than the signal
        REQUIRE(stopped.status == 128 + SIGTERM);
        CHECK(stopped.err.empty());
        finish(t);
        CHECK(end_of(t.last_run()) == uninterrupted(ranks, backend));
      }
    }
  }
}

TEST_CASE(
    "ranks: killed anywhere, one of them or all at once, and resumed, the end is that of a run "
    "never stopped") {
  for (const Backend& backend : backends()) {
    for (const int ranks : {2, 3, 4}) {
      for (int i = 0; i < repetitions(2, 100); ++i) {
        const bool all = i % 2 == 0;
        CAPTURE(backend.name);
        CAPTURE(ranks);
        CAPTURE(all);
        const Bench t(kRich);
        const int delay = random_number(0, 400);
        (void)t.run(several(ranks, backend), [&](pid_t pid) {
          CHECK(t.wait_for_checkpoint());
          sleep_ms(delay);
          const int victim = random_number(0, ranks - 1);
          if (all) kill(pid, SIGKILL);
          for (const Worker& w : t.workers()) {
            if (all || w.rank == victim) kill(w.pid, SIGKILL);
          }
        });
        REQUIRE(t.all_gone(5));
        finish(t);
        CHECK(end_of(t.last_run()) == uninterrupted(ranks, backend));
      }
    }
  }
}

TEST_CASE("ranks: a run stopped again and again within its first epoch still ends the same") {
  const Backend& ddp = backends().front();
  const Bench t(kRich);
  e2e::Result result = t.run(several(3, ddp), [&](pid_t pid) {
    CHECK(t.wait_for_checkpoint());
    kill(pid, SIGTERM);
  });
  for (int i = 0; i < 3 && result.status == 128 + SIGTERM; ++i) {
    const std::int64_t before = steps_so_far(t);
    result = t.run({"--resume", t.last_run().string(), "--quiet"}, [&](pid_t pid) {
      bool seen = false;
      CHECK(wait_for([&] {
        const bool is_over = seen && t.workers().empty();
        seen = seen || !t.workers().empty();
        return is_over || steps_so_far(t) > before;
      }));
      kill(pid, SIGTERM);
    });
  }
  if (result.status != 0) finish(t);
  CHECK(end_of(t.last_run()) == uninterrupted(3, ddp));
}

TEST_CASE(
    "resume: another number of ranks goes on where the samples left off, says what changed, and "
    "trains to the end") {
  const Backend& ddp = backends().front();
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const Bench t(kRich);
    const e2e::Result stopped = t.run(several(2, ddp), [&](pid_t pid) {
      CHECK(t.wait_for_checkpoint());
      kill(pid, SIGTERM);
    });
    REQUIRE(stopped.status == 128 + SIGTERM);
    Arguments arguments = {"--resume", t.last_run().string(), set("trainer.num_processes", ranks)};
    if (ranks == 1) arguments.insert(arguments.end(), {"-trainer.backend", "-trainer.bucket_mb"});
    const e2e::Result resumed = t.run(arguments);
    CAPTURE(resumed.out);
    CAPTURE(resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK(has(resumed.err, "changed: trainer.num_processes was 2, is " + std::to_string(ranks)));
    CHECK(has(resumed.err, "the run used 2 processes and goes on with " + std::to_string(ranks)));
    const Json manifest = manifest_of(t.last_run());
    CHECK(manifest.at("status") == "finished");
    CHECK(manifest.at("epochs") == 3);
    CHECK(manifest.at("ranks").size() == static_cast<std::size_t>(ranks));
    CHECK(manifest.at("metrics").at("val_accuracy").get<double>() > 0.7);  // chance is 0.1
  }
}
