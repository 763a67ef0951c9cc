// Shared by the image kernels: the windows of a row that contain an element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/tensor/cpu/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

struct Range {
  std::int64_t first, last;  // last: one past the end
};

// The positions p in [0, output) with 0 <= p stride + shift < input.
inline Range places_inside(std::int64_t input, std::int64_t output, std::int64_t stride, std::int64_t shift) {
  const std::int64_t first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
  const std::int64_t last = input > shift ? (input - shift + stride - 1) / stride : 0;
  return {first, std::min(output, last)};
}

// The first element inside the image of a window that begins at `start`.
inline std::int64_t first_seen(std::int64_t start, std::int64_t dilation) {
  return start >= 0 ? start : start + (dilation - 1 - start) / dilation * dilation;
}

}  // namespace lockstep::LOCKSTEP_KERNELS
