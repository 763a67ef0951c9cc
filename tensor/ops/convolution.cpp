// Convolution: checks and allocation around the kernels of tensor/cpu/kernels_convolution.cpp.
#include "lockstep/tensor/ops/windows_internal.h"

namespace lockstep::raw {

namespace {

constexpr const char* kConv2d = "conv2d";

Convolution geometry(const Tensor& x, const Tensor& weight, const ConvolutionOptions& options) {
  require_same(kConv2d, x, weight);
  require_picture(kConv2d, x);
  LOCKSTEP_CHECK(weight.dim() == 4, "conv2d: weight must be (out, in / groups, height, width), got {}",
                 describe(weight));
  const std::int64_t groups = options.groups;
  LOCKSTEP_CHECK(groups >= 1 && x.size(1) % groups == 0 && weight.size(0) % groups == 0,
                 "conv2d: {} groups do not divide the channels: x is {}, weight is {}", groups, describe(x),
                 describe(weight));
  LOCKSTEP_CHECK(x.size(1) == weight.size(1) * groups, "conv2d: channels differ: x is {}, weight is {}, groups {}",
                 describe(x), describe(weight), groups);
  return {.windows = windows_over(kConv2d, x, {weight.size(2), weight.size(3)}, options.stride, options.padding,
                                  options.dilation),
          .images = x.size(0),
          .groups = groups,
          .in = weight.size(1),
          .out = weight.size(0) / groups};
}

Shape out_shape(const Convolution& c) {
  return {c.images, c.groups * c.out, c.windows.output.height, c.windows.output.width};
}

void require_grad(const Tensor& grad, const Convolution& c, const Tensor& like) {
  require_same(kConv2d, grad, like);
  LOCKSTEP_CHECK(grad.shape() == out_shape(c), "conv2d: the gradient is {}, the result had shape {}", describe(grad),
                 out_shape(c).to_string());
}

// The workspace that the device's kernel needs.
Tensor workspace(const Convolution& c, ConvolutionPass pass, const Tensor& like) {
  std::int64_t elements = 0;
  kernels(like.device()).conv2d_workspace(c, pass, &elements);
  return elements > 0 ? empty({elements}, like.options()) : Tensor();
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options) {
  const Convolution c = geometry(x, weight, options);
  if (bias.defined()) {
    require_same(kConv2d, x, bias);
    LOCKSTEP_CHECK(bias.dim() == 1 && bias.size(0) == weight.size(0), "conv2d: bias is {}, weight is {}",
                   describe(bias), describe(weight));
  }
  if (is_half(x.dtype())) return to(conv2d(widened(x), widened(weight), widened(bias), options), x.dtype());
  Tensor out = empty(out_shape(c), x.options());
  if (out.numel() == 0) return out;
  if (weight.numel() == 0) {  // no input channels
    if (bias.defined())
      copy(view(contiguous(bias), {bias.size(0), 1, 1}), out);
    else
      fill(out, 0);
    return out;
  }
  const Dense input(x), w(weight), b(bias);
  const Tensor room = workspace(c, ConvolutionPass::kForward, x);
  kernels(x.device()).conv2d(c, input.data(), w.data(), b.data(), out.raw_data(), data_or_null(room), x.dtype());
  return out;
}

Tensor conv2d_backward_input(const Tensor& grad, const Tensor& weight, const Shape& shape,
                             const ConvolutionOptions& options) {
  Tensor out = empty(shape, grad.options());
  const Convolution c = geometry(out, weight, options);
  require_grad(grad, c, weight);
  if (is_half(grad.dtype()))
    return to(conv2d_backward_input(widened(grad), widened(weight), shape, options), grad.dtype());
  if (out.numel() == 0) return out;
  if (grad.numel() == 0) return fill(out, 0), out;
  const Dense g(grad), w(weight);
  const Tensor room = workspace(c, ConvolutionPass::kBackwardInput, grad);
  kernels(grad.device()).conv2d_backward_input(c, g.data(), w.data(), out.raw_data(), data_or_null(room), grad.dtype());
  return out;
}

void conv2d_backward_weight(const Tensor& grad, const Tensor& x, const Tensor& out, const ConvolutionOptions& options) {
  const Convolution c = geometry(x, out, options);
  require_grad(grad, c, x);
  LOCKSTEP_CHECK(out.is_contiguous(), "conv2d: the output for a gradient is not contiguous: {}", describe(out));
  if (out.numel() == 0) return;
  if (grad.numel() == 0) return fill(out, 0);
  if (is_half(grad.dtype())) {
    const Tensor wide = empty(out.shape(), {.dtype = kFloat32, .device = out.device()});
    conv2d_backward_weight(widened(grad), widened(x), wide, options);
    return copy(wide, out);
  }
  const Dense g(grad), input(x);
  const Tensor room = workspace(c, ConvolutionPass::kBackwardWeight, grad);
  kernels(grad.device())
      .conv2d_backward_weight(c, g.data(), input.data(), out.raw_data(), data_or_null(room), grad.dtype());
}

}  // namespace lockstep::raw
