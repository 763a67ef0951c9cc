// Sums of squares over 64-byte lines: see line_squares_internal.h. Four lines are summed at a time, one in each lane.
#include "lockstep/tensor/kernels/level_internal.h"

#include <algorithm>
#include <cstring>
#ifdef __AVX__
#include <immintrin.h>
#endif

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/ops/line_squares_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {
namespace {

using Lanes = double __attribute__((vector_size(32)));  // passed by reference: the ABI of values depends on the level

inline void load(Lanes& to, const float* from) {
#ifdef __AVX__  // GCC 12 would convert in two halves
  to = _mm256_cvtps_pd(_mm_loadu_ps(from));
#else
  to = Lanes{from[0], from[1], from[2], from[3]};
#endif
}
inline void load(Lanes& to, const double* from) { std::memcpy(&to, from, sizeof to); }

// s0 to s3 of a line.
inline void quarters(Lanes& out, const float* x) {
  Lanes a, b, c, d;
  load(a, x), load(b, x + 4), load(c, x + 8), load(d, x + 12);
#ifdef __FMA__  // has the same bits: the square of an f32 is exact in f64
  out = _mm256_fmadd_pd(c, c, a * a) + _mm256_fmadd_pd(d, d, b * b);
#else
  out = (a * a + c * c) + (b * b + d * d);
#endif
}
inline void quarters(Lanes& out, const double* x) {
  Lanes a, b;
  load(a, x), load(b, x + 4);
  out = a * a + b * b;
}

// The sums of four lines, `distance` lines apart.
template <class T>
void four_lines(Lanes& out, const T* x, std::int64_t distance) {
  Lanes a, b, c, d;
  quarters(a, x), quarters(b, x + distance * kLineElements<T>);
  quarters(c, x + 2 * distance * kLineElements<T>), quarters(d, x + 3 * distance * kLineElements<T>);
  const Lanes ab = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
  const Lanes cd = __builtin_shufflevector(c, d, 0, 4, 2, 6) + __builtin_shufflevector(c, d, 1, 5, 3, 7);
  out = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

// Each lane sums a quarter of the block.
template <class T>
double block_sum(const T* x) {
  constexpr std::int64_t kQuarter = kBlockLines / 4;
  Lanes sums[kQuarter];
  for (std::int64_t i = 0; i < kQuarter; ++i) four_lines(sums[i], x + i * kLineElements<T>, kQuarter);
  for (std::int64_t nodes = kQuarter / 2; nodes > 0; nodes /= 2) {
    for (std::int64_t i = 0; i < nodes; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]);
}

}  // namespace

void line_squares(const void* in, double* out, std::int64_t count, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    constexpr std::int64_t kLine = kLineElements<T>;
    Lanes sums;
    for (std::int64_t at = 0; at < count; at += 4 * kLine, out += 4) {
      T last[4 * kLine];
      const T* x = as<T>(in) + at;
      const std::int64_t left = count - at;
      if (left < 4 * kLine) {
        std::memset(last, 0, sizeof last);
        x = static_cast<T*>(std::memcpy(last, x, static_cast<std::size_t>(left) * sizeof(T)));
      }
      four_lines(sums, x, 1);
      const std::int64_t lines = std::min<std::int64_t>((left + kLine - 1) / kLine, 4);
      std::memcpy(out, &sums, static_cast<std::size_t>(lines) * sizeof(double));
    }
  });
}

void block_squares(const void* in, double* out, std::int64_t blocks, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    constexpr std::int64_t kBlock = kBlockLines * kLineElements<T>;
    for_units(blocks, kBlock, [=](std::int64_t i) { out[i] = block_sum(as<T>(in) + i * kBlock); });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
