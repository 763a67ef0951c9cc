#include "lockstep/nn/image_layers.h"

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/fan_in_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep::nn {
namespace {

Shape weight_shape(std::int64_t in, std::int64_t out, const Size2d& kernel, std::int64_t groups) {
  LOCKSTEP_CHECK(in >= 0 && out >= 0 && kernel.height >= 1 && kernel.width >= 1,
                 "Conv2d: in {}, out {}, kernel {} x {}; channels may not be negative, nor the kernel empty", in, out,
                 kernel.height, kernel.width);
  LOCKSTEP_CHECK(groups >= 1 && in % groups == 0 && out % groups == 0,
                 "Conv2d: {} groups do not divide the channels, in {}, out {}", groups, in, out);
  return {out, in / groups, kernel.height, kernel.width};
}

std::int64_t fan_in(const Shape& weight) { return weight[1] * weight[2] * weight[3]; }

std::int64_t check_features(std::int64_t features) {
  LOCKSTEP_CHECK(features >= 0, "BatchNorm2d: {} features; the number may not be negative", features);
  return features;
}

}  // namespace

// Members are initialised in order of declaration, so the weight is drawn before the bias.
Conv2d::Conv2d(std::int64_t in, std::int64_t out, const Size2d& kernel, const Conv2dOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(weight_shape(in, out, kernel, options.groups),
                                                       fan_in(weight_shape(in, out, kernel, options.groups))))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, fan_in(weight->shape())) : Tensor())),
      options_(options) {}

Tensor Conv2d::forward(const Tensor& x) const {
  return conv2d(x, weight, bias, options_.stride, options_.padding, options_.dilation, options_.groups);
}

Tensor MaxPool2d::forward(const Tensor& x) const {
  return max_pool2d(x, kernel_, options_.stride, options_.padding, options_.dilation, options_.ceil_mode);
}

Tensor AvgPool2d::forward(const Tensor& x) const {
  return avg_pool2d(x, kernel_, options_.stride, options_.padding, options_.ceil_mode, options_.count_include_pad);
}

BatchNorm2d::BatchNorm2d(std::int64_t features, const BatchNorm2dOptions& options)
    : weight(add_parameter("weight", options.affine ? raw::full({check_features(features)}, 1.0) : Tensor())),
      bias(add_parameter("bias", options.affine ? raw::zeros({features}) : Tensor())),
      running_mean(add_buffer("running_mean", raw::zeros({check_features(features)}))),
      running_var(add_buffer("running_var", raw::full({features}, 1.0))),
      num_batches_tracked(add_buffer("num_batches_tracked", raw::zeros({}, {.dtype = kInt64}))), options_(options) {}

Tensor BatchNorm2d::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() == 4 && x.size(1) == running_mean->size(0),
                 "batch_norm: x is {}, expected (images, {}, height, width)", describe(x), running_mean->size(0));
  Tensor y = batch_norm(x, weight, bias, running_mean, running_var, is_training(), options_.momentum, options_.eps);
  if (is_training()) num_batches_tracked->add_(1);
  return y;
}

}  // namespace lockstep::nn
