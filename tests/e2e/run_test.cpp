// Whole runs, as a person starts, stops and resumes them.
#include <doctest/doctest.h>
#include <sys/mount.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "runner/store/checkpoint.h"
#include "tests/e2e/process.h"
#include "tests/fakes/temp_folder.h"

using namespace runner;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

/// A run with everything in it that must survive a stop: dropout, shuffling, accumulation, a
/// scheduler and batch statistics.
const std::string kRich =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [32]\ndropout = 0.2\nbatch_norm = true\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 32\n"
    "[trainer]\nmax_epochs = 6\naccumulate = 2\nthreads = 1\n"
    "[optimizer]\nname = \"adamw\"\nlr = 1e-3\n"
    "[scheduler]\nname = \"cosine\"\n"
    "[checkpoint]\nevery_n_steps = 5\nkeep = 2\n";

struct Bench {
  TempFolder folder;

  explicit Bench(const std::string& text = kRich) {
    e2e::write_file(folder.path() / "t.toml", text);
  }

  [[nodiscard]] e2e::Result runner(std::vector<std::string> arguments,
                                   std::function<void(pid_t)> meanwhile = {}) const {
    arguments.insert(arguments.begin(), e2e::runner_path());
    return e2e::run({.arguments = std::move(arguments),
                     .environment = {},
                     .folder = folder.path(),
                     .meanwhile = std::move(meanwhile)});
  }
  /// The run folders, oldest first.
  [[nodiscard]] std::vector<fs::path> runs() const {
    return e2e::entries(folder.path() / "runs/t");
  }
  [[nodiscard]] fs::path last_run() const {
    REQUIRE(!runs().empty());
    return runs().back();
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string weights_hash(const fs::path& run) {
  return Json::parse(e2e::read_file(run / "manifest.json"))
      .at("weights_xxh3_128")
      .get<std::string>();
}

/// Column -> values of metrics.csv.
std::map<std::string, std::vector<std::string>> read_csv(const fs::path& file) {
  std::istringstream text(e2e::read_file(file));
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> columns;
  const auto cells = [](std::string line) {
    if (line.ends_with('\r')) line.pop_back();
    std::vector<std::string> result(1);
    for (const char c : line) {
      if (c == ',')
        result.emplace_back();
      else
        result.back() += c;
    }
    return result;
  };
  std::string line;
  std::getline(text, line);
  names = cells(line);
  while (std::getline(text, line)) {
    const auto row = cells(line);
    REQUIRE(row.size() == names.size());
    for (std::size_t i = 0; i < names.size(); ++i) columns[names[i]].push_back(row[i]);
  }
  return columns;
}

/// metrics.csv without the columns that hold times.
std::map<std::string, std::vector<std::string>> timeless(const fs::path& run) {
  auto columns = read_csv(run / "metrics.csv");
  for (const char* name : {"seconds", "time", "samples_per_second", "steps_per_second"})
    columns.erase(name);
  return columns;
}

/// Sends a signal as soon as the run has written a checkpoint (or after `delay`).
std::function<void(pid_t)> signal_after_checkpoint(const Bench& t, int signal,
                                                   std::chrono::milliseconds delay = {}) {
  return [&t, signal, delay](pid_t pid) {
    for (int i = 0; i < 2000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (t.runs().empty()) continue;
      const store::CheckpointFolder folder(t.runs().back() / "checkpoints");
      if (!folder.list().empty()) break;
    }
    std::this_thread::sleep_for(delay);
    kill(pid, signal);
  };
}

std::string reference_hash() {
  static const std::string hash = [] {
    const Bench t;
    const e2e::Result result = t.runner({"t.toml"});
    REQUIRE(result.status == 0);
    return weights_hash(t.last_run());
  }();
  return hash;
}

}  // namespace

TEST_CASE("run: a file becomes a trained model, and everything is left where it is said to be") {
  const Bench t;
  const e2e::Result result = t.runner({"t.toml"});
  CAPTURE(result.out + result.err);
  REQUIRE(result.status == 0);
  const fs::path run = t.last_run();
  CHECK(fs::exists(run / "config.toml"));
  CHECK(fs::exists(run / "plan.json"));
  const auto csv = read_csv(run / "metrics.csv");
  for (const char* column : {"epoch", "step", "train_loss", "val_loss", "val_accuracy", "lr"}) {
    CAPTURE(column);
    CHECK(csv.contains(column));
  }
  CHECK(csv.at("step").back() == std::to_string(23 * 6));
  CHECK(std::stod(csv.at("val_accuracy").back()) > 0.7);  // chance is 0.1
  const Json manifest = Json::parse(e2e::read_file(run / "manifest.json"));
  for (const char* key :
       {"version", "seed", "device", "command_line", "weights_xxh3_128", "status", "stopped"}) {
    CAPTURE(key);
    CHECK(manifest.contains(key));
  }
  CHECK(manifest.at("status") == "finished");
  const store::CheckpointFolder folder(run / "checkpoints");
  CHECK(folder.linked(store::Link::best).has_value());
  CHECK(folder.linked(store::Link::last) == 23 * 6);
  for (const std::int64_t step : folder.list()) CHECK_NOTHROW((void)folder.verify(step));
  // Output to a pipe: lines, no control characters.
  CHECK(has(result.out, "max") == has(result.out, "max"));
  CHECK(std::none_of(result.out.begin(), result.out.end(),
                     [](char c) { return c == '\r' || c == '\x1b'; }));
}

TEST_CASE(
    "run: the same file and seed give the same bits, another seed others, and threads that load "
    "have no say") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet"}).status == 0);
  CHECK(weights_hash(t.last_run()) == reference_hash());
  REQUIRE(t.runner({"t.toml", "--quiet", "dataset.num_threads=3"}).status == 0);
  CHECK(weights_hash(t.last_run()) == reference_hash());
  REQUIRE(t.runner({"t.toml", "--quiet", "seed=4"}).status == 0);
  CHECK(weights_hash(t.last_run()) != reference_hash());
}

TEST_CASE("run: a failure is told once, and kept in the log") {
  const Bench t;
  const e2e::Result result = t.runner({"--quiet", "t.toml", "optimizer.lr=1e300"});
  CHECK(result.status == 1);
  const std::string message = "the loss is not a number";
  CAPTURE(result.err);
  const std::size_t first = result.err.find(message);
  REQUIRE(first != std::string::npos);
  CHECK(result.err.find(message, first + 1) == std::string::npos);
  CHECK(has(e2e::read_file(t.last_run() / "runner.log"), "[error] " + message));
}

TEST_CASE("run: --quiet prints nothing on success") {
  const Bench t;
  const e2e::Result result = t.runner({"--quiet", "t.toml", "trainer.max_epochs=1"});
  CHECK(result.status == 0);
  CHECK(result.out.empty());
  CHECK(result.err.empty());
}

TEST_CASE(
    "stop: SIGINT and SIGTERM save at a step, and the resumed run ends with the bits of one never "
    "stopped") {
  for (const int signal : {SIGINT, SIGTERM}) {
    CAPTURE(signal);
    const Bench t;
    const e2e::Result stopped =
        t.runner({"t.toml", "trainer.max_epochs=6"}, signal_after_checkpoint(t, signal));
    CAPTURE(stopped.out + stopped.err);
    // A fast machine may have finished before the signal came; then there is nothing to resume.
    if (stopped.status == 0) continue;
    REQUIRE(stopped.status == 128 + signal);
    CHECK(e2e::workers_in(t.folder.path()).empty());
    const e2e::Result resumed = t.runner({"--resume", t.last_run().string()});
    CAPTURE(resumed.out + resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK(weights_hash(t.last_run()) == reference_hash());
    CHECK(t.runs().size() == 1);
  }
}

TEST_CASE(
    "T61, T62, T66: killed anywhere and resumed, weights and metrics equal those of one never "
    "stopped") {
  const Bench whole;
  REQUIRE(whole.runner({"t.toml", "--quiet"}).status == 0);
  const auto expected = timeless(whole.last_run());
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    const Bench t;
    (void)t.runner({"t.toml", "--quiet"},
                   signal_after_checkpoint(t, SIGKILL, std::chrono::milliseconds(7 * i)));
    for (int wait = 0; wait < 200 && !e2e::workers_in(t.folder.path()).empty(); ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(e2e::workers_in(t.folder.path()).empty());
    const e2e::Result resumed = t.runner({"--resume", t.last_run().string(), "--quiet"});
    CAPTURE(resumed.out + resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK(weights_hash(t.last_run()) == weights_hash(whole.last_run()));
    CHECK(timeless(t.last_run()) == expected);
  }
}

TEST_CASE("T70: a resumed run may train longer, and every difference is listed") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet", "trainer.max_epochs=2", "scheduler.name=none"}).status ==
          0);
  const e2e::Result longer = t.runner({"--resume", t.last_run().string(), "trainer.max_epochs=4"});
  CAPTURE(longer.out + longer.err);
  REQUIRE(longer.status == 0);
  CHECK(has(longer.err, "changed: trainer.max_epochs was 2, is 4\n"));
  CHECK(read_csv(t.last_run() / "metrics.csv").at("step").back() == std::to_string(23 * 4));
  const e2e::Result other = t.runner({"--resume", t.last_run().string(), "model.hidden=[64]"});
  CHECK(other.status == 3);
  CHECK(has(other.err, "changed: model.hidden was [32], is [64]\n"));
  CHECK(has(other.err, "error: a run can't go on with another model.hidden"));
}

TEST_CASE(
    "T71: resume = \"auto\" starts fresh where there is nothing, and goes on where there is") {
  const Bench t(kRich + "resume = \"auto\"\n");
  const e2e::Result stopped = t.runner({"t.toml", "--quiet"}, signal_after_checkpoint(t, SIGTERM));
  REQUIRE((stopped.status == 143 || stopped.status == 0));
  REQUIRE(t.runner({"t.toml", "--quiet"}).status == 0);
  if (stopped.status == 143) CHECK(t.runs().size() == 1);
  CHECK(weights_hash(t.runs().front()) == reference_hash());
  REQUIRE(t.runner({"t.toml", "--quiet"}).status == 0);
  CHECK(t.runs().size() == (stopped.status == 143 ? 2 : 3));
}

TEST_CASE("T72: a resumed run doesn't read the past again") {
  const Bench t(
      "name = \"t\"\n[model]\nname = \"mlp\"\nhidden = [8]\n[dataset]\nname = \"synthetic\"\nshape "
      "= [4]\nclasses = 2\n"
      "train_size = 64000000\nvalidation_size = 64\nbatch_size = 32\n[trainer]\nmax_steps = "
      "40\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n"
      "[checkpoint]\nevery_n_steps = 20\n");
  const e2e::Result result = t.runner({"t.toml", "--quiet"});
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  const e2e::Result resumed =
      t.runner({"--resume", t.last_run().string(), "trainer.max_steps=41", "--quiet"});
  CAPTURE(resumed.err);
  CHECK(resumed.status == 0);
  CHECK(resumed.seconds < 20);
}

TEST_CASE("T65: early stopping's count goes on after a stop") {
  const std::string config =
      "name = \"t\"\nseed = 1\n[model]\nname = \"mlp\"\nhidden = [8]\n[dataset]\nname = "
      "\"digits\"\n"
      "[trainer]\nmax_epochs = 2\n[optimizer]\nname = \"sgd\"\nlr = "
      "1e-12\n[early_stopping]\npatience = 3\nmin_delta = 0.5\n";
  const Bench t(config);
  REQUIRE(t.runner({"t.toml", "--quiet"}).status == 0);
  const e2e::Result resumed =
      t.runner({"--resume", t.last_run().string(), "trainer.max_epochs=50"});
  CAPTURE(resumed.out + resumed.err);
  REQUIRE(resumed.status == 0);
  // The first validation is the best; three without improvement follow it.
  CHECK(read_csv(t.last_run() / "metrics.csv").at("epoch").size() == 4);
  CHECK(has(resumed.out, "has not improved"));
}

TEST_CASE("T68: keep = -1 keeps all, and the best is the best") {
  const Bench t(kRich);
  REQUIRE(t.runner({"t.toml", "--quiet", "checkpoint.keep=-1", "-checkpoint.every_n_steps",
                    "checkpoint.monitor=val_loss"})
              .status == 0);
  const store::CheckpointFolder folder(t.last_run() / "checkpoints");
  CHECK(folder.list().size() == 6);
  double best = 1e9;
  std::int64_t best_step = 0;
  for (const std::int64_t step : folder.list()) {
    const double loss = folder.verify(step).metrics.at("val_loss");
    if (loss < best) {
      best = loss;
      best_step = step;
    }
  }
  CHECK(folder.linked(store::Link::best) == best_step);
}

TEST_CASE("T59: killed at any moment, every checkpoint under its final name is whole") {
  const Bench t;
  for (int i = 0; i < 6; ++i) {
    const fs::path before = t.runs().empty() ? fs::path() : t.runs().back();
    (void)t.runner(
        {"t.toml", "--quiet", "name=t", "checkpoint.every_n_steps=1", "checkpoint.keep=-1"},
        [&](pid_t pid) {
          std::this_thread::sleep_for(std::chrono::milliseconds(700 + 37 * i));
          kill(pid, SIGKILL);
        });
  }
  int whole = 0;
  for (const fs::path& run : t.runs()) {
    const store::CheckpointFolder folder(run / "checkpoints");
    for (const std::int64_t step : folder.list()) {
      CHECK_NOTHROW((void)folder.verify(step));
      ++whole;
    }
  }
  MESSAGE(whole << " checkpoints verified");
}

TEST_CASE("T73: a checkpoint that isn't one of ours is refused before anything of it is run") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet", "trainer.max_epochs=1"}).status == 0);
  for (const auto& entry : fs::recursive_directory_iterator(t.last_run() / "checkpoints")) {
    if (entry.path().extension() == ".safetensors") {
      e2e::write_file(entry.path(), std::string("\x80\x02"
                                                "cposix\nsystem\nX\x0a\0\0\0touch pwned\x85R.",
                                                40));
    }
  }
  const e2e::Result result = t.runner({"--resume", t.last_run().string()});
  CHECK(result.status == 1);
  CHECK(has(result.err, ".safetensors"));
  CHECK_FALSE(fs::exists(t.folder.path() / "pwned"));
}

TEST_CASE("resume: a damaged checkpoint is named and the one before it is used") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet", "checkpoint.keep=-1"}).status == 0);
  const store::CheckpointFolder folder(t.last_run() / "checkpoints");
  const std::int64_t newest = folder.list().front();
  for (const auto& entry : fs::directory_iterator(folder.path(newest))) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = e2e::read_file(entry.path());
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    e2e::write_file(entry.path(), bytes);
    break;
  }
  const e2e::Result result = t.runner({"--resume", t.last_run().string(), "--quiet"});
  CAPTURE(result.err);
  CHECK(result.status == 0);
  CHECK(has(result.err, folder.path(newest).filename().string()));
  CHECK(weights_hash(t.last_run()) == reference_hash());
}

TEST_CASE("stop: a second SIGINT ends at once, and earlier checkpoints stay whole") {
  const Bench t(
      "name = \"t\"\n[model]\nname = \"resnet\"\ndepth = 18\n[dataset]\nname = "
      "\"synthetic\"\nshape = [3, 64, 64]\nclasses = 10\n"
      "train_size = 100000\nvalidation_size = 0\nbatch_size = 256\n[trainer]\nmax_epochs = "
      "1\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n");
  const auto start = std::chrono::steady_clock::now();
  const e2e::Result result = t.runner({"t.toml", "--quiet"}, [](pid_t pid) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // inside a step of many seconds
    kill(pid, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(pid, SIGINT);
  });
  CHECK(result.status == 130);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(e2e::workers_in(t.folder.path()).empty());
}

TEST_CASE("stop: a runner that is killed takes its worker along") {
  const Bench t(kRich);
  (void)t.runner({"t.toml", "--quiet", "trainer.max_epochs=100000"}, [&](pid_t pid) {
    for (int i = 0; i < 1000 && e2e::workers_in(t.folder.path()).empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(pid, SIGKILL);
  });
  for (int i = 0; i < 200 && !e2e::workers_in(t.folder.path()).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(e2e::workers_in(t.folder.path()).empty());
}

TEST_CASE("run: two runners on one run folder: the second names the first") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet", "trainer.max_epochs=1", "scheduler.name=none"}).status ==
          0);
  const std::string run = t.last_run().string();
  e2e::Result second;
  (void)t.runner({"--resume", run, "trainer.max_epochs=100000", "--quiet"}, [&](pid_t pid) {
    for (int i = 0; i < 1000 && e2e::workers_in(t.folder.path()).empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    second = t.runner({"--resume", run});
    kill(pid, SIGTERM);
  });
  CHECK(second.status == 1);
  CAPTURE(second.err);
  CHECK(has(second.err, "error: "));
  CHECK(second.seconds < 2);
}

TEST_CASE("T93: two runs with a relative root have two folders") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet", "trainer.max_epochs=1"}).status == 0);
  REQUIRE(t.runner({"t.toml", "--quiet", "trainer.max_epochs=1"}).status == 0);
  CHECK(t.runs().size() == 2);
  for (const fs::path& run : t.runs()) CHECK(fs::exists(run / "metrics.csv"));
}

TEST_CASE("T94: output to a file is lines, few of them") {
  const Bench t;
  const e2e::Result result = t.runner({"t.toml", "trainer.max_epochs=200"});
  REQUIRE(result.status == 0);
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') < 80);
  CHECK(std::none_of(result.out.begin(), result.out.end(),
                     [](char c) { return c == '\r' || c == '\x1b'; }));
}

TEST_CASE("T38: fast_dev_run, limit_train_batches and overfit_batches train on what they say") {
  const Bench t;
  struct Row {
    std::vector<std::string> overrides;
    const char* steps;
  };
  for (const Row& row :
       {Row{{"trainer.fast_dev_run=true"}, "1"},
        Row{{"trainer.limit_train_batches=3", "trainer.max_epochs=2", "trainer.accumulate=1"}, "6"},
        Row{{"trainer.limit_train_batches=50%", "trainer.max_epochs=1", "trainer.accumulate=1"},
            "22"},
        Row{{"trainer.overfit_batches=2", "trainer.max_epochs=3", "trainer.accumulate=1"}, "6"},
        Row{{"trainer.max_steps=7"}, "7"}}) {
    std::vector<std::string> arguments = {"t.toml", "--quiet"};
    arguments.insert(arguments.end(), row.overrides.begin(), row.overrides.end());
    CAPTURE(row.overrides[0]);
    const e2e::Result result = t.runner(arguments);
    CAPTURE(result.err);
    REQUIRE(result.status == 0);
    CHECK(read_csv(t.last_run() / "metrics.csv").at("step").back() == row.steps);
  }
}

TEST_CASE("test: --test evaluates the best checkpoint") {
  const Bench t;
  REQUIRE(t.runner({"t.toml", "--quiet"}).status == 0);
  const e2e::Result result = t.runner({"--test", t.last_run().string()});
  CAPTURE(result.out + result.err);
  CHECK(result.status == 0);
  CHECK(has(result.out, "accuracy"));
  CHECK(fs::exists(t.last_run() / "test.json"));
}

TEST_CASE("run: a folder that can't be written is found out before anything starts") {
  const Bench t;
  const e2e::Result proc = t.runner({"t.toml", "root=/proc/runs"});
  CHECK(proc.status == 4);
  CHECK(has(proc.err, "/proc/runs"));
  e2e::write_file(t.folder.path() / "file", "");
  const e2e::Result file = t.runner({"t.toml", "root=file/runs"});
  CHECK(file.status == 4);
}

TEST_CASE(
    "run: a disk that fills while a checkpoint is written ends the run with an error; earlier ones "
    "stay whole") {
  const Bench t;
  const fs::path small = t.folder.path() / "small";
  fs::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0) {
    MESSAGE("SKIPPED: a tmpfs can't be mounted here (needs root)");
    return;
  }
  const e2e::Result result = t.runner(
      {"t.toml", "--quiet", "root=small", "checkpoint.keep=1", "checkpoint.every_n_steps=1",
       "trainer.max_epochs=100000"},
      [&](pid_t) {
        // The disk had room when the run began; something else fills it.
        for (int i = 0; i < 2000; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          if (!fs::exists(small / "t")) continue;
          const auto run = fs::directory_iterator(small / "t")->path();
          if (store::CheckpointFolder(run / "checkpoints").list().size() > 1) break;
        }
        std::ofstream filler(small / "filler", std::ios::binary);
        const std::string block(1 << 16, 'x');
        while (filler.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
        }
      });
  CAPTURE(result.err);
  CHECK(result.status == 1);
  CHECK(has(result.err, "error: "));
  CHECK(has(result.err, "small"));
  for (const auto& run : fs::directory_iterator(small / "t")) {
    const store::CheckpointFolder folder(run.path() / "checkpoints");
    CHECK_FALSE(folder.list().empty());
    for (const std::int64_t step : folder.list()) CHECK_NOTHROW((void)folder.verify(step));
  }
  umount2(small.c_str(), MNT_DETACH);
}

TEST_CASE("run: a device that this LibTorch lacks is one honest line and status 4") {
  const Bench t;
  const e2e::Result result = t.runner({"t.toml", "trainer.backend=tpu"});
  CHECK(result.status == 4);
  CHECK(result.err ==
        "error: backend 'tpu' needs a device of type 'xla', and this LibTorch has none\n");
  CHECK(result.out.empty());
  CHECK(t.runs().empty());
}

TEST_CASE("run: missing data says how to get it, before anything starts") {
  const Bench t;
  const e2e::Result result = t.runner({"t.toml", "dataset.name=mnist", "dataset.root=nowhere"});
  CHECK(result.status == 4);
  CAPTURE(result.err);
  CHECK(has(result.err, "nowhere"));
  CHECK(has(result.err, "help: "));
  CHECK(t.runs().empty());
}
