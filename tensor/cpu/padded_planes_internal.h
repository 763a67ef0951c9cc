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

// to[t] = from[t step] for t in a range.
template <class T>
void copy_places(const T* from, std::int64_t step, const Range& range, T* to) {
  if (step == 1) {
    if (range.first < range.end) std::copy(from + range.first, from + range.end, to + range.first);
  } else if (step == 2) {  // with vector instructions
    for (std::int64_t t = range.first; t < range.end; ++t) to[t] = from[t * 2];
  } else {
    for (std::int64_t t = range.first; t < range.end; ++t) to[t] = from[t * step];
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
      const auto [first, end] = places_inside(h.input, rows, h.stride, y);
      for (std::int64_t g = 0; g < w.phases(); ++g, to += rows * row) {
        const std::int64_t x = w.residue(g) - w.padding;
        const Range places = places_inside(w.input, row, w.stride, x);
        for (std::int64_t t = first; t < end; ++t)
          copy_places(pixels + (y + t * h.stride) * w.input + x, w.stride, places, to + t * row);
      }
    }
  }
  // One channel of a gradient. Row t and column u are row t + y and column u + x of it.
  template <class T>
  void copy_gradient(const ConvolutionAxis& h, const ConvolutionAxis& w, std::int64_t y, std::int64_t x,
                     const T* pixels, T* to) const {
    std::fill(to, to + rows * row, T(0));
    const auto [first, end] = places_inside(h.output, rows, 1, begin + y);
    const Range places = places_inside(w.output, row, 1, x);
    for (std::int64_t t = first; t < end; ++t)
      copy_places(pixels + (begin + y + t) * w.output + x, 1, places, to + t * row);
  }
};

}  // namespace lockstep::LOCKSTEP_KERNELS
