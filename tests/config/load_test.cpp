#include <doctest/doctest.h>

#include <algorithm>

#include "tests/config/config_fixture.h"

using namespace runner;
using namespace runner::config;
using Lines = std::vector<std::string>;

TEST_CASE("load: a file becomes typed values, and the rest are defaults") {
  Loading t;
  t.load();
  REQUIRE(t.found() == Lines{});
  const Experiment& e = *t.experiment;
  CHECK(e.general.name == "t");
  CHECK(e.general.seed == 1);
  CHECK(e.model.name == "mlp");
  CHECK(e.dataset.name == "digits");
  CHECK(e.data.batch_size == 32);
  CHECK(e.data.shuffle);
  CHECK(e.trainer.max_epochs == 1);
  CHECK_FALSE(e.trainer.backend.has_value());
  CHECK(std::any_cast<const components::Sgd&>(e.optimizer.options).lr == 0.1);
  CHECK(e.scheduler.name == "none");
  CHECK(e.is_set("optimizer.lr"));
  CHECK_FALSE(e.is_set("optimizer.momentum"));
}

TEST_CASE("load: four mistakes are four diagnostics, in the order of the file") {
  Loading t(
      "seed = -1\n[model]\nname = \"mlpp\"\n[dataset]\nname = \"digits\"\nbatch_size = \"many\"\n"
      "[optimizer]\nname = \"sgd\"\nlrr = 0.1\n[trainer]\nmax_epochs = 1\n");
  t.load();
  CHECK(t.found() == Lines{"t.toml:1:8 C002 'seed': expected an integer, 0 to 9007199254740992, "
                           "found the integer -1",
                           "t.toml:3:8 C003 unknown model 'mlpp'",
                           "t.toml:6:14 C002 'dataset.batch_size': expected an integer, 1 to "
                           "1000000000, found the string \"many\"",
                           "t.toml:9:1 C001 unknown key 'lrr' in [optimizer]"});
  CHECK(t.help(1).starts_with("did you mean 'mlp'?"));
  CHECK(t.help(3).starts_with("did you mean 'lr'?"));
}

TEST_CASE("load: a typo is an error in every section") {
  for (const SectionInfo& section : sections()) {
    if (section.name.empty()) continue;
    CAPTURE(section.name);
    std::string text = kBase;
    const std::string header = "[" + std::string(section.name) + "]\n";
    const std::size_t at = text.find(header);
    if (at == std::string::npos) {
      text += header + (section.name == "loss" ? "name = \"mse\"\n" : "") + "zzz_typo = 1\n";
    } else {
      text.insert(at + header.size(), "zzz_typo = 1\n");
    }
    Loading t(text);
    t.load();
    REQUIRE(t.found().size() == 1);
    CHECK(t.found()[0].find("C001 unknown key 'zzz_typo' in [" + std::string(section.name) + "]") !=
          std::string::npos);
  }
}

TEST_CASE("load: an option belongs to the component that reads it") {
  Loading t(kBase + "beta1 = 0.9\n");
  t.load();
  CHECK(t.found() == Lines{"t.toml:13:1 C001 unknown key 'beta1' in [optimizer]"});
  CHECK(t.help().find("the keys of optimizer 'sgd' are name, lr, momentum") != std::string::npos);
}

TEST_CASE("load: keys of other tools name their successor") {
  Loading t(kBase + "learning_rate = 0.1\n");
  t.load();
  CHECK(t.found() == Lines{"t.toml:13:1 C006 'learning_rate' in [optimizer] is called 'lr' here"});
  CHECK(t.help() == "write 'lr'");
}

TEST_CASE("load: a table where a value belongs, and the reverse") {
  Loading t("model = 3\nseed = { a = 1 }\n[dataset]\nname = \"digits\"\n");
  t.load();
  CHECK(t.found() == Lines{"t.toml:1:1 C005 'model' is a table, not an integer",
                           "t.toml:2:1 C005 'seed' is a value, not a table"});
}

TEST_CASE("load: an unknown section offers the nearest one") {
  Loading t(kBase + "[optimzer]\nlr = 1\n");
  t.load();
  CHECK(t.found() == Lines{"t.toml:13:2 C001 unknown section [optimzer]"});
  CHECK(t.help().starts_with("did you mean 'optimizer'?"));
}

TEST_CASE("override: the key's type decides how the value is read") {
  Loading t;
  t.load({"optimizer.lr=1e-6", "model.name=mlp", "trainer.metrics=accuracy,top5",
          "model.hidden=64,32", "trainer.gpus=1,3", "trainer.backend=ddp", "root=\"a b\"", "seed=7",
          "dataset.shuffle=false"});
  REQUIRE(t.found() == Lines{});
  const Experiment& e = *t.experiment;
  CHECK(std::any_cast<const components::Sgd&>(e.optimizer.options).lr == 1e-6);
  CHECK(e.trainer.metrics == std::vector<std::string>{"accuracy", "top5"});
  CHECK(e.trainer.gpus == registry::Value(registry::Value::Array{1, 3}));
  CHECK(e.general.root == "a b");
  CHECK(e.general.seed == 7);
  CHECK_FALSE(e.data.shuffle);
  CHECK(*e.setting("model.hidden")->value.get_if<registry::Value::Array>() ==
        registry::Value::Array{64, 32});
}

TEST_CASE("override: gpus=1 is one GPU and gpus='\"1\"' is GPU 1, as in a file") {
  Loading t;
  t.load({"trainer.gpus=1"});
  CHECK(t.experiment->trainer.gpus == registry::Value(1));
  Loading u;
  u.load({"trainer.gpus=\"1\""});
  CHECK(u.experiment->trainer.gpus == registry::Value("1"));
}

TEST_CASE("override: the component's name is applied first, wherever it stands") {
  Loading t;
  t.load({"optimizer.beta1=0.5", "optimizer.name=adam"});
  REQUIRE(t.found() == Lines{});
  CHECK(std::any_cast<const components::Adam&>(t.experiment->optimizer.options).beta1 == 0.5);
}

TEST_CASE(
    "override: a section that is dropped can be written anew, in the order of the arguments") {
  Loading t;
  t.load({"-optimizer", "optimizer.name=adam", "optimizer.beta1=0.5"});
  REQUIRE(t.found() == Lines{});
  CHECK(std::any_cast<const components::Adam&>(t.experiment->optimizer.options).beta1 == 0.5);
  Loading u;
  u.load({"optimizer.name=adam", "-optimizer.name", "-optimizer.lr"});
  CHECK(u.experiment->optimizer.name == "adam");
}

TEST_CASE("load: a name that can't be a folder's is refused at its place") {
  for (const char* name : {"a/b", ".", "..", ".hidden", ""}) {
    Loading t;
    t.load({("name=" + std::string(name)).c_str()});
    REQUIRE(t.found().size() == 1);
    CHECK(t.found()[0].starts_with("argument 2 C002 'name' can't be the name of a folder"));
  }
}

TEST_CASE("load: each key and value of sweep.grid is judged") {
  Loading t(kBase +
            "[sweep.grid]\n\"optimizer.lr\" = [0.1, -1]\n\"optimizer.lrr\" = [1]\n\"seed\" = 3\n"
            "\"optimizer.name\" = [\"adam\", \"adan\"]\n\"optimizer.beta1\" = [0.5]\n");
  t.load();
  CHECK(t.found() == Lines{"t.toml:14:24 C002 'sweep.grid.\"optimizer.lr\"': element 1: expected a "
                           "number, above 0, found the integer -1",
                           "t.toml:15:1 C001 unknown key 'optimizer.lrr' in [sweep.grid]",
                           "t.toml:16:10 C002 'sweep.grid.seed': expected a list of values",
                           "t.toml:17:29 C002 'sweep.grid.\"optimizer.name\"': element 1: expected "
                           "one of sgd, adam, adamw, rmsprop or "
                           "adagrad, found the string \"adan\""});
}

TEST_CASE("override: mistakes point at the argument") {
  struct Row {
    const char* argument;
    const char* line;
  };
  for (const Row& row : {
           Row{"optimzer.lr=1", "argument 2 C001 unknown section [optimzer]"},
           Row{"optimizer.lrr=1", "argument 2 C001 unknown key 'lrr' in [optimizer]"},
           Row{"seed=08",
               "argument 2 C002 'seed': expected integer, found '08' (not valid TOML: parsing "
               "decimal "
               "integer: leading zeroes are prohibited)"},
           Row{"seed=1 # c",
               "argument 2 C002 'seed': expected integer, found '1 # c' (not valid TOML: parsing "
               "array: "
               "encountered end-of-file)"},
           Row{"seed=1\nname=\"x\"", "argument 2 F005 a control character in the value of 'seed'"},
           Row{"seed=1], x = [2",
               "argument 2 C002 'seed': expected integer, found '1], x = [2' (not valid TOML: "
               "parsing key-value pair: expected a comment or whitespace, saw ',')"},
           Row{"seed=1,2",
               "argument 2 C002 'seed': expected an integer, 0 to 9007199254740992, found an "
               "array"},
           Row{"=1", "argument 2 F005 '' is not a key"},
           Row{"a..b=1", "argument 2 F005 'a..b' is not a key"},
           Row{"seed.x=1", "argument 2 C005 'seed' is an integer and has no keys"},
           Row{"-optimizer.momentum",
               "argument 2 F005 no key 'optimizer.momentum' is written, so it can't be dropped"},
           Row{"trainer.max_epochs=1.5",
               "argument 2 C002 'trainer.max_epochs': expected an integer, at least 1, found "
               "the float 1.5"},
       }) {
    CAPTURE(std::string(row.argument));
    Loading t;
    t.load({row.argument});
    CHECK(t.found() == Lines{row.line});
  }
}

TEST_CASE("override: a later one wins, -key drops, += appends") {
  Loading t;
  t.load({"optimizer.lr=1", "optimizer.lr=2", "-trainer.max_epochs", "trainer.metrics+=accuracy",
          "trainer.metrics+=top3"});
  REQUIRE(t.found() == Lines{});
  CHECK(std::any_cast<const components::Sgd&>(t.experiment->optimizer.options).lr == 2);
  CHECK_FALSE(t.experiment->trainer.max_epochs.has_value());
  CHECK(t.experiment->trainer.metrics == std::vector<std::string>{"accuracy", "top3"});
}

TEST_CASE("override: a value with shell syntax is only text") {
  Loading t;
  t.load({"root=$(touch x);`y`"});
  REQUIRE(t.found() == Lines{});
  CHECK(t.experiment->general.root == "$(touch x);`y`");
}

TEST_CASE(
    "extends: tables merge, later files win, lists are replaced, and the losers are remembered") {
  Loading t("extends = [\"a.toml\", \"sub/b.toml\"]\n[optimizer]\nlr = 0.3\n");
  t.files.set("a.toml", kBase + "momentum = 0.5\n");
  t.files.set("sub/b.toml", "extends = \"c.toml\"\n[optimizer]\nlr = 0.2\n[model]\nhidden = [8]\n");
  t.files.set("sub/c.toml", "[model]\nhidden = [1, 2, 3]\n");
  t.load();
  REQUIRE(t.found() == Lines{});
  const auto& sgd = std::any_cast<const components::Sgd&>(t.experiment->optimizer.options);
  CHECK(sgd.lr == 0.3);
  CHECK(sgd.momentum == 0.5);
  CHECK(*t.experiment->setting("model.hidden")->value.get_if<registry::Value::Array>() ==
        registry::Value::Array{8});
  CHECK(explain_key(*t.experiment, "optimizer.lr") ==
        "optimizer.lr = 0.3\n  from t.toml:3\n  over sub/b.toml:3:6  lr = 0.2\n  over a.toml:12:6  "
        "lr = 0.1\n  " +
            std::string(t.experiment->setting("optimizer.lr")->option->doc) + "\n");
}

TEST_CASE("extends: itself, a missing file, a folder, a wrong type, a table over a value") {
  Loading self("extends = \"t.toml\"\n");
  self.load();
  CHECK(self.found() ==
        Lines{"t.toml:1:11 F003 't.toml' extends itself: it is already being read"});

  Loading missing("extends = [\"no.toml\", \"dir.toml\"]\n");
  missing.files.set("dir.toml/x.toml", "");
  missing.load();
  REQUIRE(missing.found().size() == 2);
  CHECK(missing.found()[0] == "t.toml:1:12 F001 can't read 'no.toml': no such file");
  CHECK(missing.found()[1] == "t.toml:1:23 F001 can't read 'dir.toml': it is a directory");

  Loading number("extends = 3\n");
  number.load();
  CHECK(number.found() == Lines{"t.toml:1:11 C002 'extends': expected a file name or a list of "
                                "file names, found an integer"});

  Loading clash("extends = \"a.toml\"\nseed = { x = 1 }\n");
  clash.files.set("a.toml", kBase);
  clash.load();
  REQUIRE(!clash.found().empty());
  CHECK(clash.found()[0] ==
        "t.toml:2:1 C005 'seed' is a table here and an integer in the file that this one extends");
}

TEST_CASE("extends: a chain of 40 files is refused") {
  Loading t("extends = \"0.toml\"\n");
  for (int i = 0; i < 40; ++i) {
    t.files.set(std::to_string(i) + ".toml", "extends = \"" + std::to_string(i + 1) + ".toml\"\n");
  }
  t.load();
  REQUIRE(t.found().size() == 1);
  CHECK(t.found()[0].find("F003 extends goes deeper than 32 files") != std::string::npos);
}

TEST_CASE(
    "environment: variables fill in, defaults serve, a missing one names key, place and cure") {
  Loading t("root = \"${env:BASE}/x${env:NONE:-y}\"\n" + kBase);
  t.environment.set("BASE", "/data");
  t.load();
  REQUIRE(t.found() == Lines{});
  CHECK(t.experiment->general.root == "/data/xy");

  Loading u("root = \"${env:NOPE}\"\n" + kBase);
  u.load();
  CHECK(u.found() ==
        Lines{"t.toml:1:8 F004 'root' needs the environment variable NOPE, which is not set"});
  CHECK(u.help() == "set it, or give a default: ${env:NOPE:-…}");

  Loading open("root = \"${env:NOPE\"\n" + kBase);
  open.load();
  CHECK(open.found() == Lines{"t.toml:1:8 F004 '${env:' without its '}' in 'root'"});
}

TEST_CASE("load: a seed beyond 53 bits, and nan or inf where a number belongs, are refused") {
  for (const char* bad :
       {"optimizer.lr=nan", "optimizer.lr=inf", "optimizer.lr=-1", "optimizer.lr=0",
        "seed=9223372036854775807", "dataset.batch_size=0", "dataset.batch_size=-4",
        "trainer.accumulate=0", "trainer.accumulate=-1", "trainer.accumulate=1.5",
        "trainer.gradient_clip=-1", "trainer.gradient_clip=0", "trainer.max_steps=0"}) {
    CAPTURE(std::string(bad));
    Loading t;
    t.load({bad});
    REQUIRE(t.found().size() == 1);
    CHECK(t.found()[0].starts_with("argument 2 C002 "));
    CHECK(t.sink.exit() == diag::Exit::invalid);
  }
}
