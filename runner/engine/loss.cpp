#include "runner/engine/loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace runner::engine {

namespace {

constexpr std::int64_t kNoIgnoredClass = -100;

using LossMaker = Loss (*)(const std::any& options);
struct LossKernel {
  std::string_view name;
  LossMaker make;
};

Loss cross_entropy(const std::any& options) {
  const double smoothing = std::any_cast<const components::CrossEntropy&>(options).label_smoothing;
  return [smoothing](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::cross_entropy_loss(outputs, targets, {}, at::Reduction::Mean, kNoIgnoredClass,
                                  smoothing);
  };
}
Loss mse(const std::any&) {
  return [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::mse_loss(outputs, targets);
  };
}
Loss l1(const std::any&) {
  return [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::l1_loss(outputs, targets);
  };
}
Loss bce(const std::any&) {
  return [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::binary_cross_entropy_with_logits(outputs, targets);
  };
}

constexpr LossKernel kLosses[] = {
    {"cross_entropy", cross_entropy}, {"mse", mse}, {"l1", l1}, {"bce", bce}};

at::Tensor double_zeros(at::IntArrayRef shape, const at::Device& device) {
  return at::zeros(shape, at::TensorOptions(device).dtype(at::kDouble));
}

/// Adds up a sum and the count that goes with it over all ranks; exact as long as counts are below
/// 2^53.
void combine_sums(const Group& group, at::Tensor& sum, std::int64_t& count) {
  if (group.size() == 1) return;
  const at::Tensor both = at::stack({sum, at::full({}, static_cast<double>(count), sum.options())});
  group.sum(both);
  sum.copy_(both[0]);
  count = static_cast<std::int64_t>(both[1].item<double>());
}

/// Sums of one number over counted elements.
class MeanMetric : public Metric {
 public:
  explicit MeanMetric(const at::Device& device) : sum_(double_zeros({}, device)) {}
  double value() const override {
    if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
    return sum_.item<double>() / static_cast<double>(count_);
  }
  void reset() override {
    sum_.zero_();
    count_ = 0;
  }
  void combine(const Group& group) override { combine_sums(group, sum_, count_); }

 protected:
  void add_sum(const at::Tensor& sum, std::int64_t count) {
    sum_.add_(sum);
    count_ += count;
  }

 private:
  at::Tensor sum_;
  std::int64_t count_ = 0;
};

class Accuracy : public MeanMetric {
 public:
  using MeanMetric::MeanMetric;
  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    add_sum(outputs.argmax(1).eq(targets).sum(), targets.size(0));
  }
};

class BinaryAccuracy : public MeanMetric {
 public:
  using MeanMetric::MeanMetric;
  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    add_sum(outputs.gt(0).eq(targets.gt(0.5)).sum(), targets.numel());
  }
};

class TopK : public MeanMetric {
 public:
  TopK(std::int64_t k, const at::Device& device) : MeanMetric(device), k_(k) {}
  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    const auto k = std::min(k_, outputs.size(1));
    const at::Tensor best = std::get<1>(outputs.topk(k, 1));
    add_sum(best.eq(targets.unsqueeze(1)).sum(), targets.size(0));
  }

 private:
  std::int64_t k_;
};

class MeanAbsoluteError : public MeanMetric {
 public:
  using MeanMetric::MeanMetric;
  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    add_sum(outputs.to(at::kDouble).sub(targets).abs_().sum(), targets.numel());
  }
};

/// Coefficient of determination, averaged over the target's columns. Mean and squared deviations
/// are merged batch by batch (Chan et al.), since Σy² - (Σy)²/n loses all digits for targets far
/// from 0.
class RSquared : public Metric {
 public:
  explicit RSquared(const at::Device& device)
      : mean_(double_zeros({}, device)),
        deviations_(double_zeros({}, device)),
        residuals_(double_zeros({}, device)) {}

  void add(const at::Tensor& outputs, const at::Tensor& targets) override {
    const at::Tensor y = targets.to(at::kDouble);
    const auto n = static_cast<double>(y.size(0));
    const at::Tensor mean = y.mean(0);
    merge(n, mean, y.sub(mean).square_().sum(0), y.sub(outputs).square_().sum(0));
  }
  double value() const override {
    if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
    // A constant target is explained fully or not at all, as scikit-learn has it.
    const at::Tensor share =
        at::where(deviations_.eq(0), residuals_.gt(0).to(at::kDouble), residuals_ / deviations_);
    return (1 - share).mean().item<double>();
  }
  void reset() override { *this = RSquared(mean_.device()); }
  void combine(const Group& group) override {
    if (group.size() == 1) return;
    // A rank without samples doesn't know how many columns there are.
    const at::Tensor columns = at::full({1}, mean_.numel(), at::kLong);
    group.max(columns);
    const std::vector<std::int64_t> shape{columns.item<std::int64_t>()};
    const at::Tensor mine =
        at::stack({at::full(shape, count_, mean_.options()), mean_.expand(shape),
                   deviations_.expand(shape), residuals_.expand(shape)});
    reset();
    for (const at::Tensor& theirs : group.gather(mine)) {
      const double n = theirs[0][0].item<double>();
      if (n > 0) merge(n, theirs[1], theirs[2], theirs[3]);
    }
  }

 private:
  void merge(double n, const at::Tensor& mean, const at::Tensor& deviations,
             const at::Tensor& residuals) {
    const at::Tensor delta = mean - mean_;
    const double total = count_ + n;
    deviations_ = deviations_ + deviations + delta.square() * (count_ * n / total);
    mean_ = mean_ + delta * (n / total);
    residuals_ = residuals_ + residuals;
    count_ = total;
  }

  at::Tensor mean_, deviations_, residuals_;
  double count_ = 0;
};

}  // namespace

Loss make_loss(std::string_view name, const std::any& options) {
  for (const LossKernel& kernel : kLosses) {
    if (kernel.name == name) return kernel.make(options);
  }
  throw std::logic_error("loss '" + std::string(name) + "' has no kernel");
}

std::vector<std::string_view> loss_names() {
  std::vector<std::string_view> names;
  for (const LossKernel& kernel : kLosses) names.push_back(kernel.name);
  return names;
}

MeanAccumulator::MeanAccumulator(const at::Device& device) : sum_(double_zeros({}, device)) {}

void MeanAccumulator::add(const at::Tensor& value, std::int64_t weight) {
  weight_ += weight;
  if (sum_.is_cpu()) {
    *sum_.mutable_data_ptr<double>() += value.item<double>() * static_cast<double>(weight);
    return;
  }
  sum_.add_(value.to(at::kDouble), static_cast<double>(weight));
}

double MeanAccumulator::sum() const { return sum_.item<double>(); }

double MeanAccumulator::mean() const {
  if (weight_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return sum() / static_cast<double>(weight_);
}

void MeanAccumulator::reset() { restore(0, 0); }

void MeanAccumulator::combine(const Group& group) { combine_sums(group, sum_, weight_); }

void MeanAccumulator::restore(double sum, std::int64_t weight) {
  sum_.fill_(sum);
  weight_ = weight;
}

std::unique_ptr<Metric> make_metric(const std::string& name, bool binary,
                                    const at::Device& device) {
  const auto parsed = components::parse_metric(name);
  if (!parsed) throw std::logic_error("metric '" + name + "' is unknown");
  using Kind = components::MetricName::Kind;
  switch (parsed->kind) {
    case Kind::accuracy:
      if (binary) return std::make_unique<BinaryAccuracy>(device);
      return std::make_unique<Accuracy>(device);
    case Kind::top_k:
      return std::make_unique<TopK>(parsed->k, device);
    case Kind::mae:
      return std::make_unique<MeanAbsoluteError>(device);
    case Kind::r2:
      return std::make_unique<RSquared>(device);
    case Kind::loss:
      break;
  }
  throw std::logic_error("metric '" + name + "' has no kernel");
}

}  // namespace runner::engine
