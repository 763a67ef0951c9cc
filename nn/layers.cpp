// The layers of layers.h and image_layers.h.
#include "lockstep/nn/layers.h"

#include <cmath>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/image_layers.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/random_ops_internal.h"

namespace lockstep::nn {
namespace {

// U(-1/sqrt(in), 1/sqrt(in)), which equals kaiming_uniform_ with a = sqrt(5) for a weight of fan-in `in`.
Tensor uniform_by_fan_in(const Shape& shape, std::int64_t in) {
  const double bound = in > 0 ? 1.0 / std::sqrt(static_cast<double>(in)) : 0.0;
  return raw::uniform(shape, -bound, bound, random::Stream::kInit);
}

Shape check_linear(std::int64_t in, std::int64_t out) {
  LOCKSTEP_CHECK(in >= 0 && out >= 0, "Linear: sizes are in {}, out {}; neither may be negative", in, out);
  return {out, in};
}

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

// Members are initialised in order of declaration, so each layer's weight is drawn before its bias.
Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(check_linear(in, out), in))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, in) : Tensor())) {}

Tensor Linear::forward(const Tensor& x) const { return linear(x, weight, bias); }

Module& Sequential::operator[](std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "Sequential: index {} is outside [0, {})", index, size());
  return *owned_children()[static_cast<std::size_t>(index)];
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const auto& module : owned_children()) y = (*module)(y);
  return y;
}

Dropout::Dropout(double p) : p_(p) { LOCKSTEP_CHECK(p >= 0 && p <= 1, "Dropout: p is {}, expected 0 to 1", p); }

Tensor Dropout::forward(const Tensor& x) const {
  if (!is_training() || p_ == 0) return x;
  LOCKSTEP_CHECK(x.is_floating_point(), "dropout: x is {}, expected floating point", describe(x));
  return mul(x, p_ == 1 ? raw::zeros(x.shape(), x.options()) : raw::dropout_mask(x.shape(), 1 - p_, x.options()));
}

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& options)
    : weight(add_parameter("weight", options.affine ? raw::full(shape, 1.0) : Tensor())),
      bias(add_parameter("bias", options.affine ? raw::zeros(shape) : Tensor())), shape_(shape), eps_(options.eps) {
  LOCKSTEP_CHECK(!shape.empty(), "LayerNorm: the shape to normalise over is empty");
}

Tensor LayerNorm::forward(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }

Embedding::Embedding(std::int64_t n, std::int64_t dim)
    : weight(add_parameter("weight", raw::normal({n, dim}, random::Stream::kInit))) {}

Tensor Embedding::forward(const Tensor& index) const {
  LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32, "embedding: the index is {}, expected i64 or i32",
                 describe(index));
  Shape shape = index.shape();
  shape.push_back(weight->size(1));
  const Tensor rows = index_select(weight, 0, index.reshape({-1}));  // (count, dim)
  return index.dim() == 1 ? rows : rows.reshape(shape);
}

// --- images ---

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
