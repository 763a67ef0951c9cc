// Pooling: checks and allocation around the kernels of tensor/cpu/kernels_pooling.cpp.
#include "lockstep/tensor/ops/windows_internal.h"

namespace lockstep::raw {

namespace {

Windows geometry(const char* op, const Tensor& x, const PoolingOptions& options) {
  require_picture(op, x);
  const Windows w =
      windows_over(op, x, options.kernel, options.stride, options.padding, options.dilation, options.ceil_mode);
  LOCKSTEP_CHECK(w.input.height * w.input.width <= kMostSize, "{}: images may have at most {} elements, x is {}", op,
                 kMostSize, describe(x));
  // These three checks exclude windows that consist of padding alone.
  LOCKSTEP_CHECK(2 * w.padding.height <= w.kernel.height && 2 * w.padding.width <= w.kernel.width,
                 "{}: the padding {} is more than half of the kernel, {}", op, text(w.padding), text(w.kernel));
  LOCKSTEP_CHECK(w.input.height > 0 && w.input.width > 0, "{}: the images have no elements: x is {}", op, describe(x));
  LOCKSTEP_CHECK((w.padding.height == 0 || w.dilation.height <= w.input.height) &&
                     (w.padding.width == 0 || w.dilation.width <= w.input.width),
                 "{}: with padding, the dilation {} must not exceed the images' size: x is {}", op, text(w.dilation),
                 describe(x));
  return w;
}

std::int64_t planes(const Tensor& x) { return x.size(0) * x.size(1); }

Tensor empty_output(const Tensor& x, const Windows& w, DType dtype) {
  return empty({x.size(0), x.size(1), w.output.height, w.output.width}, {.dtype = dtype, .device = x.device()});
}

// The windows over `out`, the gradient of x; checks grad against them.
Windows backward_geometry(const char* op, const Tensor& grad, const Tensor& out, const PoolingOptions& options) {
  const Windows w = geometry(op, out, options);
  const Shape expected = {out.size(0), out.size(1), w.output.height, w.output.width};
  LOCKSTEP_CHECK(grad.shape() == expected, "{}: the gradient is {}, the result had shape {}", op, describe(grad),
                 expected.to_string());
  return w;
}

}  // namespace

MaxPooled max_pool2d(const Tensor& x, const PoolingOptions& options) {
  const Windows w = geometry("max_pool2d", x, options);
  MaxPooled result{.out = empty_output(x, w, x.dtype()), .index = empty_output(x, w, kInt64)};
  const Dense input(x);
  if (result.out.numel() > 0)
    kernels(x.device())
        .max_pool2d(w, input.data(), result.out.raw_data(), result.index.data<std::int64_t>(), planes(x), x.dtype());
  return result;
}

Tensor max_pool2d_backward(const Tensor& grad, const Tensor& index, const Shape& shape, const PoolingOptions& options) {
  Tensor out = empty(shape, grad.options());
  const Windows w = backward_geometry("max_pool2d", grad, out, options);
  const Dense g(grad);
  if (out.numel() > 0)
    kernels(grad.device())
        .max_pool2d_backward(w, g.data(), index.data<std::int64_t>(), out.raw_data(), planes(out), grad.dtype());
  return out;
}

Tensor avg_pool2d(const Tensor& x, const PoolingOptions& options, bool count_include_pad) {
  const Windows w = geometry("avg_pool2d", x, options);
  Tensor out = empty_output(x, w, x.dtype());
  const Dense input(x);
  if (out.numel() > 0)
    kernels(x.device()).avg_pool2d(w, input.data(), out.raw_data(), planes(x), x.dtype(), count_include_pad);
  return out;
}

Tensor avg_pool2d_backward(const Tensor& grad, const Shape& shape, const PoolingOptions& options,
                           bool count_include_pad) {
  Tensor out = empty(shape, grad.options());
  const Windows w = backward_geometry("avg_pool2d", grad, out, options);
  const Dense g(grad);
  if (out.numel() > 0)
    kernels(grad.device())
        .avg_pool2d_backward(w, g.data(), out.raw_data(), planes(out), grad.dtype(), count_include_pad);
  return out;
}

}  // namespace lockstep::raw
