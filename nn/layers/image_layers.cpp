#include "lockstep/nn/layers/image_layers.h"

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

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

// The zeros on each side of x that preserve its sizes. If the zeros of a dimension are odd in number, x gets one of them
// at its end here.
Size2d pad_to_same(Tensor& x, const Parameter& weight, const Size2d& dilation) {
  LOCKSTEP_CHECK(x.dim() >= 2, "Conv2d: x is {}, expected (images, channels, height, width)", describe(x));
  const auto zeros = [&](int dim, std::int64_t step) {  // dim counts from the end
    const std::int64_t total = step * (weight->size(dim) - 1);
    if (total % 2 != 0) {
      Shape shape = x.shape();
      shape[static_cast<std::size_t>(x.dim() + dim)] = 1;
      x = cat({x, raw::zeros(shape, x.options())}, dim);
    }
    return total / 2;
  };
  const std::int64_t height = zeros(-2, dilation.height);
  return {height, zeros(-1, dilation.width)};
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, const Size2d& kernel, const Conv2dOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(weight_shape(in, out, kernel, options.groups),
                                                       fan_in(weight_shape(in, out, kernel, options.groups))))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, fan_in(weight->shape())) : Tensor())),
      options_(options) {
  LOCKSTEP_CHECK(
      !options.padding.is_same() || options.stride == Size2d(1),
      "Conv2d: .padding is Padding::kSame and .stride is {} x {}; expected stride 1, or the padding in numbers",
      options.stride.height, options.stride.width);
}

Tensor Conv2d::forward(const Tensor& x) const {
  const Conv2dOptions& o = options_;
  if (!o.padding.is_same()) return conv2d(x, weight, bias, o.stride, o.padding.size(), o.dilation, o.groups);
  Tensor padded = x;
  const Size2d zeros = pad_to_same(padded, weight, o.dilation);
  return conv2d(padded, weight, bias, o.stride, zeros, o.dilation, o.groups);
}

Tensor MaxPool2d::forward(const Tensor& x) const {
  return max_pool2d(x, kernel_, options_.stride, options_.padding, options_.dilation, options_.ceil_mode);
}

Tensor AvgPool2d::forward(const Tensor& x) const {
  return avg_pool2d(x, kernel_, options_.stride, options_.padding, options_.ceil_mode, options_.count_include_pad);
}

}  // namespace lockstep::nn
