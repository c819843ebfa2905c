#include "runner/engine/shared_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace runner::engine {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Sum = std::function<void(at::Tensor)>;

/// All dimensions but that of the features.
std::vector<std::int64_t> reduced(const at::Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t i = 2; i < x.dim(); ++i) dims.push_back(i);
  return dims;
}

/// A value a feature, in a shape that broadcasts over x.
at::Tensor spread(const at::Tensor& values, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

/// (x - mean) / sqrt(var + eps) with the statistics of all processes; also gives those statistics.
/// Its gradient is that of batch normalisation, dx = invstd (dy - mean(dy) - xhat mean(dy xhat)),
/// with both means over all processes.
struct Normalise : torch::autograd::Function<Normalise> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, double eps,
                               const Sum* sum, bool counts) {
    const auto dims = reduced(x);
    const std::int64_t features = x.size(1);
    const auto here = static_cast<double>(x.numel() / features);
    // In double: a variance from sums of squares would lose its digits in float.
    const at::Tensor wide = x.to(at::kDouble);
    const at::Tensor sums = at::cat({wide.sum(dims), wide.square().sum(dims),
                                     at::full({1}, here, x.options().dtype(at::kDouble))});
    if (!counts) sums.zero_();
    (*sum)(sums);
    const at::Tensor count = sums.narrow(0, 2 * features, 1);
    const at::Tensor mean = sums.narrow(0, 0, features) / count;
    const at::Tensor var =
        (sums.narrow(0, features, features) / count - mean.square()).clamp_min(0);
    const at::Tensor invstd = (var + eps).rsqrt();
    const at::Tensor normalised =
        ((wide - spread(mean, x)) * spread(invstd, x)).to(x.scalar_type());
    ctx->save_for_backward({normalised, invstd, count});
    ctx->saved_data["sum"] = reinterpret_cast<std::int64_t>(sum);
    ctx->mark_non_differentiable({mean, var, count});
    return {normalised, mean, var, count};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& normalised = saved[0];
    const at::Tensor &invstd = saved[1], &count = saved[2];
    const auto* sum = reinterpret_cast<const Sum*>(ctx->saved_data["sum"].toInt());
    const at::Tensor dy = gradients[0].to(at::kDouble);
    const at::Tensor xhat = normalised.to(at::kDouble);
    const auto dims = reduced(dy);
    const at::Tensor sums = at::cat({dy.sum(dims), (dy * xhat).sum(dims)});
    (*sum)(sums);
    const std::int64_t features = invstd.numel();
    const at::Tensor mean_dy = sums.narrow(0, 0, features) / count;
    const at::Tensor mean_dy_xhat = sums.narrow(0, features, features) / count;
    const at::Tensor dx =
        (dy - spread(mean_dy, dy) - xhat * spread(mean_dy_xhat, dy)) * spread(invstd, dy);
    return {dx.to(normalised.scalar_type()), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor shared_batch_norm(const graph::BatchNorm& op, const at::Tensor& x,
                             const std::vector<at::Tensor>& tensors, const Sum& sum, bool counts) {
  const variable_list made = Normalise::apply(x, op.eps, &sum, counts);
  const at::Tensor &normalised = made[0], &mean = made[1], &var = made[2], &count = made[3];
  {
    const at::NoGradGuard no_grad;
    at::Tensor running_mean = tensors[2], running_var = tensors[3], batches = tensors[4];
    running_mean.lerp_(mean.to(running_mean.scalar_type()), op.momentum);
    // The running variance is the unbiased one, as torch.nn has it.
    const at::Tensor unbiased = var * (count / (count - 1).clamp_min(1));
    running_var.lerp_(unbiased.to(running_var.scalar_type()), op.momentum);
    batches.add_(1);
  }
  return normalised * spread(tensors[0], x) + spread(tensors[1], x);
}

}  // namespace runner::engine
