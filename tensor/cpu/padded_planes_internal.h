// Copies of images for convolutions: channels with their zeros, so that one kernel element of all windows of a row, and
// of the rows below, is a contiguous run. Strides split a channel into one plane for each phase, which keeps that so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "lockstep/tensor/cpu/planes_internal.h"
#include "lockstep/tensor/ops/image_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// One dimension of a convolution. Element i of the window at position p is at p stride + i dilation - padding: in the plane
// of phase(i), at p + shift(i), where plane f holds x[t stride + residue(f) - padding] at t.
struct ConvolutionAxis {
  std::int64_t input, output, kernel, stride, padding, dilation;

  std::int64_t period() const { return stride / std::gcd(dilation, stride); }
  std::int64_t phases() const { return std::min(kernel, period()); }
  std::int64_t phase(std::int64_t i) const { return i % period(); }
  std::int64_t residue(std::int64_t phase) const { return phase * dilation % stride; }
  std::int64_t shift(std::int64_t i) const { return i * dilation / stride; }
  std::int64_t reach() const { return shift(kernel - 1); }
  // Backwards: x[t stride + residue - padding] gets what the kernel elements of its phase give, for `places` values of t
  // from `first_place`.
  std::int64_t first_place() const { return padding / stride; }
  std::int64_t places() const { return (input - 1 + padding) / stride + 1 - first_place(); }
  // The index in x of place t, counted from first_place.
  std::int64_t target(std::int64_t phase) const { return first_place() * stride + residue(phase) - padding; }
};

inline ConvolutionAxis height_axis(const raw::Windows& w) {
  return {w.input.height, w.output.height, w.kernel.height, w.stride.height, w.padding.height, w.dilation.height};
}
inline ConvolutionAxis width_axis(const raw::Windows& w) {
  return {w.input.width, w.output.width, w.kernel.width, w.stride.width, w.padding.width, w.dilation.width};
}

// to[t] = from[t step + start] for t in [0, count), where that is in [0, length).
template <class T>
void copy_inside(const T* from, std::int64_t length, std::int64_t step, std::int64_t start, std::int64_t count, T* to) {
  const auto [first, last] = places_inside(length, count, step, start);
  if (step == 1) {
    if (first < last) std::copy(from + start + first, from + start + last, to + first);
  } else if (step == 2) {  // with vector instructions
    for (std::int64_t t = first; t < last; ++t) to[t] = from[t * 2 + start];
  } else {
    for (std::int64_t t = first; t < last; ++t) to[t] = from[t * step + start];
  }
}

// The rows [begin, begin + rows) of padded planes; each row has `row` elements.
struct PaddedRows {
  std::int64_t begin, rows, row;

  // Planes of one channel of x, `pixels`, for windows.
  template <class T>
  void copy_input(const ConvolutionAxis& h, const ConvolutionAxis& w, const T* pixels, T* to) const {
    std::fill(to, to + h.phases() * w.phases() * rows * row, T(0));
    for (std::int64_t f = 0; f < h.phases(); ++f) {
      const std::int64_t y = begin * h.stride + h.residue(f) - h.padding;
      const auto [first, last] = places_inside(h.input, rows, h.stride, y);
      for (std::int64_t g = 0; g < w.phases(); ++g, to += rows * row) {
        for (std::int64_t t = first; t < last; ++t)
          copy_inside(pixels + (y + t * h.stride) * w.input, w.input, w.stride, w.residue(g) - w.padding, row,
                      to + t * row);
      }
    }
  }
  // One channel of a gradient. Row t and column u are row t + y and column u + x of it.
  template <class T>
  void copy_gradient(const ConvolutionAxis& h, const ConvolutionAxis& w, std::int64_t y, std::int64_t x,
                     const T* pixels, T* to) const {
    std::fill(to, to + rows * row, T(0));
    const auto [first, last] = places_inside(h.output, rows, 1, begin + y);
    for (std::int64_t t = first; t < last; ++t)
      copy_inside(pixels + (begin + y + t) * w.output, w.output, 1, x, row, to + t * row);
  }
};

}  // namespace lockstep::LOCKSTEP_KERNELS
