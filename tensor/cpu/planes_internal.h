// Shared by the kernels of convolution and pooling: index ranges of windows that cross the border of the image.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/tensor/cpu/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

struct Range {
  std::int64_t first, end;  // empty if first >= end
};

// The positions p in [0, output) with 0 <= p * stride + shift < input.
inline Range places_inside(std::int64_t input, std::int64_t output, std::int64_t stride, std::int64_t shift) {
  const std::int64_t first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  const std::int64_t end = input > shift ? (input - shift + stride - 1) / stride : 0;
  return {first, std::min(output, end)};
}

// The coordinate of the first element inside the image, for a window that begins at `start`, which is negative in the
// padding.
inline std::int64_t first_seen(std::int64_t start, std::int64_t dilation) {
  return start >= 0 ? start : start + (dilation - 1 - start) / dilation * dilation;
}

}  // namespace lockstep::LOCKSTEP_KERNELS
