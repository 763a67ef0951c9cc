// Convolution: cuDNN, then the bias. The host build for tests uses plain sums instead.
#include "lockstep/tensor/cuda/divisor_internal.h"
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

#ifdef __CUDACC__
#include "lockstep/tensor/cuda/convolution_internal.h"
#endif

namespace lockstep::LOCKSTEP_KERNELS {

void gemm(const Gemm& g, DType dtype);                                             // kernels_gemm.cu
void sum(const void* in, void* out, const Rows& rows, DType dtype, double scale);  // kernels_reduce.cu

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

// The inputs of every window, 0 in the padding: columns (images, in * taps, windows).
template <class T>
struct GatherColumns {
  const T* x;
  T* columns;
  raw::Windows windows;
  Divisor by_taps, by_tap_columns, by_windows, by_columns;

  GatherColumns(const Convolution& c, const T* x, T* columns)
      : x(x), columns(columns), windows(c.windows), by_taps(windows.kernel.height * windows.kernel.width),
        by_tap_columns(windows.kernel.width), by_windows(windows.output.height * windows.output.width),
        by_columns(windows.output.width) {}
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const raw::Windows& w = windows;
    const Quotient at = by_windows.divide(i), window = by_columns.divide(at.rest);
    const Quotient plane = by_taps.divide(at.whole), tap = by_tap_columns.divide(plane.rest);
    const std::int64_t row = window.whole * w.stride.height - w.padding.height + tap.whole * w.dilation.height;
    const std::int64_t column = window.rest * w.stride.width - w.padding.width + tap.rest * w.dilation.width;
    const bool is_inside = row >= 0 && row < w.input.height && column >= 0 && column < w.input.width;
    columns[i] = is_inside ? x[(plane.whole * w.input.height + row) * w.input.width + column] : T(0);
  }
};

std::int64_t inputs_of_window(const Convolution& c) { return c.in * c.windows.kernel.height * c.windows.kernel.width; }
std::int64_t windows_of_image(const Convolution& c) { return c.windows.output.height * c.windows.output.width; }

// Whether the weight's gradient is computed by product_of_columns. For small layers cuDNN's deterministic algorithms are
// slow: 0.54 ms for 256 images of 16x14x14 and 32 channels, where the rest of a CNN's step takes 0.4 ms.
bool is_small(const Convolution& c, DType dtype) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 28, kMostInputs = 256, kMostChannels = 64;
  const std::int64_t inputs = inputs_of_window(c);
  return c.groups == 1 && c.out <= kMostChannels && inputs <= kMostInputs &&
         c.images * inputs * windows_of_image(c) * static_cast<std::int64_t>(item_size(dtype)) <= kMostBytes;
}

// The weight's gradient as a product for each image, and their sum.
template <class T>
void product_of_columns(const Convolution& c, const T* grad, const T* x, T* out, DType dtype) {
  const std::int64_t inputs = inputs_of_window(c), windows = windows_of_image(c), weights = c.out * inputs;
  const auto bytes = [](std::int64_t count) { return count * static_cast<std::int64_t>(sizeof(T)); };
  const Scratch columns(bytes(c.images * inputs * windows)), products(bytes(c.images * weights));
  launch_elements("conv2d backward", c.images * inputs * windows, GatherColumns<T>(c, x, columns.as<T>()));
  gemm({.m = c.out,
        .n = inputs,
        .k = windows,
        .a = {const_cast<T*>(grad), windows, 1},
        .b = {columns.as<T>(), 1, windows},
        .out = {products.as<T>(), inputs, 1},
        .batch = c.images,
        .a_step = c.out * windows,
        .b_step = inputs * windows,
        .out_step = weights},
       dtype);
  sum(products.as<T>(), out, {.outer = 1, .n = c.images, .inner = weights}, dtype, 1);
}

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
  if (is_small(c, dtype)) {
    return for_float(dtype, [&]<class T>(T) {
      product_of_columns(c, static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<T*>(out), dtype);
    });
  }
  run(c, ConvolutionPass::kBackwardWeight, grad, x, out, dtype);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
