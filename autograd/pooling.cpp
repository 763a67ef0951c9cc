// Pooling: forward and gradient side by side.
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/node.h"
#include "lockstep/tensor/image_ops_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep {

using autograd::Gradients;
using autograd::Needs;
using autograd::record;
using raw::PoolingOptions;

namespace {

PoolingOptions pooling(const Size2d& kernel, const Size2d& stride, const Size2d& padding, const Size2d& dilation,
                       bool ceil_mode) {
  return {.kernel = kernel,
          .stride = stride == 0 ? kernel : stride,
          .padding = padding,
          .dilation = dilation,
          .ceil_mode = ceil_mode};
}

// The gradient of max_pool2d. The gradient of this function gathers at the same indices.
Tensor spread_to(const Tensor& index, const Tensor& grad, const Shape& shape, const PoolingOptions& options) {
  return record("max_pool2d_backward", raw::max_pool2d_backward(grad, index, shape, options), {grad},
                [index, out_shape = grad.shape()](const Tensor& upstream, const Needs&) {
                  return Gradients{gather(upstream.flatten(2), 2, index.flatten(2)).reshape(out_shape)};
                });
}

Tensor average(const Tensor& x, const PoolingOptions& options, bool count_include_pad);

Tensor average_backward(const Tensor& grad, const Shape& shape, const PoolingOptions& options, bool count_include_pad) {
  return record("avg_pool2d_backward", raw::avg_pool2d_backward(grad, shape, options, count_include_pad), {grad},
                [options, count_include_pad](const Tensor& upstream, const Needs&) {
                  return Gradients{average(upstream, options, count_include_pad)};
                });
}

Tensor average(const Tensor& x, const PoolingOptions& options, bool count_include_pad) {
  return record("avg_pool2d", raw::avg_pool2d(x, options, count_include_pad), {x},
                [shape = x.shape(), options, count_include_pad](const Tensor& grad, const Needs&) {
                  return Gradients{average_backward(grad, shape, options, count_include_pad)};
                });
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride, const Size2d& padding,
                  const Size2d& dilation, bool ceil_mode) {
  const PoolingOptions options = pooling(kernel, stride, padding, dilation, ceil_mode);
  raw::MaxPooled pooled = raw::max_pool2d(x, options);
  return record("max_pool2d", std::move(pooled.out), {x},
                [index = pooled.index, shape = x.shape(), options](const Tensor& grad, const Needs&) {
                  return Gradients{spread_to(index, grad, shape, options)};
                });
}

Tensor avg_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride, const Size2d& padding, bool ceil_mode,
                  bool count_include_pad) {
  return average(x, pooling(kernel, stride, padding, 1, ceil_mode), count_include_pad);
}

}  // namespace lockstep
