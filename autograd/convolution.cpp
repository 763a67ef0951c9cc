// Convolution: forward and gradients side by side.
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/view_results_internal.h"
#include "lockstep/tensor/image_ops_internal.h"
#include "lockstep/tensor/ops_internal.h"

namespace lockstep {

using autograd::Gradients;
using autograd::Needs;
using autograd::record;
using autograd::requires_grad;
using autograd::Saved;
using raw::ConvolutionOptions;

namespace {

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
  return conv(x, weight, bias, {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
}

}  // namespace lockstep
