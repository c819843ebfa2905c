#include "tests/check/check_fixture.h"

using namespace runner;
using check::base;
using check::base_with;
using check::Judged;
using check::Keys;
using registry::Value;
using Array = Value::Array;
using Table = Value::Table;
using Lines = std::vector<std::string>;

namespace {

/// A dataset with a spec of our own making, in the place of the experiment's.
datasets::Dataset made(const datasets::Spec& spec) {
  datasets::Dataset dataset = *datasets::all().find("digits");
  dataset.describe = [spec](const std::any&, const datasets::Context&) { return spec; };
  return dataset;
}

struct Outcome {
  Lines found;
  check::Verdict verdict;
};

Outcome judged_with(const datasets::Dataset& dataset, const Keys& changes = {}) {
  Judged j(base_with(changes));
  diag::Sink sink;
  diag::Sink again;
  // Decoded afresh, since judging fills in what nobody wrote.
  Table values = config::resolved_values(j.experiment);
  for (auto& [section, table] : values) {
    auto* keys = std::get_if<Table>(&table.data);
    if (keys == nullptr) continue;
    std::erase_if(*keys, [&](const auto& pair) {
      const auto origin = j.experiment.origins.find(section + "." + pair.first);
      return origin != j.experiment.origins.end() &&
             origin->second.kind == config::Origin::Kind::inferred;
    });
  }
  config::Experiment experiment = config::decode(values, {}, again);
  experiment.dataset.name = "made";
  experiment.dataset.entry = &dataset;
  Outcome outcome;
  outcome.verdict = check::judge(experiment, {}, {}, sink);
  for (const diag::Diagnostic& d : sink.all()) {
    outcome.found.push_back(std::string(diag::info(d.code).id) + " " + d.message);
  }
  return outcome;
}

datasets::Spec values_spec(bool binary = false) {
  datasets::Spec spec;
  spec.input = {4};
  spec.target = datasets::TargetKind::values;
  spec.target_values = 1;
  spec.binary = binary;
  spec.train_size = 100;
  spec.validation_size = 20;
  return spec;
}

}  // namespace

TEST_CASE("judge: a plain experiment is fine, and what it leaves open is inferred with a reason") {
  const Judged j(base());
  CHECK(j.found().empty());
  CHECK(j.verdict.backend == "none");
  CHECK(j.verdict.device_type == "cpu");
  CHECK(j.verdict.processes_per_node == 1);
  CHECK(j.verdict.loss == "cross_entropy");
  CHECK(j.inferred("loss.name") == "\"cross_entropy\": the targets of 'digits' are 10 classes");
  CHECK(j.inferred("trainer.metrics") == "[\"accuracy\"]: the targets of 'digits' are 10 classes");
  CHECK(j.inferred("checkpoint.monitor") == "\"val_loss\": the dataset has validation samples");
  CHECK(j.inferred("checkpoint.mode") == "\"min\": a smaller val_loss is better");
  CHECK(j.inferred("trainer.backend").empty());
  // What was inferred is part of the experiment now.
  CHECK(j.experiment.loss.name == "cross_entropy");
  CHECK(j.experiment.trainer.metrics == Lines{"accuracy"});
  CHECK(j.experiment.setting("checkpoint.monitor")->value == Value("val_loss"));
}

TEST_CASE("judge: steps follow from samples, batch, accumulation and epochs") {
  // 1437 / 32 = 44.9; 45 / 4 = 11.25.
  const Judged j(base_with({{"trainer.max_epochs", 3}, {"trainer.accumulate", 4}}));
  CHECK(j.verdict.batches_per_epoch == 45);
  CHECK(j.verdict.steps_per_epoch == 12);
  CHECK(j.verdict.total_steps == 36);
  CHECK(j.verdict.validation_batches == 12);  // 360 / 32 = 11.25
  CHECK(Judged(base_with({{"dataset.drop_last", true}})).verdict.batches_per_epoch == 44);
  CHECK(Judged(base_with({{"trainer.max_steps", 7}})).verdict.total_steps == 7);
  CHECK(Judged(base_with({{"trainer.max_steps", 70}})).verdict.total_steps == 45);
  CHECK(Judged(base_with({{"dataset.eval_batch_size", 360}})).verdict.validation_batches == 1);
}

TEST_CASE("judge: several processes share the samples, and each works on batches of its own") {
  const Judged ddp(base_with({{"trainer.num_processes", 2}}));
  CHECK(ddp.found().empty());
  CHECK(ddp.verdict.backend == "ddp");
  CHECK(ddp.inferred("trainer.backend") ==
        "\"ddp\": 2 processes on the CPU and no backend named [M001]");
  CHECK(ddp.verdict.processes_per_node == 2);
  CHECK(ddp.verdict.replicas == 2);
  CHECK(ddp.verdict.batches_per_epoch == 23);  // 719 / 32 = 22.5
  CHECK(ddp.inferred("") ==
        "the last batch of an epoch has 29 samples, split 15, 14 over 2 replicas; none is repeated "
        "or "
        "left out");
  const Judged dp(base_with({{"trainer.gpus", 2}, {"trainer.backend", "dp"}}));
  CHECK(dp.verdict.processes_per_node == 1);
  CHECK(dp.verdict.replicas == 2);
  const Judged nodes(base_with({{"trainer.gpus", 2}, {"trainer.num_nodes", 2}}));
  CHECK(nodes.verdict.processes_per_node == 2);
  CHECK(nodes.verdict.replicas == 4);
  CHECK(nodes.inferred("trainer.backend") == "\"ddp\": 2 nodes and no backend named [M002]");
  const Judged balanced(base_with({{"trainer.gpus", 2}, {"trainer.backend", "balanced"}}));
  CHECK(balanced.verdict.processes_per_node == 1);
  CHECK(balanced.verdict.replicas == 1);
}

TEST_CASE("judge: what rules find points at the key, with a note at each other one") {
  const Judged j(
      base_with({{"trainer.gpus", 2}, {"trainer.backend", "dp"}, {"trainer.precision", 16}}));
  CHECK(j.found() == Lines{"trainer.precision M010 precision 16 can't be used with backend 'dp': "
                           "its replicas share one process and one loss scale"});
  CHECK(j.notes() == Lines{"trainer.backend trainer.backend is \"dp\""});
  CHECK(j.help() == "use backend = \"ddp\", or precision = 32");
  CHECK(j.sink.exit() == diag::Exit::incompatible);
}

TEST_CASE("judge: a rule whose first key isn't written points at one that is") {
  const Judged j(base_with(
      {{"dataset.name", "synthetic"}, {"dataset.train_size", 2}, {"trainer.num_processes", 4}}));
  CHECK(j.found() == Lines{"trainer.num_processes M062 4 replicas can't share 2 training samples"});
  CHECK(j.notes().empty());
}

TEST_CASE("judge: 16 bits on the CPU stay 16 bits, with a warning") {
  const Judged j(base_with({{"trainer.precision", 16}}));
  CHECK(j.found() == Lines{"trainer.precision M031 precision 16 on the CPU works, and is slow"});
  CHECK(j.verdict.precision == "16");
  CHECK(j.sink.errors() == 0);
}

TEST_CASE("judge: precisions are 64, 32, 16 and bf16; others say what to write") {
  for (const Value& value : {Value(64), Value(32), Value(16), Value("bf16")}) {
    CHECK(Judged(base_with({{"trainer.precision", value}})).sink.errors() == 0);
  }
  struct Row {
    Value value;
    const char* help;
  };
  for (const Row& row :
       {Row{8, "write precision = 32, or leave it out"},
        Row{16.0, "write precision = 32, or leave it out"},
        Row{true, "write precision = 32, or leave it out"}, Row{"16", "write precision = 16"},
        Row{"16-mixed", "write precision = 16"}, Row{"fp16", "write precision = 16"},
        Row{"BF16", "write precision = \"bf16\""}, Row{"float64", "write precision = 64"}}) {
    const Judged j(base_with({{"trainer.precision", row.value}, {"trainer.amp_level", "O1"}}));
    CAPTURE(registry::to_toml(row.value));
    // amp_level depends on precision, which is wrong: nothing is said of it.
    CHECK(j.found() ==
          Lines{"trainer.precision C002 'trainer.precision': expected 64, 32, 16 or \"bf16\", "
                "found " +
                registry::to_toml(row.value)});
    CHECK(j.help() == row.help);
  }
}

TEST_CASE("judge: a wrong gpus value is one diagnostic, and no rule adds to it") {
  const Judged j(base_with({{"trainer.gpus", "cuda:0"}, {"trainer.backend", "balanced"}}));
  CHECK(j.found() == Lines{"trainer.gpus G002 entry 0 of gpus: 'cuda:0' is not an id in decimal "
                           "digits"});
}

TEST_CASE("judge: GPUs that aren't there end with the machine's status, never on the CPU") {
  const Judged none(base_with({{"trainer.gpus", 1}}), {.gpus_available = 0});
  CHECK(none.found() == Lines{"trainer.gpus L001 gpus asks for GPUs, and there is none"});
  CHECK(none.sink.exit() == diag::Exit::machine);
  CHECK(none.verdict.device_type == "cuda");
  const Judged few(base_with({{"trainer.gpus", Array{4}}}), {.gpus_available = 4});
  CHECK(few.found() == Lines{"trainer.gpus L002 gpus asks for GPU 4, 4 are available: 0, 1, 2, 3"});
}

TEST_CASE("judge: -1 is all GPUs of a known machine, and says what it doesn't know of another") {
  const Judged known(base_with({{"trainer.gpus", -1}}), {.gpus_available = 4});
  CHECK(known.verdict.gpu_ids == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(known.verdict.backend == "ddp");
  CHECK(known.verdict.processes_per_node == 4);
  const Judged one(base_with({{"trainer.gpus", -1}}), {.gpus_available = 1});
  CHECK(one.verdict.backend == "none");
  const Judged unknown(base_with({{"trainer.gpus", -1}}));
  CHECK(unknown.verdict.all_gpus);
  CHECK(unknown.verdict.gpu_ids.empty());
  CHECK(unknown.inferred("trainer.gpus") ==
        "the number of GPUs isn't known here, so batches and steps are those of one; "
        "--gpus-available N counts with N");
  const Judged text(base_with({{"trainer.gpus", "-1"}}), {.gpus_available = 4});
  CHECK(config::resolved_values(text.experiment) == config::resolved_values(known.experiment));
}

TEST_CASE("judge: several MIG slices can't serve one run, one can") {
  check::MachineView machine;
  machine.gpus_available = 0;
  machine.visible_mask = "MIG-a,MIG-b";
  const Judged two(base_with({{"trainer.gpus", 2}, {"trainer.backend", "ddp"}}), machine);
  CHECK(two.found() == Lines{"trainer.gpus M022 gpus asks for 2 MIG slices, and one process can "
                             "enumerate one MIG device"});
  CHECK(Judged(base_with({{"trainer.gpus", 1}}), machine).found().empty());
}

TEST_CASE("judge: a written loss must take the targets") {
  const Judged j(base_with({{"loss.name", "mse"}}));
  CHECK(j.found() == Lines{"loss.name D002 loss 'mse' doesn't fit dataset 'digits', whose targets "
                           "are 10 classes"});
  CHECK(j.help() == "use loss.name = \"cross_entropy\", or leave [loss] out");

  const auto values = made(values_spec());
  CHECK(judged_with(values).verdict.loss == "mse");
  CHECK(judged_with(values, {{"loss.name", "l1"}}).found.empty());
  CHECK(judged_with(values, {{"loss.name", "cross_entropy"}}).found ==
        Lines{"D002 loss 'cross_entropy' doesn't fit dataset 'made', whose targets are a value"});
  CHECK(judged_with(values, {{"loss.name", "bce"}}).found ==
        Lines{"D002 loss 'bce' doesn't fit dataset 'made', whose targets are a value"});
  const auto binary = made(values_spec(/*binary=*/true));
  const Outcome outcome = judged_with(binary);
  CHECK(outcome.found.empty());
  CHECK(outcome.verdict.loss == "bce");
  CHECK(outcome.verdict.metrics == Lines{"accuracy"});
  CHECK(judged_with(binary, {{"loss.name", "mse"}}).found.empty());
}

TEST_CASE("judge: metrics are checked against the targets, and by name") {
  CHECK(judged_with(made(values_spec())).verdict.metrics == Lines{"mae"});
  struct Row {
    Array metrics;
    std::string found;
  };
  const std::string at = "trainer.metrics ";
  for (const Row& row : std::vector<Row>{
           {{"mae"},
            at + "D003 metric 'mae' needs values, and the targets of dataset 'digits' are "
                 "10 classes"},
           {{"accuracy", "top11"},
            at + "D003 metric 'top11' looks at 11 classes, and the targets of dataset 'digits' are "
                 "10 classes"},
           {{"acc"}, at + "C002 element 0 of metrics: there is no metric 'acc'"},
           {{"accuracy", "val_mae"},
            at + "C002 element 1 of metrics: 'val_mae' is a column, not a metric"},
           {{"loss"}, at + "C002 element 0 of metrics: the loss is always reported"},
           {{"top3", "top3"}, at + "C002 element 1 of metrics: 'top3' is named twice"}}) {
    CHECK(Judged(base_with({{"trainer.metrics", row.metrics}})).found() == Lines{row.found});
  }
  CHECK(Judged(base_with({{"trainer.metrics", Array{"accuracy", "top10"}}})).found().empty());
  CHECK(judged_with(made(values_spec()), {{"trainer.metrics", Array{"accuracy"}}}).found ==
        Lines{"D003 metric 'accuracy' needs classes, and the targets of dataset 'made' are a "
              "value"});
}

TEST_CASE("judge: a monitored column must be one that the run writes") {
  const Judged typo(base_with({{"checkpoint.monitor", "val_acuracy"}}));
  CHECK(typo.found() == Lines{"checkpoint.monitor D004 checkpoint.monitor is 'val_acuracy', and "
                              "this run writes train_loss, val_loss, val_accuracy"});
  CHECK(typo.help() == "did you mean 'val_accuracy'?");
  const Judged other(base_with({{"early_stopping.monitor", "val_top5"},
                                {"early_stopping.patience", 1},
                                {"trainer.max_epochs", 9}}));
  CHECK(other.found().size() == 1);
  CHECK(other.help() == "add \"top5\" to trainer.metrics");

  datasets::Spec blind = values_spec();
  blind.validation_size = 0;
  const Outcome outcome = judged_with(made(blind), {{"checkpoint.monitor", "val_loss"}});
  CHECK(outcome.found ==
        Lines{"D004 checkpoint.monitor is 'val_loss', and this run writes train_loss"});
  CHECK(judged_with(made(blind)).verdict.monitor == "train_loss");
}

TEST_CASE("judge: the mode follows from the metric, and a contradiction is warned of") {
  const Judged j(base_with({{"checkpoint.monitor", "val_accuracy"}}));
  CHECK(j.verdict.monitor == "val_accuracy");
  CHECK(j.verdict.monitor_max);
  CHECK(j.inferred("checkpoint.mode") == "\"max\": a larger val_accuracy is better");
  const Judged against(
      base_with({{"checkpoint.monitor", "val_accuracy"}, {"checkpoint.mode", "min"}}));
  CHECK(against.found() == Lines{"checkpoint.mode D005 checkpoint.mode = 'min' looks for the worst "
                                 "val_accuracy"});
  CHECK(against.sink.errors() == 0);
  CHECK_FALSE(against.verdict.monitor_max);
}

TEST_CASE("judge: early stopping and plateau watch what the checkpoints watch, unless told") {
  const Judged j(base_with({{"checkpoint.monitor", "val_accuracy"},
                            {"early_stopping.patience", 2},
                            {"scheduler.name", "plateau"},
                            {"scheduler.monitor", "val_loss"},
                            {"trainer.max_epochs", 9}}));
  CHECK(j.found().empty());
  CHECK(j.experiment.early_stopping.monitor == "val_accuracy");
  CHECK(j.experiment.early_stopping.mode == "max");
  CHECK(j.inferred("early_stopping.monitor") == "\"val_accuracy\": as checkpoint.monitor");
  CHECK(j.experiment.setting("scheduler.mode")->value == Value("min"));
}

TEST_CASE("judge: a layer that doesn't fit is found at its own line") {
  Keys keys = base_with({{"model.name", "sequential"}});
  keys.emplace_back("model.layers",
                    Array{Table{{"type", "conv2d"}, {"out", 8}, {"kernel", 11}},
                          Table{{"type", "flatten"}}, Table{{"type", "linear"}, {"out", 10}}});
  const Judged j(keys);
  REQUIRE(j.found().size() == 1);
  CHECK(j.found()[0].starts_with("model.layers D001 layer "));
  CHECK_FALSE(j.verdict.graph.has_value());
  CHECK(j.sink.exit() == diag::Exit::incompatible);
}

TEST_CASE("judge: a dataset without training samples is nothing to train on") {
  datasets::Spec empty = values_spec();
  empty.train_size = 0;
  CHECK(judged_with(made(empty)).found ==
        Lines{"D008 nothing to train: dataset 'made' has no training samples"});
}

TEST_CASE("judge: a dataset's own complaint is reported, and nothing that follows from it") {
  datasets::Dataset broken = made({});
  broken.describe = [](const std::any&, const datasets::Context&) -> datasets::Spec {
    throw diag::Error(diag::Exit::invalid, "two targets", "name one");
  };
  CHECK(judged_with(broken, {{"scheduler.name", "plateau"}}).found ==
        Lines{"D006 dataset 'made': two targets"});
  broken.describe = [](const std::any&, const datasets::Context&) -> datasets::Spec {
    throw diag::Error(diag::Exit::failed, "'x.csv', line 3: cut off");
  };
  CHECK(judged_with(broken).found == Lines{"L005 dataset 'made': 'x.csv', line 3: cut off"});
}

TEST_CASE("judge: where sizes aren't known without the data, nothing is claimed of them") {
  datasets::Spec unknown;
  unknown.complete = false;
  unknown.target = datasets::TargetKind::values;
  unknown.target_values = 1;
  const Outcome outcome = judged_with(made(unknown), {{"loss.name", "bce"}});
  CHECK(outcome.found.empty());
  CHECK_FALSE(outcome.verdict.graph.has_value());
  CHECK(outcome.verdict.steps_per_epoch == 0);
  CHECK(outcome.verdict.total_steps == 0);
  CHECK(outcome.verdict.monitor == "val_loss");
}

TEST_CASE("judge: limits leave so many batches, and the plan says of how many") {
  const auto limited = [](const Value& value) {
    return Judged(base_with({{"trainer.limit_train_batches", value}}));
  };
  const Judged one = limited(1);
  CHECK(one.verdict.batches_per_epoch == 1);
  CHECK(one.inferred("trainer.limit_train_batches") == "1 batch of 45");
  CHECK(limited("50%").inferred("trainer.limit_train_batches") == "22 batches of 45");
  CHECK(limited("100%").inferred("trainer.limit_train_batches").empty());
  CHECK(limited(100).verdict.batches_per_epoch == 45);
  const Judged none = limited("1%");
  CHECK(none.found() == Lines{"trainer.limit_train_batches D007 \"1%\" of 45 batches is none"});
  CHECK(none.help() ==
        "the smallest share that keeps a batch is \"2.3%\"; a number of batches is an integer");
  CHECK(limited("2.3%").verdict.batches_per_epoch == 1);
  for (const Value& value : {Value(0), Value(-1), Value("0%"), Value("101%"), Value("50"),
                             Value("-5%"), Value("nan%"), Value(true)}) {
    CAPTURE(registry::to_toml(value));
    CHECK(limited(value).found() ==
          Lines{"trainer.limit_train_batches C002 'trainer.limit_train_batches': expected an "
                "integer, at least 1, or a share like \"50%\", found " +
                registry::to_toml(value)});
  }
  CHECK(limited(0.5).help() == "write the share as \"50%\"");
}

TEST_CASE("judge: overfit_batches trains and validates on the same samples, in their order") {
  const Judged j(base_with({{"trainer.overfit_batches", 2}, {"dataset.eval_batch_size", 48}}));
  CHECK(j.found().empty());
  CHECK(j.verdict.batches_per_epoch == 2);
  CHECK(j.verdict.validation_batches == 2);  // 64 samples in batches of 48
  CHECK_FALSE(j.experiment.data.shuffle);
  CHECK(j.inferred("dataset.shuffle") ==
        "false: overfit_batches = 2 trains on the same batches in each epoch [M003]");
}

TEST_CASE("judge: fast_dev_run is one epoch of one batch, whatever the other ends say") {
  const Judged j(base_with({{"trainer.fast_dev_run", true},
                            {"trainer.max_epochs", 20},
                            {"trainer.min_epochs", 5},
                            {"trainer.accumulate", 4}}));
  CHECK(j.found().empty());
  CHECK(j.verdict.max_epochs == 1);
  CHECK(j.verdict.batches_per_epoch == 1);
  CHECK(j.verdict.validation_batches == 1);
  CHECK(j.verdict.total_steps == 1);
}

TEST_CASE("judge: max_time is a time") {
  CHECK(Judged(base_with({{"trainer.max_time", "01:30:00"}})).verdict.max_seconds == 5400);
  CHECK(Judged(base_with({{"trainer.max_time", "ten minutes"}})).found() ==
        Lines{"trainer.max_time C002 'trainer.max_time': expected \"MM:SS\", \"HH:MM:SS\" or "
              "\"DD:HH:MM:SS\", found the string \"ten minutes\""});
  // The time is wrong, so whether anything ends the run isn't known: no second complaint.
  CHECK(
      Judged(base_with({{"trainer.max_time", "00:00"}, {"trainer.max_epochs", Value()}})).found() ==
      Lines{"trainer.max_time C002 'trainer.max_time': a time of 0 leaves nothing to train"});
}

TEST_CASE("judge: a scheduler without what it needs says what to add") {
  CHECK(Judged(base_with({{"scheduler.name", "linear_warmup"}})).found() ==
        Lines{"scheduler.name C004 'scheduler.steps' is missing, without which 'linear_warmup' has "
              "nothing to do"});
  CHECK(Judged(base_with({{"scheduler.name", "multistep"}})).found() ==
        Lines{"scheduler.name C004 'scheduler.milestones' is missing, without which 'multistep' "
              "has nothing to do"});
}

TEST_CASE("judge: schedules are held against the length of the run") {
  // T40: the ninth and last step is the first with the full rate.
  CHECK(Judged(base_with({{"trainer.accumulate", 5},
                          {"scheduler.name", "linear_warmup"},
                          {"scheduler.steps", 9}}))
            .found()
            .empty());
  CHECK(Judged(base_with({{"trainer.accumulate", 5},
                          {"scheduler.name", "linear_warmup"},
                          {"scheduler.steps", 10}}))
            .found() ==
        Lines{"scheduler.steps M047 the warm-up takes 10 steps, and the run has 9"});
  CHECK(Judged(base_with({{"scheduler.name", "step"}})).found() ==
        Lines{"scheduler.name M048 the scheduler 'step' has its first change at 30 epochs, and the "
              "run has 1"});
  CHECK(Judged(base_with({{"scheduler.name", "cosine"}})).found().empty());
}

TEST_CASE("judge: batch normalisation over single values is refused before it fails in the run") {
  // 1437 = 4 x 359 + 1.
  const Judged j(base_with({{"model.batch_norm", true}, {"dataset.batch_size", 4}}));
  CHECK(j.found() == Lines{"dataset.batch_size M063 layer 'bn1' normalises over the batch, and the "
                           "last batch of an epoch has 1 sample"});
  CHECK(Judged(base_with({{"model.batch_norm", true},
                          {"dataset.batch_size", 4},
                          {"dataset.drop_last", true}}))
            .found()
            .empty());
  CHECK(Judged(base_with({{"model.batch_norm", true},
                          {"dataset.batch_size", 4},
                          {"trainer.limit_train_batches", 10}}))
            .found()
            .empty());
}

TEST_CASE("judge: what is too large for the disk or the GPU is refused, with what would fit") {
  check::MachineView machine;
  machine.gpus_available = 1;
  machine.gpu_memory_bytes = 100'000;
  machine.free_disk_bytes = 1'000;
  const Judged j(base_with({{"trainer.gpus", 1}, {"checkpoint.keep", 3}}), machine);
  REQUIRE(j.found().size() == 2);
  // mlp 64-128-10: 9610 parameters, 38440 bytes.
  CHECK(j.found()[0].starts_with("dataset.batch_size L003 the run needs about "));
  CHECK(j.found()[1] ==
        "checkpoint.keep L004 6 checkpoints of 37.5 KiB need 225.2 KiB, and 1000 B are free");
  CHECK(j.sink.exit() == diag::Exit::machine);
}

TEST_CASE("judge: an experiment with all its defaults written out is judged as before") {
  const std::vector<Keys> changes = {
      {},
      {{"trainer.val_every_n_steps", 10}},
      {{"trainer.overfit_batches", 2}},
      {{"trainer.fast_dev_run", true}},
      {{"trainer.num_processes", 2}},
      {{"optimizer.lr", Value()}, {"scheduler.name", "one_cycle"}},
      {{"early_stopping.patience", 2}, {"trainer.max_epochs", 9}, {"scheduler.name", "plateau"}}};
  for (const Keys& change : changes) {
    const Judged first(base_with(change));
    REQUIRE(first.found().empty());
    Keys all;
    for (const config::Setting& setting : first.experiment.settings) {
      if (setting.value.has_value()) all.emplace_back(setting.key, setting.value);
    }
    const Judged second(all);
    CHECK(second.found() == Lines{});
    CHECK(config::resolved_values(second.experiment) == config::resolved_values(first.experiment));
    CHECK(second.verdict.total_steps == first.verdict.total_steps);
    CHECK(second.verdict.backend == first.verdict.backend);
  }
}
