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

TEST_CASE("front: help, version, usage") {
  CHECK(e2e::runner({"--help"}).status == 0);
  CHECK(has(e2e::runner({"--help"}).out, "--print-config"));
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
