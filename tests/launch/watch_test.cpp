// The judgement over all ranks, with ends and heartbeats told by hand.
#include "runner/launch/watch.h"

#include <doctest/doctest.h>

#include <csignal>

using namespace runner;
using namespace std::chrono_literals;
using host::Phase;
using launch::Failure;
using launch::FailureKind;
using launch::RankEnd;
using launch::Sign;
using launch::Watch;
using launch::WatchTime;

namespace {

/// Two ranks on each of h1, h2, … waiting 10 s for each other and 60 s at the start.
Watch watch_of(std::size_t ranks, bool cuda = false) {
  launch::WatchSettings settings{
      .hosts = {}, .timeout = 10s, .start_timeout = 60s, .attempt = 0, .cuda = cuda};
  for (std::size_t i = 0; i < ranks; ++i) settings.hosts.push_back("h" + std::to_string(i / 2 + 1));
  return Watch(settings);
}

Sign training(std::int64_t step) { return {.beats = step, .step = step, .phase = Phase::training}; }

void all_in_step(Watch& watch, std::int64_t ranks, std::int64_t step, WatchTime now = 0ms) {
  for (std::int64_t i = 0; i < ranks; ++i) watch.sign(i, training(step), now);
}

/// A look at heartbeats that are these.
void look(Watch& watch, const std::vector<Sign>& signs, WatchTime now) {
  for (std::size_t i = 0; i < signs.size(); ++i)
    watch.sign(static_cast<std::int64_t>(i), signs[i], now);
  watch.look(now);
}

RankEnd exited(std::int64_t rank, int code, const Sign& last) {
  return {.rank = rank, .status = code << 8, .record = {}, .last = last};
}

RankEnd failed(std::int64_t rank, const std::string& message, FailureKind kind, const Sign& last,
               int code = 1) {
  RankEnd end = exited(rank, code, last);
  end.record = Failure{.message = message, .help = {}, .exit = code, .kind = kind};
  return end;
}

RankEnd died(std::int64_t rank, int signal, const Sign& last) {
  return {.rank = rank, .status = signal, .record = {}, .last = last};
}

const Sign kDone{.beats = 50, .step = 50, .phase = Phase::done};

std::string message(const Watch& watch) {
  return watch.failure() ? watch.failure()->message : "none";
}

}  // namespace

TEST_CASE("watch: ranks that are done are a success, one that leaves early with 0 is not") {
  Watch good = watch_of(2);
  good.ended(exited(0, 0, kDone), 1s);
  CHECK_FALSE(good.all_ended());
  good.ended(exited(1, 0, kDone), 1s);
  CHECK(good.all_ended());
  CHECK(good.exit_status() == 0);
  CHECK_FALSE(good.must_kill());

  Watch early = watch_of(3);
  all_in_step(early, 3, 7);
  early.ended(exited(2, 0, training(7)), 1s);
  CHECK(early.must_kill());
  CHECK(message(early) == "rank 2 (on h2) ended early, with status 0");
  CHECK(early.exit_status() == 1);
  CHECK(early.may_restart());

  Watch alone = watch_of(1);
  alone.ended(exited(0, 0, Sign{}), 1s);
  CHECK(alone.exit_status() == 0);
}

TEST_CASE("watch: the first failure of a rank's own ends the run, what follows is a consequence") {
  Watch watch = watch_of(4);
  all_in_step(watch, 4, 41);
  watch.ended(failed(3, "row 7 is bad", FailureKind::own, training(41)), 5s);
  CHECK(watch.must_kill());
  watch.ended(failed(0, "another", FailureKind::own, training(41)), 5s);
  watch.ended(died(1, SIGKILL, training(41)), 5s);
  watch.ended(died(2, SIGKILL, training(41)), 5s);
  CHECK(watch.all_ended());
  REQUIRE(watch.failure().has_value());
  CHECK(watch.failure()->message == "rank 3 (on h2): row 7 is bad");
  CHECK(watch.failure()->rank == 3);
  CHECK(watch.failure()->host == "h2");
  CHECK(watch.failure()->step == 41);
}

TEST_CASE("watch: a rank that dies by a signal is named with the signal and its place") {
  Watch watch = watch_of(4);
  all_in_step(watch, 4, 41);
  watch.ended(died(2, SIGKILL, training(41)), 5s);
  CHECK(message(watch) == "rank 2 (on h2) was ended by signal 9 (SIGKILL) in step 41");
  CHECK(watch.may_restart());

  Watch before = watch_of(2);
  before.ended(died(1, SIGSEGV, {.phase = Phase::meeting}), 1s);
  CHECK(message(before) ==
        "rank 1 (on h1) was ended by signal 11 (SIGSEGV) while meeting the other ranks");
}

TEST_CASE("watch: a broken exchange waits a moment for its cause") {
  Watch watch = watch_of(3);
  all_in_step(watch, 3, 4);
  watch.ended(failed(0, "connection reset by peer", FailureKind::collective, training(4)), 5000ms);
  CHECK(watch.waits_for_cause());
  watch.look(5299ms);
  CHECK_FALSE(watch.must_kill());
  watch.ended(died(2, SIGKILL, training(4)), 5299ms);
  CHECK(message(watch) == "rank 2 (on h2) was ended by signal 9 (SIGKILL) in step 4");
}

TEST_CASE("watch: a broken exchange without another cause is the failure, and says who was where") {
  for (const bool cuda : {false, true}) {
    Watch watch = watch_of(4, cuda);
    all_in_step(watch, 4, 4);
    watch.sign(3, {.beats = 3, .step = 3, .phase = Phase::saving}, 0ms);
    watch.ended(failed(1, "sizes differ", FailureKind::collective, training(4)), 1000ms);
    watch.look(1300ms);
    CHECK(watch.must_kill());
    REQUIRE(watch.failure().has_value());
    CHECK(watch.failure()->message == "rank 1 (on h1): sizes differ");
    CHECK(watch.failure()->kind == FailureKind::collective);
    CHECK(watch.failure()->help ==
          (cuda ? "set NCCL_DEBUG=INFO for more"
                : "ranks 0-2 were in step 4; rank 3 was in step 3 (saving)"));
    CHECK(watch.may_restart());
  }
}

TEST_CASE("watch: when all ranks have ended nobody waits for a cause any longer") {
  Watch watch = watch_of(2);
  all_in_step(watch, 2, 4);
  watch.ended(failed(0, "a", FailureKind::collective, training(4)), 1000ms);
  watch.ended(failed(1, "b", FailureKind::collective, training(4)), 1001ms);
  CHECK(message(watch) == "rank 0 (on h1): a");
}

TEST_CASE("watch: statuses 2, 3 and 4 are kept and never tried again") {
  for (int code = 1; code <= 5; ++code) {
    Watch watch = watch_of(2);
    watch.ended(failed(1, "no", FailureKind::own, Sign{}, code), 1s);
    CHECK(watch.exit_status() == code);
    CHECK(watch.may_restart() == (code == 1 || code == 5));
  }
  Watch silent = watch_of(2);
  silent.ended(exited(1, 3, Sign{}), 1s);
  CHECK(message(silent) == "rank 1 (on h1) ended with status 3 and left no reason");
  CHECK(silent.exit_status() == 1);
  CHECK_FALSE(silent.may_restart());
}

TEST_CASE("watch: ranks whose beats stand still are named after the timeout, not before") {
  Watch watch = watch_of(4);
  const std::vector<Sign> signs = {training(41), training(41), training(40), training(41)};
  look(watch, signs, 1s);
  look(watch, signs, 10999ms);
  CHECK_FALSE(watch.must_kill());
  look(watch, signs, 11s);
  CHECK(watch.must_kill());
  CHECK(message(watch) == "rank 2 (on h2) did not come to step 41 in 10 s; the others wait");
  CHECK(watch.failure()->rank == 2);
  CHECK(watch.may_restart());
}

TEST_CASE("watch: ranks that can't be seen are not judged") {
  Watch watch = watch_of(4);
  all_in_step(watch, 4, 41);
  watch.look(30s);
  CHECK_FALSE(watch.must_kill());
}

TEST_CASE("watch: beats, steps and phases that move keep a run alive") {
  Watch watch = watch_of(2);
  for (int second = 0; second < 100; second += 5) {
    watch.sign(0, {.beats = second, .step = 1, .phase = Phase::validating},
               std::chrono::seconds(second));
    watch.sign(1, {.beats = second, .step = 1, .phase = Phase::validating},
               std::chrono::seconds(second));
    watch.look(std::chrono::seconds(second + 4));
  }
  CHECK_FALSE(watch.must_kill());
}

TEST_CASE("watch: what holds a standing run up is told as well as it can be") {
  const auto told = [](const std::vector<Sign>& signs) {
    Watch watch = watch_of(signs.size());
    look(watch, signs, 0ms);
    look(watch, signs, 10s);
    return message(watch);
  };
  Sign still = training(41);
  still.stopped = true;
  CHECK(told({training(41), still, training(41)}) ==
        "rank 1 (on h1) is stopped (SIGSTOP) and did not get through step 41 in 10 s; the others "
        "wait");
  CHECK(told({{.beats = 81, .step = 41, .phase = Phase::training},
              {.beats = 80, .step = 41, .phase = Phase::training},
              {.beats = 80, .step = 41, .phase = Phase::training}}) ==
        "ranks 1-2 (on h1, h2) did not get through step 41 in 10 s; the others wait");
  CHECK(told({{.beats = 41, .step = 41, .phase = Phase::saving}, training(41)}) ==
        "rank 0 (on h1) did not get through step 41 (saving) in 10 s; the others wait");
  CHECK(told({training(41), training(41)}) == "no rank got through step 41 in 10 s");
  CHECK(told({training(41), {.beats = 0, .step = 0, .phase = Phase::meeting}}) ==
        "rank 1 (on h1) did not come to step 41 in 10 s; the others wait");
}

TEST_CASE("watch: a rank that is done and doesn't end is a hang too") {
  Watch watch = watch_of(2);
  watch.ended(exited(0, 0, kDone), 1s);
  look(watch, {kDone, kDone}, 1s);
  look(watch, {kDone, kDone}, 10999ms);
  CHECK_FALSE(watch.must_kill());
  look(watch, {kDone, kDone}, 11s);
  CHECK(message(watch) == "rank 1 (on h1) was done and did not end in 10 s");
}

TEST_CASE("watch: an exchange that broke because of the same timeout is told as a standstill") {
  Watch watch = watch_of(3);
  look(watch, {training(41), training(40), training(41)}, 1s);
  look(watch, {training(41), training(40), training(41)}, 10500ms);
  watch.ended(failed(0, "timed out", FailureKind::collective, training(41)), 10600ms);
  watch.look(10900ms);
  CHECK(message(watch) == "rank 1 (on h1) did not come to step 41 in 10 s; the others wait");
}

TEST_CASE("watch: a rank that doesn't come to training is named, not the one that waits for it") {
  Watch watch = watch_of(4);
  for (std::int64_t i = 0; i < 4; ++i) watch.sign(i, {.phase = Phase::meeting}, 1s);
  watch.sign(3, {.phase = Phase::starting}, 1s);
  watch.look(59999ms);
  CHECK_FALSE(watch.must_kill());
  watch.look(60s);
  CHECK(message(watch) == "rank 3 (on h2) did not arrive in 60 s");
}

TEST_CASE("watch: a launcher that is silent is the likelier reason of a standstill") {
  Failure lost{.message = "launcher 1 (h2, ranks 2-3) was not heard of for 9 s"};
  Watch watch = watch_of(4);
  all_in_step(watch, 4, 41, 0ms);
  watch.suspect(lost);
  look(watch, {training(41), training(41)}, 9s);
  CHECK_FALSE(watch.must_kill());
  look(watch, {training(41), training(41)}, 10s);
  CHECK(message(watch) == lost.message);
  CHECK_FALSE(watch.may_restart());

  Watch broken = watch_of(4);
  all_in_step(broken, 4, 41, 0ms);
  broken.suspect(lost);
  broken.ended(failed(0, "reset", FailureKind::collective, training(41)), 4s);
  broken.look(4300ms);
  CHECK(message(broken) == lost.message);
}

TEST_CASE("watch: ranks that agree to stop have time, and the status is the signal's") {
  Watch watch = watch_of(2);
  all_in_step(watch, 2, 5);
  watch.ended(exited(0, 143, training(5)), 1s);
  watch.look(9s);
  CHECK_FALSE(watch.must_kill());
  watch.ended(exited(1, 143, training(5)), 9s);
  CHECK(watch.all_ended());
  CHECK(watch.exit_status() == 143);
  CHECK_FALSE(watch.failure().has_value());
  CHECK_FALSE(watch.may_restart());
}

TEST_CASE("watch: SIGHUP, passed on as SIGTERM, gives its own status") {
  Watch watch = watch_of(1);
  watch.passed(SIGHUP, false);
  watch.ended(exited(0, 143, training(5)), 1s);
  CHECK(watch.exit_status() == 129);
}

TEST_CASE("watch: a signal that was passed on ends a rank without a failure, others don't") {
  Watch passed = watch_of(2);
  passed.passed(SIGTERM, false);
  passed.ended(died(0, SIGTERM, training(1)), 1s);
  CHECK_FALSE(passed.failure().has_value());
  passed.ended(died(1, SIGTERM, training(1)), 1s);
  CHECK(passed.exit_status() == 143);

  Watch other = watch_of(2);
  other.passed(SIGTERM, false);
  other.ended(died(0, SIGKILL, training(1)), 1s);
  CHECK(other.exit_status() == 1);
}

TEST_CASE("watch: a failure on the way to a stop is a failure") {
  Watch watch = watch_of(2);
  watch.passed(SIGTERM, false);
  watch.ended(failed(0, "the disk is full", FailureKind::own, training(5)), 1s);
  CHECK(message(watch) == "rank 0 (on h1): the disk is full");
  CHECK(watch.exit_status() == 1);
}

TEST_CASE("watch: nobody waits for a rank that stopped before training or at once") {
  Watch early = watch_of(2);
  early.passed(SIGINT, false);
  early.ended(exited(0, 130, {.phase = Phase::meeting}), 1s);
  CHECK(early.must_kill());
  early.ended(died(1, SIGKILL, {.phase = Phase::meeting}), 1s);
  CHECK(early.exit_status() == 130);
  CHECK_FALSE(early.failure().has_value());

  Watch twice = watch_of(2);
  all_in_step(twice, 2, 5);
  twice.passed(SIGINT, false);
  twice.passed(SIGINT, true);
  CHECK_FALSE(twice.must_kill());
  twice.ended(exited(0, 130, training(5)), 1s);
  CHECK(twice.must_kill());
  CHECK(twice.exit_status() == 130);

  Watch other_order = watch_of(2);
  all_in_step(other_order, 2, 5);
  other_order.passed(SIGINT, false);
  other_order.ended(exited(0, 130, training(5)), 1s);
  CHECK_FALSE(other_order.must_kill());
  other_order.passed(SIGINT, true);
  CHECK(other_order.must_kill());
}

TEST_CASE("watch: an exchange that a stopping rank broke is its fault, or the person's wish") {
  Watch wished = watch_of(2);
  all_in_step(wished, 2, 5);
  wished.passed(SIGINT, false);
  wished.ended(exited(0, 130, training(5)), 1000ms);
  wished.ended(failed(1, "reset", FailureKind::collective, training(5)), 1001ms);
  CHECK(wished.all_ended());
  CHECK(wished.exit_status() == 130);
  CHECK_FALSE(wished.failure().has_value());

  Watch alone = watch_of(3);
  all_in_step(alone, 3, 5);
  alone.ended(exited(1, 143, training(5)), 1000ms);
  alone.ended(failed(0, "reset", FailureKind::collective, training(5)), 1001ms);
  alone.look(1400ms);
  CHECK(message(alone) == "rank 1 (on h1) ended with status 143 before the others did");
  CHECK(alone.exit_status() == 1);
}

TEST_CASE("watch: a launcher that leaves after a signal is no failure, without one it is") {
  Failure lost{.message = "launcher 1 (h2, ranks 2-3) is gone"};
  Watch stopped = watch_of(4);
  stopped.passed(SIGTERM, false);
  stopped.fail(lost);
  stopped.gone(2, 2);
  CHECK(stopped.must_kill());
  CHECK(stopped.exit_status() == 143);
  CHECK_FALSE(stopped.failure().has_value());

  Watch dropped = watch_of(4);
  dropped.fail(lost);
  dropped.gone(2, 2);
  CHECK_FALSE(dropped.all_ended());
  dropped.ended(died(0, SIGKILL, Sign{}), 1s);
  dropped.ended(died(1, SIGKILL, Sign{}), 1s);
  CHECK(dropped.all_ended());
  CHECK(message(dropped) == lost.message);
  CHECK_FALSE(dropped.may_restart());
}
