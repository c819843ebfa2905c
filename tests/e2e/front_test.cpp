// The front's commands as a person types them.
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"
#include "tests/fakes/temp_folder.h"

using namespace runner;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

const std::string kBase =
    "name = \"t\"\nseed = 1\n[model]\nname = \"mlp\"\n[dataset]\nname = \"digits\"\nbatch_size = "
    "32\n"
    "[trainer]\nmax_epochs = 1\n[optimizer]\nname = \"sgd\"\nlr = 0.1\n";

/// Lines to put below a header.
struct Addition {
  std::string header;
  std::string lines;
};

/// A folder with t.toml: the base, with lines added below the headers given.
struct Bench {
  TempFolder folder;

  explicit Bench(std::initializer_list<Addition> additions = {}) {
    std::string text = kBase;
    for (const Addition& addition : additions) {
      const std::size_t at = text.find(addition.header + "\n");
      if (at == std::string::npos) {
        text += addition.header + "\n" + addition.lines + "\n";
      } else {
        text.insert(at + addition.header.size() + 1, addition.lines + "\n");
      }
    }
    e2e::write_file(folder.path() / "t.toml", text);
  }
  [[nodiscard]] e2e::Result runner(std::vector<std::string> arguments,
                                   std::vector<std::string> environment = {}) const {
    return e2e::runner(std::move(arguments), folder.path(), std::move(environment));
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Json plan_of(const e2e::Result& result) {
  const Json json = Json::parse(result.out);
  return json.at("files").at(0).at("plan");
}

}  // namespace

TEST_CASE("T1: a string of one number is that GPU, and the note says how to ask for three") {
  const Bench t({{"[trainer]", "gpus = \"3\""}});
  const e2e::Result result = t.runner({"--check", "--gpus-available", "8", "t.toml"});
  CHECK(result.status == 0);
  CAPTURE(result.out);
  CHECK(has(result.out, "GPU 3 (a string is a list of ids; write 3 for the first three)"));
}

TEST_CASE("T2: -1 and \"-1\" give the same plan, byte for byte") {
  const Bench number({{"[trainer]", "gpus = -1\nbackend = \"ddp\""}});
  const Bench text({{"[trainer]", "gpus = \"-1\"\nbackend = \"ddp\""}});
  const auto check = [](const Bench& t) {
    return plan_of(t.runner({"--check", "--gpus-available", "4", "--format", "json", "t.toml"}));
  };
  Json a = check(number);
  Json b = check(text);
  CHECK(a.at("devices").at("ids") == Json({0, 1, 2, 3}));
  for (Json* plan : {&a, &b}) {
    plan->erase("base_folder");
  }
  CHECK(a.dump() == b.dump());
}

TEST_CASE("T3: on the command line 1 is a count, and \"1\" is GPU 1") {
  const Bench t;
  CHECK(plan_of(t.runner({"--check", "t.toml", "trainer.gpus=1", "--format", "json"}))
            .at("devices")
            .at("ids") == Json({0}));
  CHECK(plan_of(t.runner({"--check", "t.toml", "trainer.gpus=\"1\"", "--format", "json"}))
            .at("devices")
            .at("ids") == Json({1}));
}

TEST_CASE("T4: malformed strings of ids are refused with the piece at fault") {
  for (const char* value : {"0,,1", "+1", "01", "a", "1-3", ""}) {
    CAPTURE(value);
    const Bench t({{"[trainer]", "gpus = \"" + std::string(value) + "\""}});
    const e2e::Result result = t.runner({"--check", "t.toml"});
    CHECK(result.status == 2);
    CHECK(has(result.out, "t.toml:9:8: error[G"));
    CHECK(has(result.out, "1 error"));
  }
}

TEST_CASE("T5: lists and types that are no GPUs are refused, the element named") {
  struct Row {
    const char* value;
    const char* words;
  };
  for (const Row& row :
       {Row{"[0, 0]", "element 1"}, Row{"[true]", "element 0"}, Row{"[1.0]", "element 0"},
        Row{"[0, -1]", "element 1"}, Row{"true", "error[G"}, Row{"1.5", "error[G"},
        Row{"[-1]", "element 0"}, Row{"[]", "error[G"}, Row{"-2", "error[G"}}) {
    CAPTURE(row.value);
    const Bench t({{"[trainer]", "gpus = " + std::string(row.value)}});
    const e2e::Result result = t.runner({"--check", "t.toml"});
    CHECK(result.status == 2);
    CAPTURE(result.out);
    CHECK(has(result.out, row.words));
  }
}

TEST_CASE("T9: several MIG slices in one mask can't serve a backend of several devices") {
  const Bench t({{"[trainer]", "gpus = 2\nbackend = \"ddp\""}});
  const e2e::Result result =
      t.runner({"--check", "--here", "t.toml"}, {"CUDA_VISIBLE_DEVICES=MIG-a,MIG-b"});
  CHECK(result.status == 3);
  CHECK(has(result.out, "MIG"));
}

TEST_CASE("T10: 1e-6 is a float, everywhere") {
  const Bench t({{"[sweep.grid]", "\"optimizer.lr\" = [1e-6]"}});
  const e2e::Result result = t.runner({"--print-config", "t.toml", "optimizer.lr=1e-6"});
  CHECK(result.status == 0);
  CHECK(has(result.out, "\nlr = 1e-06 "));
  CHECK(has(result.out, "grid = { \"optimizer.lr\" = [1e-06] }"));
}

TEST_CASE("T12: an unknown key on the command line points at its argument") {
  const Bench t;
  const e2e::Result result = t.runner({"--check", "t.toml", "optimzer.lr=1"});
  CHECK(result.status == 2);
  CHECK(has(result.out, "argument 2: error[C001]: unknown section [optimzer]"));
  CHECK(has(result.out, "did you mean 'optimizer'?"));
}

TEST_CASE("T15: an unknown option of a model lists the options it has") {
  const Bench t({{"[model]", "hiden = [3]"}});
  const e2e::Result result = t.runner({"--check", "t.toml"});
  CHECK(result.status == 2);
  CHECK(has(result.out, "did you mean 'hidden'? the keys of model 'mlp' are name, hidden"));
}

TEST_CASE("T16: an unknown flag is named, and the nearest one offered") {
  const Bench t;
  for (const char* flag : {"--chek", "--che"}) {
    const e2e::Result result = t.runner({"t.toml", flag});
    CHECK(result.status == 2);
    CHECK(result.err ==
          "error: unknown option '" + std::string(flag) + "'\n  help: did you mean '--check'?\n");
  }
}

TEST_CASE("T17: flags and files in any order give the same result") {
  const Bench t;
  const e2e::Result a = t.runner({"--check", "t.toml"});
  const e2e::Result b = t.runner({"t.toml", "--check"});
  CHECK(a.status == 0);
  CHECK(a.out == b.out);
  CHECK(has(a.out, "t.toml: fine\n"));
}

TEST_CASE("T19: four mistakes are four diagnostics in the order of the file") {
  const Bench t({{"[model]", "hiden = 3"},
                 {"[dataset]", "batch = 1"},
                 {"[trainer]", "acumulate = 2"},
                 {"[optimizer]", "lrr = 1"}});
  const e2e::Result result = t.runner({"--check", "--format", "json", "t.toml"});
  CHECK(result.status == 2);
  const Json json = Json::parse(result.out);
  std::vector<int> lines;
  for (const Json& d : json.at("files").at(0).at("diagnostics"))
    lines.push_back(d.at("at").at("line").get<int>());
  CHECK(lines.size() == 4);
  CHECK(std::is_sorted(lines.begin(), lines.end()));
}

TEST_CASE("T20: an argument wins over the file, wherever it stands, and the comment says so") {
  const Bench t;
  const e2e::Result result = t.runner({"--print-config", "trainer.max_epochs=5", "t.toml"});
  CHECK(result.status == 0);
  CHECK(has(result.out, "\nmax_epochs = 5 "));
  CHECK(has(result.out, "# argument 1, over t.toml:9\n"));
}

TEST_CASE("T21: --explain KEY FILE lists where a value came from and what lost") {
  const Bench t;
  e2e::write_file(t.folder.path() / "c.toml", "extends = \"t.toml\"\n[optimizer]\nlr = 0.5\n");
  const e2e::Result result = t.runner({"--explain", "optimizer.lr", "c.toml"});
  CHECK(result.status == 0);
  CHECK(has(result.out, "optimizer.lr = 0.5\n  from c.toml:3\n  over t.toml:"));
}

TEST_CASE("T28: a word that isn't one of the choices lists them") {
  const Bench t({{"[scheduler]", "name = \"step\"\ninterval = \"steps\""}});
  const e2e::Result result = t.runner({"--check", "t.toml"});
  CHECK(result.status == 2);
  CHECK(has(result.out, "expected one of"));
  CHECK(has(result.out, "did you mean 'step'?"));
}

TEST_CASE("T29: limit_train_batches = 1 is one batch, and the plan says of how many") {
  const Bench t({{"[trainer]", "limit_train_batches = 1"}});
  const e2e::Result result = t.runner({"--plan", "t.toml"});
  CHECK(result.status == 0);
  CAPTURE(result.out);
  CHECK(has(result.out, "1 batch of 45"));
}

TEST_CASE("T30: a check is a matter of milliseconds") {
  const Bench t;
  double best = 1;
  for (int i = 0; i < 5; ++i) best = std::min(best, t.runner({"--check", "t.toml"}).seconds);
  // The figure itself is measured by the benchmarks; this catches a check that loads what it must
  // not.
  CHECK(best < 0.25);
}

TEST_CASE("T32: dp + 16 is refused as a combination, with reason and two ways out") {
  const Bench t({{"[trainer]", "backend = \"dp\"\nprecision = 16\ngpus = 2"}});
  const e2e::Result result = t.runner({"--check", "t.toml"});
  CHECK(result.status == 3);
  CAPTURE(result.out);
  CHECK(has(result.out, "error[M"));
  CHECK(has(result.out, "ddp"));
  CHECK(has(result.out, "precision"));
}

TEST_CASE("T45: nothing to train is an error") {
  const Bench steps({{"[trainer]", "max_steps = 0"}});
  CHECK(steps.runner({"--check", "t.toml"}).status == 2);
  TempFolder folder;
  e2e::write_file(folder.path() / "t.toml",
                  "[model]\nname = \"mlp\"\n[dataset]\nname = \"synthetic\"\ntrain_size = "
                  "0\n[trainer]\nmax_epochs = 1\n");
  CHECK(e2e::runner({"--check", "t.toml"}, folder.path()).status == 2);
}

TEST_CASE("T92: gpus=1,3 is the list") {
  const Bench t;
  CHECK(plan_of(t.runner({"--check", "t.toml", "trainer.gpus=1,3", "--format", "json"}))
            .at("devices")
            .at("ids") == Json({1, 3}));
}

TEST_CASE("front: GPUs on a machine without any end with status 4, never on the CPU") {
  const Bench t;
  for (const char* gpus : {"trainer.gpus=1", "trainer.gpus=-1", "trainer.gpus=[0]"}) {
    const e2e::Result result = t.runner({"--check", "--gpus-available", "0", "t.toml", gpus});
    CHECK(result.status == 4);
    CHECK(has(result.out, "error[L"));
  }
}

TEST_CASE("front: several files are judged in one call, with a total and the gravest status") {
  const Bench t;
  e2e::write_file(t.folder.path() / "bad.toml", "sed = 1\n" + kBase);
  const e2e::Result result = t.runner({"--check", "t.toml", "bad.toml"});
  CHECK(result.status == 2);
  CHECK(has(result.out, "t.toml: fine\n"));
  CHECK(has(result.out, "2 files, 1 bad one: 1 error, 0 warnings\n"));
}

TEST_CASE("front: every shipped config checks clean") {
  std::vector<std::string> arguments = {"--check"};
  for (const auto& entry : fs::directory_iterator(e2e::source_path("configs")))
    arguments.push_back(entry.path().string());
  REQUIRE(arguments.size() > 5);
  const e2e::Result result = e2e::runner(arguments);
  CAPTURE(result.out);
  CHECK(result.status == 0);
}

TEST_CASE("front: --print-config fed back gives the same configuration") {
  for (const auto& entry : fs::directory_iterator(e2e::source_path("configs"))) {
    CAPTURE(entry.path().string());
    const TempFolder folder;
    const e2e::Result first = e2e::runner({"--print-config", entry.path().string()}, folder.path());
    REQUIRE(first.status == 0);
    e2e::write_file(folder.path() / "again.toml", first.out);
    const Json a =
        plan_of(e2e::runner({"--check", "--format", "json", entry.path().string()}, folder.path()));
    const Json b =
        plan_of(e2e::runner({"--check", "--format", "json", "again.toml"}, folder.path()));
    CHECK(a.at("experiment") == b.at("experiment"));
  }
}

TEST_CASE("front: everything that is listed is described") {
  for (const char* catalog :
       {"models", "datasets", "optimizers", "schedulers", "losses", "layers"}) {
    const e2e::Result list = e2e::runner({"--list", catalog});
    REQUIRE(list.status == 0);
    std::istringstream lines(list.out);
    int described = 0;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      if (line.empty() || line[0] == ' ' || line[0] == '-' || name == catalog) continue;
      CAPTURE(name);
      CHECK(e2e::runner({"--describe", name}).status == 0);
      ++described;
    }
    CHECK(described > 1);
  }
  CHECK(e2e::runner({"--describe", "model/lenet"}).status == 0);
  CHECK(e2e::runner({"--describe", "trainer"}).status == 0);
  const e2e::Result unknown = e2e::runner({"--describe", "model/lennet"});
  CHECK(unknown.status == 2);
  CHECK(has(unknown.err, "did you mean 'lenet'?"));
}

// ---- who started this process ------------------------------------------------------------------

namespace {

/// The only task of `srun -N1 -n1` in job 12.
const std::vector<std::string> kStep = {
    "SLURM_JOB_ID=12",        "SLURM_JOB_NAME=bash",    "SLURM_STEP_ID=0",
    "SLURM_PROCID=0",         "SLURM_LOCALID=0",        "SLURM_NODEID=0",
    "SLURM_NTASKS=1",         "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_TASKS_PER_NODE=1",
    "SLURM_STEP_NODELIST=n1", "SLURMD_NODENAME=n1"};

}  // namespace

TEST_CASE("T77: inside a SLURM step the node's GPUs are SLURM's number, however few a task sees") {
  const Bench t({{"[trainer]", "gpus = 4\nbackend = \"ddp\""}});
  std::vector<std::string> environment = kStep;
  environment.emplace_back("CUDA_VISIBLE_DEVICES=none");
  CHECK(t.runner({"--check", "--here", "t.toml"}, environment).status == 4);
  environment.emplace_back("SLURM_GPUS_ON_NODE=4");
  const e2e::Result result =
      t.runner({"--check", "--here", "--format", "json", "t.toml"}, environment);
  CHECK(result.status == 0);
  CHECK(plan_of(result).at("devices").at("ids") == Json({0, 1, 2, 3}));
  CHECK(plan_of(result).at("world_size") == 4);
  // Outside a step the number is another one's.
  CHECK(t.runner({"--check", "--here", "t.toml"},
                 {"CUDA_VISIBLE_DEVICES=none", "SLURM_GPUS_ON_NODE=4"})
            .status == 4);
}

TEST_CASE("T79: the plan says which launcher started this, and a shell of SLURM is none") {
  const Bench t;
  const e2e::Result step = t.runner({"--plan", "--here", "t.toml"}, kStep);
  CHECK(step.status == 0);
  CHECK(has(step.out, "SLURM step 12.0, task 0 of 1 on n1"));
  CHECK(has(t.runner({"--check", "--here", "t.toml"}, kStep).out,
            "  note: SLURM step 12.0, task 0 of 1 on n1\n"));
  const e2e::Result shell =
      t.runner({"--plan", "--here", "t.toml"}, {"SLURM_JOB_ID=12", "SLURM_PROCID=0"});
  CHECK(shell.status == 0);
  CHECK(has(shell.out, "in a shell of SLURM job 12"));
  CHECK_FALSE(has(t.runner({"--plan", "t.toml"}, kStep).out, "SLURM"));
}

TEST_CASE("T80: without a launcher's variables there is no line about launchers") {
  const Bench t;
  for (const char* command : {"--check", "--plan"}) {
    const e2e::Result result = t.runner({command, "--here", "t.toml"});
    CHECK(result.status == 0);
    CHECK_FALSE(has(result.out + result.err, "SLURM"));
    CHECK_FALSE(has(result.out + result.err, "RANK"));
  }
}

TEST_CASE(
    "D13: variables of a launcher that make no sense end it with 2 and their name and value") {
  const Bench t;
  struct Row {
    std::vector<std::string> environment;
    const char* words;
  };
  for (const Row& row : {Row{{"RANK=-1"}, "RANK is '-1'"}, Row{{"RANK=abc"}, "RANK is 'abc'"},
                         Row{{"WORLD_SIZE=0"}, "WORLD_SIZE is '0'"},
                         Row{{"RANK=4", "WORLD_SIZE=4"}, "RANK is 4 and WORLD_SIZE is 4"},
                         Row{{"MASTER_PORT=70000"}, "MASTER_PORT is '70000'"},
                         Row{{"MASTER_ADDR="}, "MASTER_ADDR is ''"},
                         Row{{"SLURM_NODELIST=n[1-"}, "SLURM_NODELIST is 'n[1-'"}}) {
    CAPTURE(row.words);
    const e2e::Result result = t.runner({"--check", "--here", "t.toml"}, row.environment);
    CHECK(result.status == 2);
    CHECK(has(result.err, std::string("error: ") + row.words));
    CHECK(has(result.err, "\n  help: "));
    CHECK(result.seconds < 5);  // 1 s without the sanitizers
    // Judging a file for no machine in particular asks nothing of this one.
    CHECK(t.runner({"--check", "t.toml"}, row.environment).status == 0);
  }
}

TEST_CASE("front: the flags of a node started by hand are checked before anything else") {
  const Bench t;
  struct Row {
    std::vector<std::string> flags;
    const char* words;
  };
  for (const Row& row : {Row{{"--node-rank", "-1"}, "--node-rank takes 0 to 65535, not -1"},
                         Row{{"--node-rank", "65536"}, "--node-rank takes 0 to 65535, not 65536"},
                         Row{{"--node-rank", "one"}, "'--node-rank'"},
                         Row{{"--master-port", "0"}, "--master-port takes 1 to 65535, not 0"},
                         Row{{"--master-port=70000"}, "--master-port takes 1 to 65535, not 70000"},
                         Row{{"--master-addr", "n1:29500"}, "--master-addr is 'n1:29500'"},
                         Row{{"--master-adr", "n1"}, "did you mean '--master-addr'?"}}) {
    CAPTURE(row.words);
    std::vector<std::string> arguments = {"--check", "t.toml"};
    arguments.insert(arguments.end(), row.flags.begin(), row.flags.end());
    const e2e::Result result = t.runner(arguments);
    CHECK(result.status == 2);
    CAPTURE(result.err);
    CHECK(has(result.err, row.words));
  }
  const e2e::Result fine = t.runner({"--plan", "--here", "t.toml", "--node-rank", "1",
                                     "--master-addr", "10.0.0.7", "--master-port", "29500"});
  CHECK(fine.status == 0);
  CHECK(has(fine.out, "by hand, node 1, meeting at 10.0.0.7:29500"));
}

TEST_CASE("front: help, version, usage") {
  CHECK(e2e::runner({"--help"}).status == 0);
  CHECK(has(e2e::runner({"--help"}).out, "--print-config"));
  CHECK(has(e2e::runner({"--help"}).out, "--node-rank N"));
  CHECK(e2e::runner({"--version"}).out.starts_with("runner "));
  CHECK(e2e::runner({}).status == 2);
  CHECK(e2e::runner({"--check"}).status == 2);
  CHECK(e2e::runner({"--check", "--plan", "x.toml"}).status == 2);
  CHECK(e2e::runner({"--format", "yaml", "--check", "x.toml"}).status == 2);
}

TEST_CASE("front: --summary prints layers, shapes and totals") {
  const e2e::Result result =
      e2e::runner({"--summary", e2e::source_path("configs/fashion_lenet.toml")});
  CHECK(result.status == 0);
  CHECK(has(result.out, "61,706"));
}

TEST_CASE("front: docs/matrix.md is what --matrix prints") {
  const e2e::Result result = e2e::runner({"--matrix", "--format", "markdown"});
  INFO("regenerate with: build/runner --matrix --format markdown > docs/matrix.md");
  CHECK(result.out == e2e::read_file(e2e::source_path("docs/matrix.md")));
}

TEST_CASE("front: every code is explained") {
  const e2e::Result result = e2e::runner({"--explain", "C001"});
  CHECK(result.status == 0);
  CHECK(has(result.out, "C001"));
  CHECK(e2e::runner({"--explain", "Z001"}).status == 2);
}
