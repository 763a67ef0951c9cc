// Sums of squares over lines of 64 bytes, in f64: the leaves of the gradient norm (nn/gradient_norm_internal.h).
//
// A line has 16 elements of f32, or 8 of f64. Its sum is (s0 + s1) + (s2 + s3) with
//   f32: si = (x[i]^2 + x[i + 8]^2) + (x[i + 4]^2 + x[i + 12]^2)
//   f64: si = x[i]^2 + x[i + 4]^2
// where elements beyond the end count as 0. The sum of a block of kBlockLines lines adds neighbours, (0, 1), (2, 3),
// ..., then pairs of pairs.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

inline constexpr std::int64_t kLineBytes = 64;
inline constexpr std::int64_t kBlockLines = 256;
template <class T>
inline constexpr std::int64_t kLineElements = kLineBytes / static_cast<std::int64_t>(sizeof(T));

namespace raw {

// The parts of a range of lines: single lines up to a multiple of kBlockLines, then whole blocks, then single lines.
struct LineCut {
  std::int64_t before, blocks, after;
};
LineCut cut_lines(const Tensor& x, std::int64_t first);

// The sums of `x`, contiguous, f32 or f64, whose first element begins line `first`: one f64 for each part of cut_lines.
Tensor line_squares(const Tensor& x, std::int64_t first);

}  // namespace raw
}  // namespace lockstep
