#include <doctest/doctest.h>

#include "tests/config/config_fixture.h"

using namespace runner;
using namespace runner::config;

TEST_CASE("print-config: reading it back gives the same values") {
  Loading first;
  first.load({"optimizer.lr=1e-6", "trainer.gpus=1,3", "model.hidden=[3]",
              "root=\"a \\\"b\\\" \\u00e4\""});
  REQUIRE(first.found().empty());
  const std::string text = print_config(*first.experiment);
  Loading second(text);
  second.load();
  CHECK(second.found().empty());
  CHECK(registry::Value(resolved_values(*second.experiment)) ==
        registry::Value(resolved_values(*first.experiment)));
  CHECK(text.find("lr = 1e-06") != std::string::npos);
}

TEST_CASE("print-config: every value says where it came from") {
  Loading t("extends = \"base.toml\"\n[optimizer]\nlr = 0.2\n");
  t.files.set("base.toml", kBase);
  t.load({"trainer.max_epochs=5"});
  const std::string text = print_config(*t.experiment);
  const auto line = [&text](const std::string& key) {
    const std::size_t at = text.find("\n" + key + " = ") + 1;
    return text.substr(at, text.find('\n', at) - at);
  };
  CHECK(line("max_epochs").ends_with("# argument 2, over base.toml:9"));
  CHECK(line("lr").ends_with("# t.toml:3, over base.toml:12"));
  CHECK(line("shuffle").ends_with("# default"));
  CHECK(line("seed").ends_with("# base.toml:2"));
}

TEST_CASE("decode: resolved values give the same experiment without any file") {
  Loading t;
  t.load();
  diag::Sink sink;
  const Experiment again = decode(resolved_values(*t.experiment), {}, sink);
  CHECK(sink.all().empty());
  CHECK(registry::Value(resolved_values(again)) == registry::Value(resolved_values(*t.experiment)));
}

TEST_CASE("explain: an unknown key offers the nearest") {
  Loading t;
  t.load();
  CHECK_THROWS_WITH_AS((void)explain_key(*t.experiment, "optimizer.lrr"),
                       "no key 'optimizer.lrr' in this experiment", diag::Error);
}
