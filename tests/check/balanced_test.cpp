#include <algorithm>
#include <string_view>

#include "models/model.h"
#include "runner/check/memory.h"
#include "tests/check/check_fixture.h"

using namespace runner;
using check::base_with;
using check::Judged;
using check::Keys;

namespace {

Keys balanced(std::int64_t stages, const Keys& more = {}) {
  Keys keys = base_with({{"trainer.backend", "balanced"}, {"trainer.num_processes", stages}});
  for (const auto& pair : more) {
    std::erase_if(keys, [&pair](const auto& other) { return other.first == pair.first; });
    keys.push_back(pair);
  }
  return keys;
}

/// 10 -> 20 -> 30 -> 2, by hand: 2·in·out + out FLOPs a layer.
graph::Graph three_layers() {
  graph::Builder g({10});
  auto x = g.linear("fc1", g.input(), {.out = 20});
  x = g.linear("fc2", x, {.out = 30});
  x = g.linear("fc3", x, {.out = 2});
  return std::move(g).finish(x);
}

/// The smallest largest FLOPs of any cut, by trying all.
std::int64_t best_of_all_cuts(const graph::Graph& graph, std::size_t first, std::int64_t stages) {
  const auto& layers = graph.layers();
  std::int64_t own = 0;
  if (stages == 1) {
    for (std::size_t i = first; i < layers.size(); ++i) own += layers[i].flops;
    return own;
  }
  std::int64_t best = graph.flops();
  for (std::size_t end = first + 1; end + static_cast<std::size_t>(stages) <= layers.size() + 1;
       ++end) {
    own += layers[end - 1].flops;
    if (own >= best) break;
    best = std::min(best, std::max(own, best_of_all_cuts(graph, end, stages - 1)));
  }
  return best;
}

}  // namespace

TEST_CASE("balanced: every model is cut so that no other cut has a smaller largest stage") {
  for (const std::string_view model : models::all().names()) {
    CAPTURE(model);
    if (model == "sequential") continue;  // its layers are the file's own
    const Keys keys = {{"model.name", std::string(model)},
                       {"dataset.name", "synthetic"},
                       {"dataset.shape", registry::Value::Array{3, 32, 32}}};
    for (const std::int64_t stages : {2, 3}) {
      CAPTURE(stages);
      const Judged j(balanced(stages, keys));
      REQUIRE(j.verdict.graph.has_value());
      REQUIRE(j.verdict.stages.size() == static_cast<std::size_t>(stages));
      std::int64_t flops = 0;
      std::int64_t parameters = 0;
      std::int64_t largest = 0;
      for (const check::PipelineStage& stage : j.verdict.stages) {
        flops += stage.flops;
        parameters += stage.parameters;
        largest = std::max(largest, stage.flops);
      }
      CHECK(flops == j.verdict.graph->flops());
      CHECK(parameters == j.verdict.graph->parameter_count());
      CHECK(largest == best_of_all_cuts(*j.verdict.graph, 1, stages));
      CHECK(j.verdict.balance ==
            doctest::Approx(static_cast<double>(flops) / static_cast<double>(stages * largest)));
    }
  }
}

TEST_CASE("balanced: stages are named by their layers and know what they take") {
  const graph::Graph graph = three_layers();
  const auto pipeline = check::cut(graph, {.optimizer_tensors = 1, .batch_size = 8},
                                   {.stages = 2, .micro_batches = 4});
  REQUIRE(pipeline.has_value());
  REQUIRE(pipeline->stages.size() == 2);
  const check::PipelineStage& last = pipeline->stages[1];
  CHECK(pipeline->stages[0].first_layer == "fc1");
  CHECK(pipeline->stages[0].last_layer == "fc1");
  CHECK(last.first_layer == "fc2");
  CHECK(last.last_layer == "fc3");
  CHECK(last.flops == 30 * (2 * 20 + 1) + 2 * (2 * 30 + 1));
  CHECK(last.parameters == 20 * 30 + 30 + 30 * 2 + 2);
  CHECK(last.memory.weights == 4 * last.parameters);
  CHECK(last.memory.optimizer == 4 * last.parameters);
  // The first stage keeps two micro-batches of two samples (the input, and fc1's output, which fc2
  // keeps), the last one.
  CHECK(pipeline->stages[0].memory.activations == 2 * 2 * 4 * (10 + 20));
  CHECK(last.memory.activations == 1 * 2 * 4 * (30 + 2));
}

TEST_CASE("balanced: the estimate is the largest stage's on GPUs and all stages' on the CPU") {
  const Judged cpu(balanced(2));
  const auto& stages = cpu.verdict.stages;
  REQUIRE(stages.size() == 2);
  CHECK(cpu.verdict.memory.total() == stages[0].memory.total() + stages[1].memory.total());
  const Judged gpu(base_with({{"trainer.backend", "balanced"}, {"trainer.gpus", 2}}));
  CHECK(gpu.verdict.memory.total() == std::max(stages[0].memory.total(), stages[1].memory.total()));
}

TEST_CASE("balanced: GPUs that no cut fits are refused, with the batch that would fit") {
  const Keys keys = base_with({{"trainer.backend", "balanced"},
                               {"trainer.gpus", 2},
                               {"dataset.batch_size", 1000},
                               {"trainer.micro_batches", 2}});
  const std::int64_t whole = Judged(keys).verdict.memory.total();
  const Judged fits(keys, {.gpus_available = 2, .gpu_memory_bytes = whole});
  CHECK(fits.found().empty());
  CHECK(fits.verdict.device_memory == whole);
  const Judged refused(keys, {.gpus_available = 2, .gpu_memory_bytes = whole / 2});
  REQUIRE(refused.found().size() == 1);
  CHECK(refused.found()[0].starts_with("dataset.batch_size L003"));
  const std::string help = refused.help();
  const std::string mark = "the largest batch_size that fits is about ";
  REQUIRE(help.starts_with(mark));
  Keys smaller = keys;
  for (auto& [key, value] : smaller) {
    if (key == "dataset.batch_size")
      value = static_cast<std::int64_t>(std::stoll(help.substr(mark.size())));
  }
  CHECK(Judged(smaller, {.gpus_available = 2, .gpu_memory_bytes = whole / 2}).found().empty());
}

TEST_CASE("balanced: micro-batches are two a stage, and at most a batch has samples") {
  CHECK(Judged(balanced(3)).inferred("trainer.micro_batches") == "6: two for each of the 3 stages");
  CHECK(Judged(balanced(3, {{"dataset.batch_size", 5}})).inferred("trainer.micro_batches") ==
        "5: no more than batch_size = 5");
  const Judged written(balanced(3, {{"trainer.micro_batches", 2}}));
  CHECK(written.inferred("trainer.micro_batches").empty());
  CHECK(written.experiment.trainer.micro_batches == 2);
  CHECK(Judged(check::base()).inferred("trainer.micro_batches").empty());
}

TEST_CASE("balanced: more devices than layers are refused with both numbers") {
  const Judged j(balanced(9));
  REQUIRE(j.found().size() == 1);
  const auto layers = std::to_string(j.verdict.graph->layers().size() - 1);
  CHECK(j.found()[0] == "trainer.backend M066 backend 'balanced' can't cut a model of " + layers +
                            " layers into a part for each of 9 processes on the CPU");
  CHECK(j.verdict.stages.empty());
}

TEST_CASE("balanced: a batch normalisation that sees one sample of a micro-batch is refused") {
  const auto found = [](std::int64_t batch, std::int64_t micro_batches) {
    const Judged j(balanced(2, {{"model.batch_norm", true},
                                {"dataset.batch_size", batch},
                                {"dataset.drop_last", true},
                                {"trainer.micro_batches", micro_batches}}));
    std::string codes;
    for (const auto& d : j.sink.all()) codes += std::string(diag::info(d.code).id) + " ";
    return codes;
  };
  CHECK(found(8, 4) == "M067 ");
  CHECK(found(8, 5).find("M063") != std::string::npos);
  CHECK(found(8, 1).empty());
}
