#include "runner/launch/failure.h"

#include <doctest/doctest.h>

#include <csignal>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/fakes/temp_folder.h"

using namespace runner;
using launch::Failure;
using launch::FailureKind;

TEST_CASE("launch: a failure survives its way through JSON") {
  const Failure before{.message = "row 7\nis \"bad\"",
                       .help = "mend it",
                       .exit = 3,
                       .rank = 5,
                       .host = "h2",
                       .kind = FailureKind::collective,
                       .step = 41,
                       .attempt = 2};
  const auto after = launch::failure_from_json(launch::to_json(before));
  REQUIRE(after.has_value());
  CHECK(after->message == before.message);
  CHECK(after->help == before.help);
  CHECK(after->exit == 3);
  CHECK(after->rank == 5);
  CHECK(after->host == "h2");
  CHECK(after->kind == FailureKind::collective);
  CHECK(after->step == 41);
  CHECK(after->attempt == 2);
}

TEST_CASE("launch: what a dying worker wrote is read as far as it makes sense") {
  CHECK_FALSE(launch::failure_from_json("").has_value());
  CHECK_FALSE(launch::failure_from_json("{\"message\": \"row").has_value());
  CHECK_FALSE(launch::failure_from_json("[1, 2]").has_value());
  const auto odd =
      launch::failure_from_json(R"({"message": 7, "help": "h", "exit": "one", "step": 2.5})");
  REQUIRE(odd.has_value());
  CHECK(odd->message.empty());
  CHECK(odd->help == "h");
  CHECK(odd->exit == 1);
  CHECK(odd->step == 0);
}

TEST_CASE("launch: a message that isn't UTF-8 still makes JSON") {
  const auto json = nlohmann::json::parse(launch::to_json(Failure{.message = "file \xff.png"}));
  CHECK(json["message"] == "file \xef\xbf\xbd.png");
}

TEST_CASE("launch: ranks are named by ranges") {
  const std::vector<std::pair<std::vector<std::int64_t>, std::string>> table = {
      {{2}, "rank 2"},
      {{2, 3}, "ranks 2-3"},
      {{0, 1, 2, 5}, "ranks 0-2, 5"},
      {{0, 2, 4, 5, 6}, "ranks 0, 2, 4-6"},
  };
  for (const auto& [ranks, text] : table) CHECK(launch::ranks_text(ranks) == text);
}

TEST_CASE("launch: torchrun's error file has its fields, the time as text") {
  const TempFolder folder;
  const std::int64_t before = std::time(nullptr);
  launch::write_torchelastic_error(folder / "error.json", Failure{.message = "bad", .rank = 3},
                                   /*first=*/true);
  const auto json = nlohmann::json::parse(folder.read("error.json"));
  CHECK(json["message"]["message"] == "bad");
  CHECK(json["message"]["extraInfo"]["rank"] == 3);
  const std::int64_t at = std::stoll(json["message"]["extraInfo"]["timestamp"].get<std::string>());
  CHECK(at >= before);
  CHECK(at <= std::time(nullptr));
  launch::write_torchelastic_error(folder / "no" / "such" / "folder", Failure{},
                                   /*first=*/true);
}

TEST_CASE("launch: a signal is named, one without a name by its number") {
  CHECK(launch::signal_text(SIGKILL) == "signal 9 (SIGKILL)");
  CHECK(launch::signal_text(40) == "signal 40");
}
