// Convolution: cuDNN, then the bias. The host build for tests uses plain sums instead.
#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/for_dtype_internal.h"

#ifdef __CUDACC__
#include "lockstep/tensor/cuda/convolution_internal.h"
#endif

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

using raw::Convolution;
using raw::ConvolutionPass;

template <class T>
struct AddChannelBias {  // out (images, channels, size) += bias (channels)
  T* out;
  const T* bias;
  Divisor channels, size;
  DEVICE_ONLY void operator()(std::int64_t i) const { out[i] += bias[channels.divide(size.divide(i).whole).rest]; }
};

// The weight's gradient if each group has one input channel, as in the first layer for grey images: every number of it
// is a sum over all windows. cuDNN's deterministic algorithms are ten times slower there.
template <class T>
struct WeightGradient {
  using Sum = T;
  const T *grad, *x;
  T* out;
  raw::Windows windows;
  std::int64_t channels, groups;  // output channels
  Divisor by_taps, by_tap_columns, by_outs, by_windows, by_columns;

  WeightGradient(const Convolution& c, const T* grad, const T* x, T* out)
      : grad(grad), x(x), out(out), windows(c.windows), channels(c.groups * c.out), groups(c.groups),
        by_taps(windows.kernel.height * windows.kernel.width), by_tap_columns(windows.kernel.width), by_outs(c.out),
        by_windows(windows.output.height * windows.output.width), by_columns(windows.output.width) {}
  // The shape for launch_reduce: one output per number of the weight.
  Rows reduced(std::int64_t images) const {
    return {.outer = channels * by_taps.size(), .n = images * by_windows.size(), .inner = 1};
  }

  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t, std::int64_t output, std::int64_t r) const {
    const Quotient weight = by_taps.divide(output), tap = by_tap_columns.divide(weight.rest);
    const Quotient at = by_windows.divide(r), window = by_columns.divide(at.rest);
    const raw::Windows& w = windows;
    const std::int64_t row = window.whole * w.stride.height - w.padding.height + tap.whole * w.dilation.height;
    const std::int64_t column = window.rest * w.stride.width - w.padding.width + tap.rest * w.dilation.width;
    if (row < 0 || row >= w.input.height || column < 0 || column >= w.input.width) return;
    const std::int64_t plane = at.whole * groups + by_outs.divide(weight.whole).whole;
    sum += grad[(at.whole * channels + weight.whole) * by_windows.size() + at.rest] *
           x[(plane * w.input.height + row) * w.input.width + column];
  }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t output, Sum sum) const { out[output] = sum; }
};

#ifndef __CUDACC__
// Calls visit(indices in x, weight and out) for every product of the convolution.
template <class Visit>
void for_products(const Convolution& c, Visit visit) {
  const raw::Windows& w = c.windows;
  for (std::int64_t image = 0; image < c.images; ++image) {
    for (std::int64_t o = 0; o < c.groups * c.out; ++o) {
      for (std::int64_t i = 0; i < c.in; ++i) {
        const std::int64_t plane = (image * c.groups + o / c.out) * c.in + i;
        for (std::int64_t k = 0; k < w.kernel.height * w.kernel.width; ++k) {
          for (std::int64_t at = 0; at < w.output.height * w.output.width; ++at) {
            const std::int64_t row =
                at / w.output.width * w.stride.height - w.padding.height + k / w.kernel.width * w.dilation.height;
            const std::int64_t column =
                at % w.output.width * w.stride.width - w.padding.width + k % w.kernel.width * w.dilation.width;
            if (row < 0 || row >= w.input.height || column < 0 || column >= w.input.width) continue;
            visit((plane * w.input.height + row) * w.input.width + column,
                  (o * c.in + i) * w.kernel.height * w.kernel.width + k,
                  (image * c.groups * c.out + o) * w.output.height * w.output.width + at);
          }
        }
      }
    }
  }
}

template <class T>
void plain_sums(const Convolution& c, ConvolutionPass pass, const T* a, const T* b, T* out) {
  const raw::Windows& w = c.windows;
  const std::int64_t pixels = w.input.height * w.input.width, windows = w.output.height * w.output.width;
  const std::int64_t sizes[] = {c.images * c.groups * c.out * windows, c.images * c.groups * c.in * pixels,
                                c.groups * c.out * c.in * w.kernel.height * w.kernel.width};
  for (std::int64_t i = 0; i < sizes[static_cast<int>(pass)]; ++i) out[i] = 0;
  for_products(c, [&](std::int64_t x, std::int64_t weight, std::int64_t y) {
    if (pass == ConvolutionPass::kForward)
      out[y] += a[x] * b[weight];
    else if (pass == ConvolutionPass::kBackwardInput)
      out[x] += a[y] * b[weight];
    else
      out[weight] += a[y] * b[x];
  });
}
#endif

void run(const Convolution& c, ConvolutionPass pass, const void* a, const void* b, void* out, DType dtype) {
#ifdef __CUDACC__
  cuda::convolve(c, pass, a, b, out, dtype);
#else
  for_float(dtype, [&]<class T>(T) {
    plain_sums(c, pass, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out));
  });
#endif
}

}  // namespace

// convolve() allocates cuDNN's workspace itself for each call.
void conv2d_workspace(const Convolution&, ConvolutionPass, std::int64_t* elements) { *elements = 0; }

void conv2d(const Convolution& c, const void* x, const void* weight, const void* bias, void* out, void*, DType dtype) {
  run(c, ConvolutionPass::kForward, x, weight, out, dtype);
  if (!bias) return;
  for_float(dtype, [&]<class T>(T) {
    const std::int64_t channels = c.groups * c.out, size = c.windows.output.height * c.windows.output.width;
    launch_elements(
        "conv2d", c.images * channels * size,
        AddChannelBias<T>{static_cast<T*>(out), static_cast<const T*>(bias), Divisor(channels), Divisor(size)});
  });
}

void conv2d_backward_input(const Convolution& c, const void* grad, const void* weight, void* out, void*, DType dtype) {
  run(c, ConvolutionPass::kBackwardInput, grad, weight, out, dtype);
}

void conv2d_backward_weight(const Convolution& c, const void* grad, const void* x, void* out, void*, DType dtype) {
  if (c.in == 1) {
    return for_float(dtype, [&]<class T>(T) {
      const WeightGradient<T> sums(c, static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<T*>(out));
      launch_reduce("conv2d backward", sums.reduced(c.images), sums);
    });
  }
  run(c, ConvolutionPass::kBackwardWeight, grad, x, out, dtype);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
