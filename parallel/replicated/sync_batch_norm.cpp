#include "lockstep/parallel/replicated/sync_batch_norm.h"

#include <utility>
#include <vector>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/batch_norm_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/replica_exchange_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/tensor/ops/combine_internal.h"

namespace lockstep::parallel {

namespace {

constexpr const char* kOp = "SyncBatchNorm";

// (rows, columns) f64 -> (columns): the sum over the rows, in canonical order.
Tensor sum_of_rows(const Tensor& rows) {
  const Tensor sum = empty({rows.size(1)}, rows.options());
  std::vector<const void*> inputs;
  std::vector<Tensor> held;
  for (std::int64_t r = 0; r < rows.size(0); ++r)
    inputs.push_back(held.emplace_back(rows.select(0, r).contiguous()).raw_data());
  void* const out = sum.raw_data();
  raw::combine({.inputs = inputs, .outputs = {&out, 1}, .dtype = kFloat64}, 0, sum.numel(), sum.device());
  return sum;
}

TensorOptions in_f64(const Tensor& like) { return {.dtype = kFloat64, .device = like.device()}; }

// The channels of x (n, channels, ...).
struct Channels {
  explicit Channels(const Tensor& x) : count(x.numel() == 0 ? 0 : x.numel() / x.size(1)) {
    for (int dim = 0; dim < x.dim(); ++dim) {
      shape.push_back(dim == 1 ? x.size(1) : 1);
      if (dim != 1) dims.push_back(dim);
    }
  }
  Tensor sum(const Tensor& t) const { return lockstep::sum(t, dims).to(kFloat64); }
  // (channels) f64 with the dtype and dimensions of `like`.
  Tensor broadcast(const Tensor& t, const Tensor& like) const { return t.to(like.dtype()).reshape(shape); }

  std::int64_t count;  // values of each channel
  Shape shape, dims;
};

class SyncStatistics final : public nn::SharedStatistics,
                             public SharedRunner,
                             public std::enable_shared_from_this<SyncStatistics> {
 public:
  explicit SyncStatistics(std::shared_ptr<ProcessGroup> group) : SharedRunner(Part::kBatch, std::move(group)) {}

  // It is a runner only so that modes find its group.
  Tensor run(const std::vector<Tensor>& inputs, Forward forward) const override { return forward(inputs); }
  Tensor normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                   const Tensor& running_var, double momentum, double eps) const override;

 private:
  Tensor all_rows(const Tensor& own, Phase phase) const;
};

// `own` (columns) f64 of every micro-batch that runs now, as rows.
Tensor SyncStatistics::all_rows(const Tensor& own, Phase phase) const {
  const RunningMicroBatches& now = running_micro_batches();
  LOCKSTEP_CHECK(now.in_turn <= 1,
                 "SyncBatchNorm: {} micro-batches run one after another here and cannot share statistics\nUse one "
                 "micro-batch per rank or replica, or BatchNorm with .all_micro_batches",
                 now.in_turn);
  if (now.exchange && now.exchange->size() > 1) {
    std::vector<Tensor> rows = now.exchange->all_gather(kOp, now.replica, own);
    for (Tensor& row : rows) {
      LOCKSTEP_CHECK(row.numel() == own.numel(), "SyncBatchNorm: the replicas run different layers");
      row = row.to(own.device());
    }
    return stack(rows);
  }
  if (!group) return own.unsqueeze(0);
  const Tensor all = empty({group->size(), own.numel()}, own.options());
  group->all_gather(all, own, {.phase = phase, .name = kOp})->wait();
  return all;
}

// With n values of mean m and sum of squared deviations q in each micro-batch, and N values in total: the mean is
// sum(n m) / N, and the variance sum(q + n (m - mean)^2) / N. Backward: with z = (x - mean) factor,
// dx = (g - mean(g) - z mean(g z)) factor weight. As in PyTorch, the gradients of weight and bias are this micro-batch's.
Tensor SyncStatistics::normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                                 const Tensor& running_var, double momentum, double eps) const {
  const bool records = autograd::grad_mode();
  const NoGradGuard no_grad;
  const std::int64_t features = x.size(1);
  const Channels channels(x);
  const Tensor wide = widened(x.detach()), count = full({1}, static_cast<double>(channels.count), in_f64(x));
  const Tensor own_mean =
      channels.count > 0 ? channels.sum(wide) / static_cast<double>(channels.count) : zeros({features}, in_f64(x));
  const Tensor rows = all_rows(cat({count, own_mean, channels.sum(square(wide - channels.broadcast(own_mean, wide)))}),
                               Phase::kActivations);
  const Tensor counts = rows.narrow(1, 0, 1), means = rows.narrow(1, 1, features);
  const Tensor total = sum_of_rows(counts);
  // With two values here there are enough, and nothing waits for a GPU.
  const double most = channels.count >= 2 ? 2 : total.item<double>();
  LOCKSTEP_CHECK(most != 1,
                 "SyncBatchNorm: a variance needs more than one value for each channel in all micro-batches; x is {}",
                 describe(x));
  const Tensor mean = sum_of_rows(counts * means) / total;
  const Tensor squares = sum_of_rows(rows.narrow(1, 1 + features, features) + counts * square(means - mean));
  if (most > 0 && running_mean.defined() && !autograd::is_recomputing()) {
    running_mean.copy_(running_mean * (1 - momentum) + mean * momentum);
    running_var.copy_(running_var * (1 - momentum) + squares / (total - 1) * momentum);
  }
  const Tensor factor = channels.broadcast(rsqrt(squares / total + eps), wide), center = channels.broadcast(mean, wide);
  const Tensor scale = weight.defined() ? factor * channels.broadcast(weight.detach(), wide) : factor;
  Tensor y = (wide - center) * scale;
  if (bias.defined()) y = y + channels.broadcast(bias.detach(), wide);
  const EnableGradGuard recording(records);
  return autograd::record(
      "sync_batch_norm", y.to(x.dtype()), {x, weight, bias},
      [self = shared_from_this(), channels, x = autograd::Saved(x),
       dtype = weight.defined() ? weight.dtype() : x.dtype(), center, factor, scale,
       total](const Tensor& grad, const autograd::Needs& needs) {
        LOCKSTEP_CHECK(!autograd::grad_mode(), "SyncBatchNorm: second derivatives are not supported; use BatchNorm");
        const Tensor g = widened(grad), z = (widened(*x) - center) * factor;
        const Tensor by_bias = channels.sum(g), by_weight = channels.sum(g * z);
        Tensor by_x;
        if (needs[0]) {
          const Tensor sums =
              sum_of_rows(self->all_rows(cat({by_bias, by_weight}), Phase::kActivationGradients)) / total;
          const std::int64_t features = by_bias.numel();
          by_x = ((g - channels.broadcast(sums.narrow(0, 0, features), g)) -
                  z * channels.broadcast(sums.narrow(0, features, features), g)) *
                 scale;
        }
        const auto own = [&](std::size_t input, const Tensor& t) { return needs[input] ? t.to(dtype) : Tensor(); };
        return autograd::Gradients{needs[0] ? by_x.to(grad.dtype()) : by_x, own(1, by_weight), own(2, by_bias)};
      });
}

std::shared_ptr<const SyncStatistics> statistics_over(const std::shared_ptr<ProcessGroup>& group) {
  return std::make_shared<const SyncStatistics>(group && group->size() > 1 ? group->duplicate() : nullptr);
}

void share(nn::BatchNorm& layer, const std::shared_ptr<const SyncStatistics>& statistics) {
  nn::BatchNormAccess::share(layer, statistics);
  nn::add_runner(layer, statistics);
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(std::int64_t features, const std::shared_ptr<ProcessGroup>& group,
                             const nn::BatchNormOptions& options)
    : BatchNorm(features, options) {
  share(*this, statistics_over(group));
}

Tensor SyncBatchNorm::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(1) == features_, "SyncBatchNorm: x is {}, expected (n, {}, ...)", describe(x),
                 features_);
  return normalised(x);
}

std::int64_t convert_sync_batchnorm(nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  std::vector<nn::BatchNorm*> layers;
  for (nn::Module* const each : module.modules()) {
    auto* const layer = dynamic_cast<nn::BatchNorm*>(each);
    if (layer && !nn::BatchNormAccess::shared(*layer)) layers.push_back(layer);
  }
  if (layers.empty()) return 0;
  const auto statistics = statistics_over(group);
  for (nn::BatchNorm* const layer : layers) share(*layer, statistics);
  return std::ssize(layers);
}

}  // namespace lockstep::parallel
