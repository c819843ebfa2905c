#include "runner/check/steps.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "runner/check/passes.h"
#include "runner/check/text.h"

namespace runner::check {

std::int64_t BatchLimit::of(std::int64_t total) const {
  if (batches) return std::min(*batches, total);
  // The smallest excess keeps a share that is whole in decimals, 10% of 30, from being cut.
  return static_cast<std::int64_t>(
      std::floor(static_cast<double>(total) * percent.value_or(100) / 100 + 1e-9));
}

std::optional<BatchLimit> parse_limit(const registry::Value& value) {
  if (const auto* batches = value.get_if<std::int64_t>()) {
    if (*batches < 1) return {};
    return BatchLimit{.batches = *batches, .percent = {}};
  }
  const auto* text = value.get_if<std::string>();
  if (text == nullptr || !text->ends_with('%')) return {};
  double percent = 0;
  const char* const last = text->data() + text->size() - 1;
  const auto [end, error] = std::from_chars(text->data(), last, percent, std::chars_format::fixed);
  if (error != std::errc{} || end != last || !(percent > 0 && percent <= 100)) return {};
  return BatchLimit{.batches = {}, .percent = percent};
}

std::int64_t batch_count(std::int64_t samples, std::int64_t replicas, std::int64_t batch_size,
                         bool drop_last) {
  if (drop_last) return samples / replicas / batch_size;
  return divided_up(divided_up(samples, replicas), batch_size);
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

namespace {

/// "1 batch of 45" where a limit leaves some out.
void remark_limit(Judgement& j, std::string_view key, std::int64_t kept, std::int64_t total) {
  if (kept < total) j.remark(key, counted(kept, "batch") + " of " + std::to_string(total));
}

/// The batches that a limit leaves of `total`, with everything that can be wrong with it reported.
std::int64_t limited(Judgement& j, std::string_view key, const registry::Value& value,
                     std::int64_t total) {
  if (!value.has_value()) return total;
  const auto limit = parse_limit(value);
  if (!limit) {
    const auto* share = value.get_if<double>();
    const bool is_share = share != nullptr && *share > 0 && *share <= 1;
    j.bad_value(diag::Code::bad_value,
                "'" + std::string(key) +
                    "': expected an integer, at least 1, or a share like \"50%\", found " +
                    registry::to_toml(value),
                key,
                is_share
                    ? "write the share as \"" + std::to_string(std::llround(*share * 100)) + "%\""
                    : "leave it out for all batches");
    return total;
  }
  const std::int64_t kept = limit->of(total);
  if (kept > 0 || total == 0) {
    remark_limit(j, key, kept, total);
    return kept;
  }
  const double smallest = std::ceil(1000.0 / static_cast<double>(total)) / 10;
  j.report(diag::Code::no_batches,
           registry::to_toml(value) + " of " + counted(total, "batch") + " is none", key,
           "the smallest share that keeps a batch is \"" +
               registry::to_toml(registry::Value(smallest)) +
               "%\"; a number of batches is an "
               "integer");
  return 1;
}

/// Samples of the last batch of an epoch, all replicas together.
std::int64_t last_batch_in_all(const Facts& f) {
  const std::int64_t full = product(f.replicas, f.batch_size);
  if (f.batches_per_epoch < f.full_batches || f.drop_last) return full;
  return f.train_size - (f.full_batches - 1) * full;
}

/// Those of the replica that gets the fewest. One that would get none works on a stand-in.
std::int64_t last_batch_size(const Facts& f) {
  return std::max<std::int64_t>(last_batch_in_all(f) / f.replicas, 1);
}

/// "split 8, 7, 7": the shares of a short last batch.
std::string shares_text(std::int64_t samples, std::int64_t replicas) {
  constexpr std::int64_t kMostListed = 4;
  const std::int64_t larger = samples % replicas;
  const std::int64_t each = samples / replicas;
  if (replicas > kMostListed) {
    return std::to_string(each) + (larger > 0 ? " or " + std::to_string(each + 1) : "") + " each";
  }
  std::string text;
  for (std::int64_t i = 0; i < replicas; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(each + (i < larger ? 1 : 0));
  }
  return text;
}

void remark_last_batch(Judgement& j) {
  const Facts& f = j.facts;
  const std::int64_t samples = last_batch_in_all(f);
  if (f.replicas < 2 || f.train_size < f.replicas || samples == f.replicas * f.batch_size) return;
  j.remark("", "the last batch of an epoch has " + counted(samples, "sample") + ", split " +
                   shares_text(samples, f.replicas) + " over " + counted(f.replicas, "replica") +
                   "; none is repeated or left out");
}

void count_train_batches(Judgement& j) {
  Facts& f = j.facts;
  const datasets::Spec& data = j.verdict.data;
  const config::Trainer& t = j.experiment.trainer;
  f.train_size = data.train_size;
  f.replicas = j.verdict.replicas;
  if (j.experiment.data.sampler == "replicated") {
    f.replicas /= j.verdict.num_nodes * j.verdict.processes_per_node;
  }
  if (f.train_size > 0) {
    f.full_batches = batch_count(f.train_size, f.replicas, f.batch_size, f.drop_last);
  }
  std::int64_t batches =
      limited(j, "trainer.limit_train_batches", t.limit_train_batches, f.full_batches);
  if (t.overfit_batches > 0 && batches > 0) {
    remark_limit(j, "trainer.overfit_batches", std::min(batches, t.overfit_batches),
                 f.full_batches);
    batches = std::min(batches, t.overfit_batches);
  }
  if (t.fast_dev_run) batches = std::min<std::int64_t>(batches, 1);
  f.batches_per_epoch = batches;
  if (batches > 0) f.last_batch = last_batch_size(f);
  if (batches > 0) remark_last_batch(j);
}

/// With overfit_batches, validation looks at the training samples of those batches.
std::int64_t validation_batch_count(Judgement& j) {
  const config::Experiment& e = j.experiment;
  const datasets::Spec& data = j.verdict.data;
  const std::int64_t batch = e.data.eval_batch_size.value_or(e.data.batch_size);
  if (data.validation_size == 0) return 0;
  if (e.trainer.overfit_batches > 0) {
    const std::int64_t share = divided_up(data.train_size, j.verdict.replicas);
    const std::int64_t seen =
        std::min(share, product(j.facts.batches_per_epoch, e.data.batch_size));
    return divided_up(seen, batch);
  }
  return batch_count(data.validation_size, j.verdict.replicas, batch, /*drop_last=*/false);
}

void count_validation_batches(Judgement& j) {
  const config::Trainer& t = j.experiment.trainer;
  std::int64_t batches =
      limited(j, "trainer.limit_val_batches", t.limit_val_batches, validation_batch_count(j));
  if (t.fast_dev_run) batches = std::min<std::int64_t>(batches, 1);
  j.verdict.validation_batches = batches;
  if (j.verdict.data.complete) j.facts.validation_size = j.verdict.data.validation_size;
}

/// Epochs and steps after which the run ends; 0 where that isn't known.
void count_steps(Judgement& j) {
  Verdict& v = j.verdict;
  Facts& f = j.facts;
  v.batches_per_epoch = f.batches_per_epoch;
  v.steps_per_epoch = divided_up(f.batches_per_epoch, f.accumulate);
  v.max_epochs = f.fast_dev_run ? std::optional<std::int64_t>(1) : f.max_epochs;
  v.max_steps = f.max_steps;
  if (v.max_steps) v.total_steps = *v.max_steps;
  if (v.max_epochs && v.steps_per_epoch > 0) {
    const std::int64_t steps = product(*v.max_epochs, v.steps_per_epoch);
    v.total_steps = v.max_steps ? std::min(steps, *v.max_steps) : steps;
  }
  f.total_steps = v.total_steps;
  if (v.steps_per_epoch > 0) {
    f.total_epochs = divided_up(f.total_steps, v.steps_per_epoch);
  } else if (!v.max_steps) {
    f.total_epochs = v.max_epochs.value_or(0);
  }
  if (f.fast_dev_run) {
    j.remark("trainer.fast_dev_run", "1 epoch of 1 training batch and 1 validation batch");
  }
}

/// Times that the run measures what early stopping looks at; 0 if unknown.
std::int64_t count_validations(const Facts& f) {
  if (f.validation_size == 0) return f.total_epochs;  // train_loss, each epoch
  if (f.val_every_n_steps) return f.total_steps / *f.val_every_n_steps;
  return f.total_epochs / f.val_every_n_epochs.value_or(1);
}

}  // namespace

void judge_steps(Judgement& j) {
  count_train_batches(j);
  count_validation_batches(j);
  count_steps(j);
  j.facts.validations = count_validations(j.facts);
  j.apply(Stage::run);
}

}  // namespace runner::check
