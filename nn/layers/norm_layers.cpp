#include "lockstep/nn/layers/norm_layers.h"

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/batch_norm_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

std::int64_t check_features(std::int64_t features) {
  LOCKSTEP_CHECK(features >= 0, "BatchNorm: {} features; the number may not be negative", features);
  return features;
}

std::int64_t check_groups(std::int64_t groups, std::int64_t channels) {
  LOCKSTEP_CHECK(groups >= 1 && channels >= 1 && channels % groups == 0,
                 "GroupNorm: {} groups do not divide {} channels", groups, channels);
  return channels;
}

}  // namespace

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& options)
    : weight(add_parameter("weight", options.elementwise_affine ? initial_ones(shape) : Tensor())),
      bias(add_parameter("bias", options.elementwise_affine && options.bias ? initial_zeros(shape) : Tensor())),
      shape_(shape), eps_(options.eps) {
  LOCKSTEP_CHECK(!shape.empty(), "LayerNorm: the shape to normalise over is empty");
}

Tensor LayerNorm::forward(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }

RMSNorm::RMSNorm(const Shape& shape, const RMSNormOptions& options)
    : weight(add_parameter("weight", options.elementwise_affine ? initial_ones(shape) : Tensor())), shape_(shape),
      eps_(options.eps) {
  LOCKSTEP_CHECK(!shape.empty(), "RMSNorm: the shape to normalise over is empty");
}

Tensor RMSNorm::forward(const Tensor& x) const { return rms_norm(x, shape_, weight, eps_); }

BatchNorm::BatchNorm(std::int64_t features, const BatchNormOptions& options)
    : weight(add_parameter("weight", options.affine ? initial_ones({check_features(features)}) : Tensor())),
      bias(add_parameter("bias", options.affine ? initial_zeros({features}) : Tensor())),
      running_mean(
          add_buffer("running_mean", options.track_running_stats ? raw::zeros({check_features(features)}) : Tensor())),
      running_var(add_buffer("running_var", options.track_running_stats ? raw::full({features}, 1.0) : Tensor())),
      num_batches_tracked(add_buffer("num_batches_tracked",
                                     options.track_running_stats ? raw::zeros({}, {.dtype = kInt64}) : Tensor())),
      features_(check_features(features)), options_(options) {}

Tensor BatchNorm::normalised(const Tensor& x) const {
  const bool tracks = options_.track_running_stats, updates = tracks && is_training();
  Tensor mean = running_mean, var = running_var, forwards = num_batches_tracked, counted = forwards;
  if (const Tensor& update = update_; updates && update.defined()) {
    mean = update.narrow(0, 0, features_);
    var = update.narrow(0, features_, features_);
    forwards = update.narrow(0, 2 * features_, x.numel() > 0 ? 2 : 1);
    counted = update.narrow(0, 2 * features_ + 1, 1);
  }
  double momentum = options_.momentum.value_or(0);
  if (updates && !options_.momentum) momentum = 1 / (counted.item<double>() + 1);
  const Tensor y = shared_ && is_training()
                       ? shared_->normalise(x, weight, bias, mean, var, momentum, options_.eps)
                       : batch_norm(x, weight, bias, mean, var, updates || !tracks, momentum, options_.eps);
  if (updates && !autograd::is_recomputing()) forwards.add_(1);
  return y;
}

// With a fixed momentum m, k forwards take the running statistics r to (1 - m)^k r + update; without, n earlier ones
// and k of this micro-batch have the mean (n r + k update) / (n + k).
void BatchNormAccess::apply(const BatchNorm& layer, const Tensor& update) {
  const std::int64_t features = layer.features_;
  const auto forwards = update[2 * features].item<std::int64_t>(),
             counted = update[2 * features + 1].item<std::int64_t>();
  if (forwards == 0) return;
  double kept = 1, added = 1;
  if (const std::optional<double>& momentum = layer.options_.momentum) {
    for (std::int64_t i = 0; i < counted; ++i) kept *= 1 - *momentum;
  } else {
    added = static_cast<double>(counted) /
            static_cast<double>(layer.num_batches_tracked.master().item<std::int64_t>() + forwards);
    kept = 1 - added;
  }
  const auto move = [&](const Tensor& running, std::int64_t first) {
    const Tensor before = raw::to(raw::to(running, Device()), kFloat64);
    running.copy_(before * kept + update.narrow(0, first, features) * added);
  };
  const NoGradGuard no_grad;
  move(layer.running_mean.master(), 0);
  move(layer.running_var.master(), features);
  layer.num_batches_tracked.master().add_(forwards);
}

Tensor BatchNorm1d::forward(const Tensor& x) const {
  LOCKSTEP_CHECK((x.dim() == 2 || x.dim() == 3) && x.size(1) == features_,
                 "batch_norm: x is {}, expected (n, {}) or (n, {}, length)", describe(x), features_, features_);
  return normalised(x);
}

Tensor BatchNorm2d::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 4 && x.size(1) == features_, "batch_norm: x is {}, expected (images, {}, height, width)",
                 describe(x), features_);
  return normalised(x);
}

GroupNorm::GroupNorm(std::int64_t groups, std::int64_t channels, const GroupNormOptions& options)
    : weight(add_parameter("weight", options.affine ? initial_ones({check_groups(groups, channels)}) : Tensor())),
      bias(add_parameter("bias", options.affine ? initial_zeros({channels}) : Tensor())), groups_(groups),
      channels_(check_groups(groups, channels)), eps_(options.eps) {}

Tensor GroupNorm::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(1) == channels_, "{}: x is {}, expected (n, {}, ...)", type_name(), describe(x),
                 channels_);
  Tensor y = x;
  if (x.numel() > 0) {
    const std::int64_t size = x.numel() / x.size(0) / groups_;
    y = layer_norm(x.reshape({x.size(0), groups_, size}), {size}, {}, {}, eps_).reshape(x.shape());
  }
  if (!weight.master().defined()) return y;
  return y * weight->view(channel_shape(x, channels_)) + bias->view(channel_shape(x, channels_));
}

Tensor GroupNorm::normalised_instances(const Tensor& x, int batch_dims) const {
  std::int64_t values = 1;  // of each channel of a sample
  for (int dim = batch_dims + 1; dim < x.dim(); ++dim) values *= x.size(dim);
  LOCKSTEP_CHECK(values != 1, "{}: a variance needs more than one value for each channel of a sample; x is {}",
                 type_name(), describe(x));
  return batch_dims == 1 ? GroupNorm::forward(x) : GroupNorm::forward(x.unsqueeze(0)).squeeze(0);
}

Tensor InstanceNorm1d::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 2 || x.dim() == 3,
                 "InstanceNorm1d: x is {}, expected (n, features, length) or (features, length)", describe(x));
  return normalised_instances(x, x.dim() - 2);
}

Tensor InstanceNorm2d::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 3 || x.dim() == 4,
                 "InstanceNorm2d: x is {}, expected (n, features, height, width) or (features, height, width)",
                 describe(x));
  return normalised_instances(x, x.dim() - 3);
}

}  // namespace lockstep::nn
