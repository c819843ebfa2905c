#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "runner/components/component.h"

using namespace runner::components;
using Kind = MetricName::Kind;

TEST_CASE("metrics: names are read exactly") {
  CHECK(parse_metric("accuracy")->kind == Kind::accuracy);
  CHECK(parse_metric("mae")->kind == Kind::mae);
  CHECK(parse_metric("r2")->kind == Kind::r2);
  CHECK(parse_metric("loss")->kind == Kind::loss);
  CHECK(parse_metric("top5")->kind == Kind::top_k);
  CHECK(parse_metric("top5")->k == 5);
  CHECK(parse_metric("top10")->k == 10);
  for (const char* name : {"", "acc", "Accuracy", "top", "top0", "top05", "top-1", "top5 ",
                           "top99999999999999999999", "val_loss"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_metric(name).has_value());
  }
}

TEST_CASE("metrics: accuracies and r2 grow as the model gets better, errors shrink") {
  for (const Kind kind : {Kind::accuracy, Kind::top_k, Kind::r2}) CHECK(higher_is_better(kind));
  for (const Kind kind : {Kind::loss, Kind::mae}) CHECK_FALSE(higher_is_better(kind));
}

TEST_CASE("early stopping: stops at the patience-th check in a row without improvement") {
  EarlyStopper stopper(/*patience=*/2, /*min_delta=*/0, /*maximise=*/false);
  CHECK_FALSE(stopper.observe(1.0));
  CHECK_FALSE(stopper.observe(1.0));  // equal is no improvement
  CHECK_FALSE(stopper.observe(0.5));  // improves: counting starts again
  CHECK_FALSE(stopper.observe(0.6));
  CHECK(stopper.observe(0.7));
  CHECK(stopper.state().best == 0.5);
}

TEST_CASE("early stopping: min_delta is what an improvement must exceed, in either direction") {
  EarlyStopper down(1, 0.1, false);
  CHECK_FALSE(down.observe(1.0));
  CHECK(down.observe(0.95));
  EarlyStopper up(1, 0.1, true);
  CHECK_FALSE(up.observe(0.5));
  CHECK_FALSE(up.observe(0.7));
  CHECK(up.observe(0.75));
}

TEST_CASE("early stopping: a value that is not finite is no improvement, even the first") {
  EarlyStopper stopper(2, 0, true);
  CHECK_FALSE(stopper.observe(std::nan("")));
  CHECK_FALSE(stopper.state().started);
  CHECK(stopper.observe(std::numeric_limits<double>::infinity()));
}

TEST_CASE("early stopping: a restored state goes on where it was") {
  EarlyStopper first(3, 0, false);
  for (const double v : {1.0, 2.0, 2.0}) first.observe(v);
  EarlyStopper second(3, 0, false);
  second.restore(first.state());
  CHECK(second.observe(2.0));
}
