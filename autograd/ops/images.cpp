// Convolution and pooling: forward and gradient side by side.
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep {

using raw::ConvolutionOptions;
using raw::PoolingOptions;

namespace {

// Runs `operation` on a batch of images. A single image (channels, height, width) becomes a batch of one.
template <class F>
Tensor on_batch(const Tensor& x, F operation) {
  return x.dim() == 3 ? operation(x.unsqueeze(0)).squeeze(0) : operation(x);
}

// With y = conv(x, w), each of y, dx and dw is bilinear in its operands, and its gradients are the other two:
// <g, conv(x, w)> = <by_input(g, w), x> = <by_weight(g, x), w>.
Tensor conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options);
Tensor by_weight(const Tensor& grad, const Tensor& x, const Shape& shape, const ConvolutionOptions& options,
                 const Tensor& view);

Tensor by_input(const Tensor& grad, const Tensor& weight, const Shape& shape, const ConvolutionOptions& options) {
  return record("conv2d_backward_input", raw::conv2d_backward_input(grad, weight, shape, options), {grad, weight},
                [g = Saved(grad, requires_grad(weight)), w = Saved(weight, requires_grad(grad)),
                 w_shape = weight.shape(), options](const Tensor& upstream, const Needs& needs) {
                  return Gradients{needs[0] ? conv(upstream, *w, {}, options) : Tensor(),
                                   needs[1] ? by_weight(*g, upstream, w_shape, options, needs.view(1)) : Tensor()};
                });
}

Tensor by_weight(const Tensor& grad, const Tensor& x, const Shape& shape, const ConvolutionOptions& options,
                 const Tensor& view) {
  const Tensor out = view.defined() ? view : raw::empty(shape, grad.options());
  raw::conv2d_backward_weight(grad, x, out, options);
  return record("conv2d_backward_weight", out, {grad, x},
                [g = Saved(grad, requires_grad(x)), x = Saved(x, requires_grad(grad)), x_shape = x.shape(), options](
                    const Tensor& upstream, const Needs& needs) {
                  return Gradients{needs[0] ? conv(*x, upstream, {}, options) : Tensor(),
                                   needs[1] ? by_input(*g, upstream, x_shape, options) : Tensor()};
                });
}

Tensor conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options) {
  return record("conv2d", raw::conv2d(x, weight, bias, options), {x, weight, bias},
                [x = Saved(x, requires_grad(weight)), w = Saved(weight, requires_grad(x)), x_shape = x.shape(),
                 w_shape = weight.shape(), options](const Tensor& grad, const Needs& needs) {
                  return Gradients{
                      needs[0] ? by_input(grad, *w, x_shape, options) : Tensor(),
                      needs[1] ? by_weight(grad, *x, w_shape, options, needs.view(1)) : Tensor(),
                      // sums each image first: its elements are contiguous
                      needs[2] ? sum(sum(grad, {2, 3}), {0}, false, needs.view(2)) : Tensor(),
                  };
                });
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Size2d& stride, const Size2d& padding,
              const Size2d& dilation, std::int64_t groups) {
  require_defined("conv2d", x, "x", weight, "weight");
  if (narrows(x, weight, bias)) [[unlikely]]
    return conv2d(narrowed(x), narrowed(weight), narrowed(bias), stride, padding, dilation, groups);
  const ConvolutionOptions options = {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups};
  return on_batch(x, [&](const Tensor& images) { return conv(images, weight, bias, options); });
}

namespace {

// The size of x of the convolution whose result has `size`.
std::int64_t transposed_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                             std::int64_t more, std::int64_t dilation) {
  LOCKSTEP_CHECK(more >= 0 && more < stride, "conv_transpose2d: output_padding is {}, expected 0 to stride - 1 = {}",
                 more, stride - 1);
  const std::int64_t result = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + more + 1;
  LOCKSTEP_CHECK(result >= 1,
                 "conv_transpose2d: the result would have size {}: x has {}, padding is {}; use less padding", result,
                 size, padding);
  return result;
}

}  // namespace

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Size2d& stride,
                        const Size2d& padding, const Size2d& output_padding, std::int64_t groups,
                        const Size2d& dilation) {
  require_defined("conv_transpose2d", x, "x", weight, "weight");
  if (narrows(x, weight, bias)) [[unlikely]]
    return conv_transpose2d(narrowed(x), narrowed(weight), narrowed(bias), stride, padding, output_padding, groups,
                            dilation);
  if (x.dim() == 3)
    return conv_transpose2d(x.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation).squeeze(0);
  LOCKSTEP_CHECK(x.dim() == 4 && weight.dim() == 4 && x.size(1) == weight.size(0),
                 "conv_transpose2d: x is {}, weight {}; expected (images, in, height, width) and (in, out / groups, "
                 "height, width)",
                 describe(x), describe(weight));
  const Shape shape{
      x.size(0), weight.size(1) * groups,
      transposed_size(x.size(2), weight.size(2), stride.height, padding.height, output_padding.height, dilation.height),
      transposed_size(x.size(3), weight.size(3), stride.width, padding.width, output_padding.width, dilation.width)};
  const Tensor y =
      by_input(x, weight, shape, {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
  return bias.defined() ? y + bias.view({bias.numel(), 1, 1}) : y;
}

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

Tensor maximum_of_windows(const Tensor& x, const PoolingOptions& options) {
  raw::MaxPooled pooled = raw::max_pool2d(x, options);
  return record("max_pool2d", std::move(pooled.out), {x},
                [index = pooled.index, shape = x.shape(), options](const Tensor& grad, const Needs&) {
                  return Gradients{spread_to(index, grad, shape, options)};
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
  require_defined("max_pool2d", x);
  if (is_half(x.dtype())) return max_pool2d(in_f32(x), kernel, stride, padding, dilation, ceil_mode).to(x.dtype());
  const PoolingOptions options = pooling(kernel, stride, padding, dilation, ceil_mode);
  return on_batch(x, [&](const Tensor& images) { return maximum_of_windows(images, options); });
}

Tensor avg_pool2d(const Tensor& x, const Size2d& kernel, const Size2d& stride, const Size2d& padding, bool ceil_mode,
                  bool count_include_pad) {
  require_defined("avg_pool2d", x);
  if (is_half(x.dtype()))
    return avg_pool2d(in_f32(x), kernel, stride, padding, ceil_mode, count_include_pad).to(x.dtype());
  const PoolingOptions options = pooling(kernel, stride, padding, 1, ceil_mode);
  return on_batch(x, [&](const Tensor& images) { return average(images, options, count_include_pad); });
}

}  // namespace lockstep
