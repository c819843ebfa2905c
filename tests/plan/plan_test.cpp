#include "runner/plan/plan.h"

#include <doctest/doctest.h>

#include <sstream>

#include "runner/diag/error.h"
#include "runner/plan/communication.h"
#include "runner/plan/make.h"

using namespace runner;
using plan::Plan;

namespace {

/// A plan with every field away from its default.
Plan full_plan() {
  Plan p;
  p.mode = plan::Mode::test;
  p.name = "t";
  p.experiment = {{"seed", 3},
                  {"optimizer", registry::Value::Table{{"name", "adam"}, {"lr", 1e-3}}},
                  {"model", registry::Value::Table{{"name", "mlp"},
                                                   {"hidden", registry::Value::Array{64, 32}}}}};
  p.backend = "ddp";
  p.precision = "bf16";
  p.devices = {.type = "cuda", .ids = {1, 3}, .note = "id 0 of the mask"};
  p.num_nodes = 2;
  p.processes_per_node = 2;
  p.world_size = 4;
  p.batch_size = 32;
  p.effective_batch = 256;
  p.train_samples = 1437;
  p.validation_samples = 360;
  p.test_samples = 10;
  p.batches_per_epoch = 45;
  p.validation_batches = 12;
  p.steps_per_epoch = 23;
  p.max_epochs = 5;
  p.max_steps = 115;
  p.max_seconds = 60;
  p.loss = "cross_entropy";
  p.metrics = {"accuracy"};
  p.monitor = "val_loss";
  p.monitor_max = true;
  p.parameters = 9610;
  p.flops_per_sample = 19000;
  p.memory.weights = 1;
  p.memory.gradients = 2;
  p.memory.optimizer = 3;
  p.memory.activations = 4;
  p.checkpoint_bytes = 5;
  p.stages = {{"conv1", "relu1", 9000, 600, {1, 2, 3, 4}}, {"fc", "fc", 10000, 9010, {5, 6, 7, 8}}};
  p.balance = 0.95;
  p.device_memory = 80'000'000'000;
  p.inferred = {{"trainer.backend", "\"ddp\"", "2 GPUs", "M001"}};
  p.run_folder = "runs/t/x";
  p.base_folder = "/b";
  p.shared_folder = "/s";
  p.resume_from = "runs/t/x/checkpoints/step-1";
  p.csv_bytes = 9;
  p.command_line = "runner t.toml";
  p.version = "1";
  p.git_commit = "abc";
  p.quiet = true;
  return p;
}

}  // namespace

TEST_CASE("plan: JSON carries every field there and back") {
  const std::string json = plan::to_json(full_plan());
  CHECK(plan::to_json(plan::from_json(json)) == json);
  const std::string empty = plan::to_json(Plan{});
  CHECK(plan::to_json(plan::from_json(empty)) == empty);
  // Nothing of the full plan is at its default, so a field that from_json forgets changes the text.
  CHECK(json != empty);
}

TEST_CASE("plan: whole floats stay floats on their way through JSON") {
  Plan p;
  p.experiment = {{"a", 1.0}, {"b", 1}, {"c", 0.1}, {"d", 1e300}};
  CHECK(registry::Value(plan::from_json(plan::to_json(p)).experiment) ==
        registry::Value(p.experiment));
}

TEST_CASE("plan: what is no plan, or one of another format, is refused") {
  for (const char* text : {"", "{}", "[]", "{\"format\": 1}", "x"}) {
    CHECK_THROWS_AS((void)plan::from_json(text), diag::Error);
  }
  CHECK_THROWS_WITH_AS((void)plan::from_json("{\"format\": 99}"),
                       "a plan of format 99, this program reads format 1", diag::Error);
}

TEST_CASE("plan: the printed plan fits the width and names what was inferred and why") {
  for (const int width : {40, 80, 120}) {
    std::istringstream lines(plan::print(full_plan(), width));
    for (std::string line; std::getline(lines, line);)
      CHECK(line.size() <= static_cast<std::size_t>(width));
  }
  const std::string text = plan::print(full_plan(), 120);
  CHECK(text.find("trainer.backend = \"ddp\": 2 GPUs [M001]") != std::string::npos);
  CHECK(text.find("GPUs 1, 3 on each of 2 nodes, 4 processes, ddp (id 0 of the mask)") !=
        std::string::npos);
  CHECK(text.find("32 a process, effective 256") != std::string::npos);
  CHECK(text.find("conv1 to relu1, 47% of the FLOPs, 600 parameters, about 10 B") !=
        std::string::npos);
  CHECK(text.find("fc, 53% of the FLOPs") != std::string::npos);
  CHECK(text.find("0.9500 by FLOPs") != std::string::npos);
}

TEST_CASE("communication: a ring sends 2 (k - 1) / k of the gradients, and a link takes its time") {
  plan::Plan plan;
  plan.parameters = 1'000'000;
  CHECK(plan::communication(plan).sent_bytes == 0);
  CHECK(plan::communication_text(plan).empty());
  plan.world_size = 8;
  CHECK(plan::communication(plan).gradient_bytes == 4'000'000);
  CHECK(plan::communication(plan).sent_bytes == 7'000'000);
  plan.world_size = 96;
  plan.num_nodes = 12;
  CHECK(plan::communication(plan).sent_bytes == 7'916'667);
  CHECK(plan::communication(plan).seconds_at(12.5e9) == doctest::Approx(6.333e-4).epsilon(1e-3));
  CHECK(plan::communication_text(plan).find("0.6333 ms at 100 Gb/s") != std::string::npos);
  plan.experiment = {{"trainer", registry::Value::Table{{"gradient_compression", "fp16"}}}};
  CHECK(plan::communication(plan).gradient_bytes == 2'000'000);
  plan.experiment.clear();
  plan.precision = "64";
  CHECK(plan::communication(plan).gradient_bytes == 8'000'000);
}
