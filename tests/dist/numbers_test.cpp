// Several ranks compute what one process computes.
#include "tests/dist/bench.h"

using namespace runner;
using namespace runner::dist;

namespace {

const std::string kDigits =
    "name = \"t\"\nseed = 3\n"
    "[model]\nname = \"mlp\"\nhidden = [32]\n"
    "[dataset]\nname = \"digits\"\nbatch_size = 20\n"
    "[trainer]\nmax_steps = 50\nthreads = 1\n"
    "[optimizer]\nname = \"sgd\"\nlr = 0.05\nmomentum = 0.9\n";

struct Optimizer {
  const char* name;
  Arguments overrides;
  double tolerance;  ///< relative to the largest weight
};

/// Sums in another order differ in their last bits. AdamW divides each gradient by its own size, so
/// that where a gradient is next to nothing its rounding error is as large as a whole step.
const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> all = {
      {"sgd", {}, 1e-5},
      {"adamw", {"optimizer.name=adamw", "-optimizer.momentum", "optimizer.lr=1e-3"}, 1e-4}};
  return all;
}

Arguments joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE(
    "ranks: k of them with batch b end with the weights of one process with batch k b, whatever "
    "the optimizer, the accumulation and the size of the last batch") {
  const Bench t(kDigits);
  for (const Backend& backend : backends()) {
    for (const Optimizer& optimizer : optimizers()) {
      for (const int accumulate : {1, 3}) {
        for (const int ranks : {2, 3, 4}) {
          CAPTURE(backend.name);
          CAPTURE(optimizer.name);
          CAPTURE(accumulate);
          CAPTURE(ranks);
          // 1437 samples: the last batches of an epoch hold 37, 57 and 77.
          const Arguments common =
              joined(optimizer.overrides, {set("trainer.accumulate", accumulate)});
          const fs::path alone =
              t.train(1, backend, joined(common, {set("dataset.batch_size", 20 * ranks)}));
          const fs::path together = t.train(ranks, backend, common);
          CHECK(manifest_of(together).at("steps") == 50);
          CHECK(manifest_of(together).at("samples") == manifest_of(alone).at("samples"));
          CHECK(difference(read_weights(alone), read_weights(together)) < optimizer.tolerance);
          const double loss = manifest_of(alone).at("metrics").at("val_loss");
          CHECK(manifest_of(together).at("metrics").at("val_loss").get<double>() ==
                doctest::Approx(loss).epsilon(1e-4));
        }
      }
    }
  }
}

TEST_CASE(
    "ranks: where the last batch has fewer samples than there are ranks, those without any count "
    "for nothing and wait for nobody") {
  const Bench t(
      "name = \"t\"\nseed = 5\n"
      "[model]\nname = \"mlp\"\nhidden = [16]\n"
      "[dataset]\nname = \"synthetic\"\nshape = [12]\nclasses = 3\ntrain_size = 49\n"
      "validation_size = 49\nbatch_size = 4\n"
      "[trainer]\nmax_epochs = 8\nthreads = 1\n"
      "[optimizer]\nname = \"sgd\"\nlr = 0.05\nmomentum = 0.9\n");
  for (const Backend& backend : backends()) {
    for (const int ranks : {2, 3, 4}) {  // the last batch has one sample
      CAPTURE(backend.name);
      CAPTURE(ranks);
      const fs::path alone = t.train(1, backend, {set("dataset.batch_size", 4 * ranks)});
      const fs::path together = t.train(ranks, backend);
      CHECK(manifest_of(together).at("samples") == 8 * 49);
      CHECK(difference(read_weights(alone), read_weights(together)) < 1e-5);
    }
  }
}

TEST_CASE("ddp: views into buckets, and a search for parameters without use, change no bit") {
  const Bench t(kDigits);
  const Backend& ddp = backends().front();
  const std::string hash = weights_hash(t.train(3, ddp));
  for (const char* change :
       {"trainer.gradient_as_bucket_view=false", "trainer.find_unused_parameters=true"}) {
    CAPTURE(change);
    CHECK(weights_hash(t.train(3, ddp, {change, "trainer.accumulate=1"})) == hash);
  }
}

TEST_CASE("ddp: compressed gradients lead nearby, and not to the same place") {
  const Bench t(kDigits);
  const Backend& ddp = backends().front();
  const Weights full = read_weights(t.train(2, ddp));
  for (const char* kind : {"fp16", "bf16"}) {
    CAPTURE(kind);
    const fs::path run = t.train(2, ddp, {std::string("trainer.gradient_compression=") + kind});
    const double apart = difference(full, read_weights(run));
    CHECK(apart > 0);
    CHECK(apart < 0.02);
  }
}

TEST_CASE(
    "sync_batchnorm: the statistics are those of all ranks' samples; without it they are not") {
  const Bench t(kDigits);
  const Backend& ddp = backends().front();
  const std::string norm = "model.batch_norm=true";
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const Weights alone =
        read_weights(t.train(1, ddp, {norm, set("dataset.batch_size", 20 * ranks)}));
    const Weights together =
        read_weights(t.train(ranks, ddp, {norm, "trainer.sync_batchnorm=true"}));
    CHECK(difference(alone, together) < 1e-4);
    const Weights apart = read_weights(t.train(ranks, ddp, {norm}));
    CHECK(difference(alone, apart) > 1e-3);
  }
}

TEST_CASE("precision 16: an overflow on one rank is a skipped step on all of them") {
  // Inputs so large that a scale of 65536 overflows at first.
  const Bench t(
      "name = \"t\"\nseed = 5\n"
      "[model]\nname = \"mlp\"\nhidden = [16]\n"
      "[dataset]\nname = \"synthetic\"\nshape = [12]\nclasses = 3\ntrain_size = 100\n"
      "validation_size = 20\nbatch_size = 5\nnoise = 30\n"
      "[trainer]\nprecision = 16\nmax_steps = 30\nthreads = 1\n"
      "[optimizer]\nname = \"sgd\"\nlr = 1e-3\n");
  const Backend& ddp = backends().front();
  const fs::path alone = t.train(1, ddp, {set("dataset.batch_size", 10)});
  const fs::path together = t.train(2, ddp);
  CHECK(manifest_of(alone).at("skipped_steps") > 0);
  CHECK(manifest_of(together).at("skipped_steps") == manifest_of(alone).at("skipped_steps"));
  CHECK(difference(read_weights(alone), read_weights(together)) < 0.01);
}

TEST_CASE("replicated: every rank draws batches of its own from all samples") {
  const Bench t(kDigits);
  const Backend& ddp = backends().front();
  const std::string replicated = "dataset.sampler=replicated";
  // Unshuffled, all ranks have the same batches, and their mean is one process's.
  const std::string in_order = "dataset.shuffle=false";
  const fs::path alone = t.train(1, ddp, {in_order});
  const fs::path same = t.train(3, ddp, {in_order, replicated});
  CHECK(difference(read_weights(alone), read_weights(same)) < 1e-5);
  const Json ranks = manifest_of(same).at("ranks");
  CHECK(ranks.size() == 3);
  for (const Json& rank : ranks) CHECK(rank.at("train_samples") == 1437);
  const fs::path shuffled = t.train(3, ddp, {replicated});
  CHECK(difference(read_weights(t.train(1, ddp)), read_weights(shuffled)) > 1e-2);
  CHECK(manifest_of(shuffled).at("samples") == 3 * manifest_of(alone).at("samples").get<int>());
}
