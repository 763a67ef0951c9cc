// Raw operations on images (images, channels, height, width): convolution, pooling, batch normalisation. f32 and f64.
// autograd/ops/functions.h has the public ones, with formulas.
#pragma once

#include <cstdint>

#include "lockstep/tensor/size2d.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// Windows of `kernel` elements, `dilation` apart, at `output` positions, `stride` apart, of images of `input` elements
// with `padding` more on each side.
struct Windows {
  Size2d input, output, kernel, stride, padding, dilation;
};

// x (images, groups in, height, width), weight (groups out, in, kernel), out (images, groups out, output): the output
// channels of a group depend on the input channels of the same group.
struct Convolution {
  Windows windows;
  std::int64_t images, groups, in, out;  // in and out: channels of one group
};
// The pass of a convolution that a kernel computes.
enum class ConvolutionPass : std::uint8_t { kForward, kBackwardInput, kBackwardWeight };

struct ConvolutionOptions {
  Size2d stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
};

// bias (groups out) may be undefined.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvolutionOptions& options);
// The gradient of x, which has `shape`.
Tensor conv2d_backward_input(const Tensor& grad, const Tensor& weight, const Shape& shape,
                             const ConvolutionOptions& options);
// The gradient of the weight, written to `out`, which has its shape.
void conv2d_backward_weight(const Tensor& grad, const Tensor& x, const Tensor& out, const ConvolutionOptions& options);

struct PoolingOptions {
  Size2d kernel, stride, padding, dilation = 1;
  bool ceil_mode = false;  // a last window that begins inside the image or its leading padding may reach past the end
};

struct MaxPooled {
  Tensor out;
  Tensor index;  // i64, shape of out: the largest element's row-major index in its image
};
MaxPooled max_pool2d(const Tensor& x, const PoolingOptions& options);
// Adds each element of `grad` at the position in `index`; the result has `shape`.
Tensor max_pool2d_backward(const Tensor& grad, const Tensor& index, const Shape& shape, const PoolingOptions& options);

Tensor avg_pool2d(const Tensor& x, const PoolingOptions& options, bool count_include_pad);
Tensor avg_pool2d_backward(const Tensor& grad, const Shape& shape, const PoolingOptions& options,
                           bool count_include_pad);

struct BatchNormalized {
  Tensor out;
  Tensor statistics;  // (2, channels): mean and 1 / sqrt(variance + eps) of each channel
};
// Normalises by the batch's statistics. weight, bias, running_mean and running_var are (channels) or undefined; the
// running statistics move by `momentum` towards the batch's mean and unbiased variance. A batch without elements has an
// empty result and changes no running statistics; one value for each channel is an error.
BatchNormalized batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                           const Tensor& running_var, double momentum, double eps);
// Returns the gradient of x; writes the gradients of the parameters that are defined.
Tensor batch_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& statistics,
                           const Tensor& grad_weight, const Tensor& grad_bias);

}  // namespace lockstep::raw
