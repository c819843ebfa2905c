#include "runner/engine/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "runner/diag/error.h"
#include "runner/engine/loss_log.h"
#include "runner/engine/signals.h"
#include "runner/host/environment.h"
#include "runner/report/log.h"
#include "tests/engine/memory_samples.h"

namespace runner::engine {

namespace fs = std::filesystem;
using registry::Value;
using test::MemorySamples;

namespace {

constexpr std::int64_t kSamples = 50;
constexpr std::int64_t kFeatures = 6;

/// Removed with all it holds at the end of a test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "runner-engine-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { fs::remove_all(path_); }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Real time, and a signal at the n-th look at the clock. A loop with a time limit looks once
/// before each step.
class SignallingClock : public host::Clock {
 public:
  explicit SignallingClock(int looks = 0) : looks_left_(looks) {}
  host::Seconds now() const override {
    if (looks_left_ > 0 && --looks_left_ == 0) signal = SIGTERM;
    return host::system_clock().now();
  }
  std::chrono::system_clock::time_point wall_time() const override { return {}; }
  void sleep(host::Seconds) override {}

  mutable std::atomic<int> signal{0};

 private:
  mutable int looks_left_;
};

Value::Table& section(Value::Table& values, std::string_view name) {
  for (auto& [key, value] : values) {
    if (key == name) return std::get<Value::Table>(value.data);
  }
  values.emplace_back(std::string(name), Value::Table{});
  return std::get<Value::Table>(values.back().second.data);
}

/// A small classification run whose settings a test changes before go().
struct Run {
  explicit Run(fs::path run_folder) : folder(std::move(run_folder)) {
    fs::create_directories(folder);
    set("", "seed", 3);
    set("model", "name", "mlp");
    set("dataset", "name", "digits");
    set("dataset", "batch_size", 8);
    set("optimizer", "name", "adam");
    set("loss", "name", "cross_entropy");
    plan.run_folder = folder.string();
    plan.max_epochs = 3;
    plan.validation_batches = 7;
    plan.metrics = {"accuracy"};
    plan.monitor = "val_loss";
    plan.max_seconds = 100000;
  }
  void set(std::string_view in, const std::string& key, Value value) {
    (in.empty() ? values : section(values, in)).emplace_back(key, std::move(value));
  }

  [[nodiscard]] Network make_network(const config::Experiment& experiment) const {
    at::manual_seed(static_cast<std::uint64_t>(experiment.general.seed));
    graph::Builder g({kFeatures});
    auto x = g.relu("relu", g.batch_norm("bn", g.linear("fc1", g.input(), {.out = 16})));
    x = g.linear("fc2", g.dropout("drop", x, 0.3), {.out = spec.target_values + spec.classes});
    const auto dtype = plan.precision == "64" ? at::kDouble : at::kFloat;
    return lower(std::move(g).finish(x), dtype);
  }

  Outcome go(int looks_before_signal = 0, const std::optional<fs::path>& resume = {}) {
    diag::Sink sink;
    const config::Experiment experiment = config::decode(values, {}, sink);
    for (const auto& diagnostic : sink.all()) MESSAGE(diagnostic.message);
    REQUIRE(sink.errors() == 0);
    const std::int64_t batch = experiment.data.batch_size * plan.devices_per_process;
    plan.batches_per_epoch = (samples.size() + batch - 1) / batch;
    const std::int64_t group = experiment.trainer.accumulate;
    plan.steps_per_epoch = (plan.batches_per_epoch + group - 1) / group;
    at::set_num_threads(1);
    Network network = make_network(experiment);
    SignallingClock clock(looks_before_signal);
    report::Progress progress(
        {.mode = report::ProgressMode::quiet}, [](std::string_view) {}, clock);
    std::optional<Snapshot> snapshot;
    if (resume) snapshot = read_checkpoint(*resume);
    Outcome outcome = fit({.plan = plan,
                           .experiment = experiment,
                           .spec = spec,
                           .train = samples,
                           .validation = plan.validation_batches > 0 ? &samples : nullptr,
                           .network = network,
                           .devices = std::vector<at::Device>(
                               static_cast<std::size_t>(plan.devices_per_process), at::kCPU),
                           .group = {},
                           .progress = progress,
                           .clock = clock,
                           .signal = clock.signal},
                          snapshot);
    weights = copy_to_cpu(network.state());
    return outcome;
  }

  fs::path folder;
  Value::Table values;
  plan::Plan plan;
  MemorySamples samples{kSamples, kFeatures};
  datasets::Spec spec = test::classes_spec(kSamples, kFeatures);
  std::vector<NamedTensor> weights;
};

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

using Row = std::map<std::string, std::string>;
std::vector<Row> csv_rows(const fs::path& run) {
  std::istringstream in(bytes_of(run / "metrics.csv"));
  const auto split = [](std::string line) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::vector<std::string> cells;
    std::istringstream stream(line + ",");
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    return cells;
  };
  std::string line;
  std::getline(in, line);
  const auto names = split(line);
  std::vector<Row> rows;
  while (std::getline(in, line)) {
    const auto cells = split(line);
    REQUIRE(cells.size() == names.size());
    rows.emplace_back();
    for (std::size_t i = 0; i < names.size(); ++i) rows.back()[names[i]] = cells[i];
  }
  return rows;
}

void check_same_weights(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].name);
    CHECK(at::equal(a[i].tensor, b[i].tensor));
  }
}

struct Variant {
  std::string_view name;
  std::function<void(Run&)> change;
};

/// Runs in which something besides weights has a state.
std::vector<Variant> variants() {
  return {
      {"plain", [](Run&) {}},
      {"accumulation", [](Run& run) { run.set("trainer", "accumulate", 3); }},
      {"plateau",
       [](Run& run) {
         run.set("scheduler", "name", "plateau");
         run.set("scheduler", "patience", 0);
         run.set("scheduler", "threshold", 0.5);
       }},
      {"one cycle",
       [](Run& run) {
         run.set("scheduler", "name", "one_cycle");
         run.plan.max_steps = 28;
         run.plan.max_epochs = 4;
       }},
      {"early stopping",
       [](Run& run) {
         run.set("early_stopping", "patience", 2);
         run.set("early_stopping", "min_delta", 0.4);
         run.plan.max_epochs = 20;
       }},
      {"fp16",
       [](Run& run) {
         run.plan.precision = "16";
         run.set("trainer", "gradient_clip", 0.5);
       }},
      {"validation by steps, rows of steps",
       [](Run& run) {
         run.set("trainer", "val_every_n_steps", 2);
         run.set("logger", "every_n_steps", 1);
         run.set("checkpoint", "every_n_steps", 3);
       }},
      {"several figures for a step",
       [](Run& run) {
         run.set("trainer", "val_every_n_steps", 7);
         run.set("logger", "every_n_steps", 7);
       }},
      {"two replicas",
       [](Run& run) {
         run.samples = MemorySamples(48, kFeatures);
         run.plan.backend = "dp";
         run.plan.devices_per_process = 2;
         run.plan.max_epochs = 5;
         run.plan.validation_batches = 3;
       }},
  };
}

}  // namespace

TEST_CASE("fit: a run stopped by a signal anywhere and resumed equals one never stopped") {
  for (const Variant& variant : variants()) {
    CAPTURE(variant.name);
    const TemporaryFolder temporary;
    Run straight(temporary.path() / "straight");
    variant.change(straight);
    const Outcome whole = straight.go();
    REQUIRE(whole.signal == 0);
    REQUIRE(whole.last_checkpoint);

    int stops = 0;
    for (const int looks : {4, 7, 10, 14, 19, 26}) {
      CAPTURE(looks);
      Run parts(temporary.path() / std::to_string(looks));
      variant.change(parts);
      const Outcome first = parts.go(looks);
      if (first.signal == 0) continue;  // over before the signal
      ++stops;
      CHECK(first.signal == SIGTERM);
      REQUIRE(first.last_checkpoint);
      at::manual_seed(99);  // whatever a new process would have done
      const Outcome second = parts.go(0, first.last_checkpoint);
      CHECK(second.stopped == whole.stopped);
      CHECK(second.state.step == whole.state.step);
      check_same_weights(straight.weights, parts.weights);
      for (const auto* file : {"model.safetensors", "optimizer.safetensors", "rng.safetensors"}) {
        CAPTURE(file);
        CHECK(bytes_of(*second.last_checkpoint / file) == bytes_of(*whole.last_checkpoint / file));
      }
      CHECK(bytes_of(parts.folder / "metrics.csv") == bytes_of(straight.folder / "metrics.csv"));
    }
    CHECK(stops >= 3);
  }
}

TEST_CASE(
    "fit: a run ended by max_steps within an epoch and resumed with more equals one never ended") {
  const TemporaryFolder temporary;
  Run straight(temporary.path() / "straight");
  const Outcome whole = straight.go();
  for (const int steps : {1, 6, 7, 8, 20}) {
    CAPTURE(steps);
    Run parts(temporary.path() / std::to_string(steps));
    parts.plan.max_steps = steps;
    const Outcome first = parts.go();
    CHECK(first.stopped ==
          (steps == 1 ? "1 step done" : "all " + std::to_string(steps) + " steps done"));
    CHECK(first.epochs == (steps + 6) / 7);
    CHECK(first.state.step == steps);
    CHECK(find_figure(first.figures, "val_loss"));
    parts.plan.max_steps.reset();
    parts.go(0, first.last_checkpoint);
    check_same_weights(straight.weights, parts.weights);
    CHECK(bytes_of(parts.folder / "metrics.csv") == bytes_of(straight.folder / "metrics.csv"));
  }
  CHECK(whole.stopped == "all 3 epochs done");
}

TEST_CASE("fit: the same seed gives the same bits, another seed others, whatever the threads") {
  const TemporaryFolder temporary;
  Run a(temporary.path() / "a"), b(temporary.path() / "b"), c(temporary.path() / "c");
  b.set("dataset", "num_threads", 3);
  c.values.front().second = 4;
  for (Run* run : {&a, &b, &c}) (void)run->go();
  check_same_weights(a.weights, b.weights);
  CHECK_FALSE(at::equal(a.weights[0].tensor, c.weights[0].tensor));
}

TEST_CASE("fit: accumulated groups, the last shorter one too, equal batches of the group's size") {
  // Without batch statistics and dropout, 2 batches of 4 are one of 8; 50 samples leave short ones.
  const TemporaryFolder temporary;
  struct Case {
    std::int64_t small, group, large;
  };
  for (const Case& row : {Case{4, 2, 8}, Case{3, 5, 15}, Case{16, 4, 64}}) {
    CAPTURE(row.group);
    std::vector<std::vector<NamedTensor>> results;
    for (const bool accumulates : {true, false}) {
      diag::Sink sink;
      Run run(temporary.path() / (std::to_string(row.small) + (accumulates ? "a" : "b")));
      run.plan.precision = "64";
      section(run.values, "dataset").back().second = accumulates ? row.small : row.large;
      if (accumulates) run.set("trainer", "accumulate", row.group);
      section(run.values, "optimizer").front().second = "sgd";
      run.plan.validation_batches = 0;
      run.plan.monitor = "train_loss";
      const config::Experiment experiment = config::decode(run.values, {}, sink);
      REQUIRE(sink.errors() == 0);
      const std::int64_t batch = experiment.data.batch_size;
      run.plan.batches_per_epoch = (kSamples + batch - 1) / batch;
      run.plan.steps_per_epoch = (run.plan.batches_per_epoch + experiment.trainer.accumulate - 1) /
                                 experiment.trainer.accumulate;
      at::manual_seed(1);
      graph::Builder g({kFeatures});
      auto x = g.relu("relu", g.linear("fc1", g.input(), {.out = 9}));
      Network network = lower(std::move(g).finish(g.linear("fc2", x, {.out = 3})), at::kDouble);
      SignallingClock clock;
      report::Progress progress(
          {.mode = report::ProgressMode::quiet}, [](std::string_view) {}, clock);
      const Outcome outcome = fit({.plan = run.plan,
                                   .experiment = experiment,
                                   .spec = run.spec,
                                   .train = run.samples,
                                   .network = network,
                                   .devices = {at::kCPU},
                                   .group = {},
                                   .progress = progress,
                                   .clock = clock,
                                   .signal = clock.signal},
                                  std::nullopt);
      CHECK(outcome.state.step == 3 * run.plan.steps_per_epoch);
      results.push_back(copy_to_cpu(network.state()));
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      CHECK(at::allclose(results[0][i].tensor, results[1][i].tensor, 1e-10, 1e-12));
    }
  }
}

TEST_CASE("fit: metrics.csv has a row an epoch, with exact means") {
  const TemporaryFolder temporary;
  Run run(temporary.path() / "run");
  const Outcome outcome = run.go();
  const auto rows = csv_rows(run.folder);
  REQUIRE(rows.size() == 3);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].at("epoch") == std::to_string(i + 1));
    CHECK(rows[i].at("step") == std::to_string(7 * (i + 1)));
    CHECK(rows[i].at("lr") == "0.001");
    CHECK(std::stod(rows[i].at("train_loss")) > 0);
  }
  // The last validation again, all samples at once.
  diag::Sink sink;
  Network network = run.make_network(config::decode(run.values, {}, sink));
  network.load_state(run.weights);
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> all(kSamples);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const at::Tensor inputs = at::empty({kSamples, kFeatures});
  const at::Tensor classes = at::empty({kSamples}, at::kLong);
  run.samples.gather_inputs(all, inputs.mutable_data_ptr<float>());
  run.samples.gather_classes(all, classes.mutable_data_ptr<std::int64_t>());
  const at::Tensor outputs = network.forward(inputs, false);
  const at::Tensor chosen = outputs.log_softmax(1).gather(1, classes.unsqueeze(1));
  CHECK(std::stod(rows.back().at("val_loss")) ==
        doctest::Approx(-chosen.mean().item<double>()).epsilon(1e-5));
  const double right = outputs.argmax(1).eq(classes).sum().item<double>();
  CHECK(std::stod(rows.back().at("val_accuracy")) == doctest::Approx(right / kSamples));
  CHECK(find_figure(outcome.figures, "val_accuracy").value() == doctest::Approx(right / kSamples));
}

TEST_CASE("fit: metrics.csv has one row a step, with all figures of that step") {
  const TemporaryFolder temporary;
  for (const int every : {1, 2, 7}) {
    for (const int last_step : {0, 6, 7, 10, 14}) {
      CAPTURE(every);
      CAPTURE(last_step);
      Run run(temporary.path() / (std::to_string(every) + "-" + std::to_string(last_step)));
      run.set("trainer", "val_every_n_steps", every);
      run.set("logger", "every_n_steps", every);
      run.set("checkpoint", "every_n_steps", every);
      if (last_step > 0) run.plan.max_steps = last_step;
      const std::int64_t steps = run.go().state.step;
      std::int64_t before = 0;
      for (const Row& row : csv_rows(run.folder)) {
        const std::int64_t step = std::stoll(row.at("step"));
        CAPTURE(step);
        CHECK(step > before);
        before = step;
        CHECK(row.at("epoch") == std::to_string((step + 6) / 7));
        CHECK(row.at("step_loss").empty() == (step % every != 0));
        CHECK(row.at("val_loss").empty() == (step % every != 0));
        CHECK(row.at("train_loss").empty() == (step % 7 != 0 && step != steps));
      }
      CHECK(before == steps);
    }
  }
}

TEST_CASE("fit: rows that a run ended by max_steps completed are resumed as they were before") {
  const TemporaryFolder temporary;
  const auto change = [](Run& run) {
    run.set("logger", "every_n_steps", 2);
    run.set("trainer", "val_every_n_steps", 4);
  };
  Run straight(temporary.path() / "straight");
  change(straight);
  (void)straight.go();
  for (const int steps : {3, 4, 6, 7, 8, 14}) {
    CAPTURE(steps);
    Run parts(temporary.path() / std::to_string(steps));
    change(parts);
    parts.plan.max_steps = steps;
    const Outcome first = parts.go();
    CHECK_FALSE(csv_rows(parts.folder).back().at("train_loss").empty());
    parts.plan.max_steps.reset();
    (void)parts.go(0, first.last_checkpoint);
    CHECK(bytes_of(parts.folder / "metrics.csv") == bytes_of(straight.folder / "metrics.csv"));
  }
}

TEST_CASE("fit: the log tells each epoch's figures and each checkpoint") {
  const TemporaryFolder temporary;
  report::log::init({.file = temporary.path() / "runner.log"});
  Run run(temporary.path() / "run");
  run.plan.max_epochs = 2;
  const Outcome outcome = run.go();
  report::log::init({});
  const std::string log = bytes_of(temporary.path() / "runner.log");
  for (const std::string& part :
       {std::string("[info] epoch 1, step 7: train_loss "),
        "[info] epoch 2, step 14: train_loss " +
            report::format_metric(find_figure(outcome.figures, "train_loss").value()),
        "[info] wrote checkpoint '" + outcome.last_checkpoint->string() + "'"}) {
    CAPTURE(part);
    CHECK(log.find(part) != std::string::npos);
  }
}

TEST_CASE("fit: one epoch and one validation are told in the singular") {
  const TemporaryFolder temporary;
  Run run(temporary.path() / "epochs");
  run.plan.max_epochs = 1;
  CHECK(run.go().stopped == "1 epoch done");
  Run impatient(temporary.path() / "validations");
  impatient.set("early_stopping", "patience", 1);
  impatient.set("early_stopping", "min_delta", 100.0);
  CHECK(impatient.go().stopped == "val_loss has not improved for 1 validation");
}

TEST_CASE("signals: a file at its size limit is an error, not the end of the process") {
  const TemporaryFolder temporary;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)catch_signals();
    const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    const int fd = open((temporary.path() / "file").c_str(), O_CREAT | O_WRONLY, 0600);
    if (fd < 0 || write(fd, "a", 1) != 1) _exit(3);
    _exit(write(fd, "b", 1) == -1 && errno == EFBIG ? 0 : 4);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("fit: the best checkpoints by the monitored figure and the last one are kept") {
  const TemporaryFolder temporary;
  Run run(temporary.path() / "run");
  run.plan.max_epochs = 12;
  run.set("checkpoint", "keep", 2);
  run.set("checkpoint", "monitor", "val_accuracy");
  run.set("optimizer", "lr", 0.05);
  const Outcome outcome = run.go();
  std::vector<std::pair<double, std::int64_t>> ranking;
  for (const Row& row : csv_rows(run.folder)) {
    ranking.emplace_back(-std::stod(row.at("val_accuracy")), std::stoll(row.at("step")));
  }
  std::sort(ranking.begin(), ranking.end());
  REQUIRE(outcome.state.best);
  CHECK(outcome.state.best->step == ranking.front().second);
  CHECK(outcome.state.best->epoch == ranking.front().second / 7);
  const store::CheckpointFolder folder(checkpoints_in(run.folder));
  CHECK(folder.linked(store::Link::best) == ranking.front().second);
  CHECK(folder.linked(store::Link::last) == 84);
  CHECK_NOTHROW((void)folder.verify(ranking.front().second));
  CHECK_NOTHROW((void)folder.verify(84));
  CHECK(folder.list().size() <= 4);
}

TEST_CASE("fit: early stopping ends the run, but not before min_epochs") {
  const TemporaryFolder temporary;
  for (const std::int64_t least : {0, 9}) {
    CAPTURE(least);
    Run run(temporary.path() / std::to_string(least));
    run.plan.max_epochs = 30;
    run.set("early_stopping", "patience", 2);
    run.set("early_stopping", "min_delta", 100.0);
    if (least > 0) run.set("trainer", "min_epochs", least);
    const Outcome outcome = run.go();
    CHECK(outcome.stopped == "val_loss has not improved for 2 validations");
    CHECK(outcome.state.epoch == std::max<std::int64_t>(3, least));
  }
}

TEST_CASE("fit: fp16 and bf16 train, and 64 bits keep double weights") {
  const TemporaryFolder temporary;
  for (const std::string precision : {"16", "bf16", "32", "64"}) {
    CAPTURE(precision);
    Run run(temporary.path() / precision);
    run.plan.precision = precision;
    run.plan.max_epochs = 30;
    run.set("optimizer", "lr", 0.02);
    const Outcome outcome = run.go();
    CHECK(find_figure(outcome.figures, "val_loss").value() < 0.6);
    const bool is_double = run.weights[0].tensor.scalar_type() == at::kDouble;
    CHECK(is_double == (precision == "64"));
    CHECK(outcome.state.step + outcome.state.skipped_steps == 7 * 30);
  }
}

TEST_CASE("fit: gradient clipping bounds the step of plain SGD") {
  const TemporaryFolder temporary;
  Run run(temporary.path() / "run");
  section(run.values, "optimizer").front().second = "sgd";
  run.set("optimizer", "lr", 1.0);
  run.set("trainer", "gradient_clip", 1e-3);
  run.plan.max_steps = 1;
  run.plan.precision = "64";
  diag::Sink sink;
  const Network before = run.make_network(config::decode(run.values, {}, sink));
  (void)run.go();
  double squares = 0;
  for (std::size_t i = 0; i < before.parameters().size(); ++i) {
    squares += (run.weights[i].tensor - before.parameters()[i].tensor.detach())
                   .square()
                   .sum()
                   .item<double>();
  }
  CHECK(std::sqrt(squares) == doctest::Approx(1e-3).epsilon(1e-3));
}

TEST_CASE("fit: a loss that isn't finite stops the run and names step, epoch and batch") {
  const TemporaryFolder temporary;
  Run run(temporary.path() / "run");
  run.set("optimizer", "lr", 1e300);
  CHECK_THROWS_WITH_AS((void)run.go(), "the loss is not a number at step 2 (epoch 1, batch 2)",
                       diag::Error);
}

TEST_CASE("fit: regression reports mae and r2") {
  const TemporaryFolder temporary;
  Run run(temporary.path() / "run");
  run.spec = test::values_spec(kSamples, kFeatures);
  section(run.values, "loss").front().second = "mse";
  run.plan.metrics = {"mae", "r2"};
  run.plan.max_epochs = 60;
  run.set("optimizer", "lr", 0.02);
  const Outcome outcome = run.go();
  CHECK(find_figure(outcome.figures, "val_r2").value() > 0.5);
  CHECK(find_figure(outcome.figures, "val_mae").value() < 1);
}

TEST_CASE("checkpoints: a snapshot read back is the same to the bit, odd numbers included") {
  const TemporaryFolder temporary;
  const double odd[] = {0.1, -0.0, INFINITY, 5e-324, 1.7976931348623157e308};
  Snapshot snapshot;
  TrainingState& state = snapshot.state;
  state.step = 12;
  state.epoch = 2;
  state.batch = 3;
  state.lr = odd[0];
  state.csv_row = {"1", "", "0.5"};
  state.losses = {{odd[0], 3}, {odd[4], 5}};
  state.batch_size = 64;
  state.buckets = {{2, 1}, {0}};
  state.elapsed_seconds = odd[3];
  state.ranking = {{odd[1], 7, 1}, {odd[4], 8, 2}};
  state.best = Ranked{odd[2], 9, 3};
  state.early_stopper = components::EarlyStopper::State{-INFINITY, 4, true};
  state.plateau = components::Plateau::State{odd[0], odd[4], 1, 2, true};
  state.precision = {32768, 17};
  snapshot.weights = {
      {"a", at::randn({3, 2})}, {"b", at::randn({}, at::kDouble)}, {"c", at::zeros({}, at::kLong)}};
  snapshot.generators = {{"cpu", at::randint(0, 255, {5056}, at::kByte)}};
  CheckpointWriter writer({.folder = temporary.path(), .plan_json = "{}"});
  writer.submit({snapshot.state, copy_to_cpu(snapshot.weights), {}, snapshot.generators, {}}, {12},
                12);
  writer.wait();
  REQUIRE_FALSE(writer.take_error());
  const Snapshot back = read_checkpoint(writer.path(12));
  CHECK(back.state.step == 12);
  CHECK(back.state.lr == odd[0]);
  CHECK(back.state.csv_row == state.csv_row);
  REQUIRE(back.state.world_size() == 2);
  CHECK(back.state.losses[0].sum == odd[0]);
  CHECK(back.state.losses[1].weight == 5);
  CHECK(back.state.batch_size == 64);
  CHECK(back.state.buckets == state.buckets);
  CHECK(back.state.elapsed_seconds == odd[3]);
  CHECK(std::signbit(back.state.ranking[0].value));
  CHECK(back.state.ranking[1].value == odd[4]);
  CHECK(back.state.best->value == odd[2]);
  CHECK(back.state.early_stopper->best == -INFINITY);
  CHECK(back.state.plateau->cooldown_left == 2);
  CHECK(back.state.precision.good_steps == 17);
  for (const auto& [name, tensor] : snapshot.weights) {
    const auto found = std::find_if(back.weights.begin(), back.weights.end(),
                                    [&](const auto& t) { return t.name == name; });
    REQUIRE(found != back.weights.end());
    CHECK(at::equal(found->tensor, tensor));
  }
  CHECK(at::equal(back.generators[0].tensor, snapshot.generators[0].tensor));
}

TEST_CASE("checkpoints: a failed save arrives in the loop; on_save_error decides what it does") {
  const TemporaryFolder temporary;
  for (const std::string reaction : {"stop", "continue"}) {
    CAPTURE(reaction);
    Run run(temporary.path() / reaction);
    run.set("checkpoint", "on_save_error", reaction);
    std::ofstream(checkpoints_in(run.folder)) << "a file in the way";
    if (reaction == "stop") {
      CHECK_THROWS_AS((void)run.go(), diag::Error);
    } else {
      const Outcome outcome = run.go();
      CHECK(outcome.stopped == "all 3 epochs done");
      CHECK_FALSE(outcome.last_checkpoint);
    }
  }
}

}  // namespace runner::engine
