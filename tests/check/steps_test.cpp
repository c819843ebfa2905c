#include "runner/check/steps.h"

#include <doctest/doctest.h>

#include <limits>

#include "runner/check/text.h"
#include "runner/check/time_text.h"

using namespace runner;

TEST_CASE("steps: batches of a process cover every sample once, by counting them out") {
  for (const std::int64_t samples : {1, 2, 31, 32, 33, 100, 1437}) {
    for (const std::int64_t replicas : {1, 2, 3, 8}) {
      for (const std::int64_t batch : {1, 7, 32, 2000}) {
        CAPTURE(samples);
        CAPTURE(replicas);
        CAPTURE(batch);
        // Samples are dealt out in turns until each replica has had as many.
        std::int64_t share = 0;
        for (std::int64_t dealt = 0; dealt < samples; dealt += replicas) ++share;
        std::int64_t batches = 0;
        for (std::int64_t taken = 0; taken < share; taken += batch) ++batches;
        CHECK(check::batch_count(samples, replicas, batch, false) == batches);

        const std::int64_t whole = samples % replicas == 0 ? share : share - 1;
        std::int64_t full = 0;
        for (std::int64_t taken = batch; taken <= whole; taken += batch) ++full;
        CHECK(check::batch_count(samples, replicas, batch, true) == full);
      }
    }
  }
}

TEST_CASE("steps: a share of the batches is cut, but not below what it says in decimals") {
  const auto share = [](const char* text, std::int64_t total) {
    return check::parse_limit(text)->of(total);
  };
  CHECK(share("50%", 45) == 22);
  CHECK(share("100%", 45) == 45);
  CHECK(share("10%", 30) == 3);
  CHECK(share("0.1%", 1000) == 1);
  CHECK(share("1%", 45) == 0);
}

TEST_CASE("steps: products of counts don't overflow") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(check::product(6, 7) == 42);
  CHECK(check::product(kMost, 2) == kMost);
  CHECK(check::product(kMost, 0) == 0);
}

TEST_CASE("durations: minutes, hours and days, with the usual bounds") {
  struct Row {
    const char* text;
    std::int64_t seconds;
  };
  for (const Row& row : {Row{"10:00", 600}, Row{"90:30", 5430}, Row{"01:30:00", 5400},
                         Row{"100:00:00", 360000}, Row{"01:02:03:04", 93784}, Row{"0:05", 5}}) {
    CAPTURE(row.text);
    CHECK(check::parse_duration(row.text) == row.seconds);
  }
  for (const char* text : {"", "10", ":10", "10:", "1:2", "00:60", "01:60:00", "01:24:00:00",
                           "-1:00", "1:00:00:00:00", "a:00", "10:0a", "1000000:00", "1 :00"}) {
    CAPTURE(text);
    CHECK_FALSE(check::parse_duration(text).has_value());
  }
}

TEST_CASE("texts: counts agree with their noun") {
  CHECK(check::counted(1, "batch") == "1 batch");
  CHECK(check::counted(2, "batch") == "2 batches");
  CHECK(check::counted(2, "epoch") == "2 epochs");
  CHECK(check::counted(0, "process") == "0 processes");
  CHECK(check::counted(3, "class") == "3 classes");
  CHECK(check::bytes_text(1023) == "1023 B");
  CHECK(check::bytes_text(1536) == "1.5 KiB");
  CHECK(check::bytes_text(std::int64_t{3} << 30U) == "3.0 GiB");
}
