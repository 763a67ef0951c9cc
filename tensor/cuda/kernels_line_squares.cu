// Sums of squares over 64-byte lines: see line_squares_internal.h. One thread per line.
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/ops/line_squares_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// The sum of the first `count` elements of a line.
template <class T>
DEVICE_ONLY double line_sum(const T* x, std::int64_t count) {
  constexpr int kElements = static_cast<int>(kLineElements<T>);
  double sums[kElements];
  UNROLL_ALL
  for (int i = 0; i < kElements; ++i) {
    const double value = i < count ? static_cast<double>(x[i]) : 0;
    sums[i] = value * value;
  }
  UNROLL_ALL
  for (int half = kElements / 2; half >= 4; half /= 2) {
    UNROLL_ALL
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
struct SquaresOfLine {
  const T* in;
  double* out;
  std::int64_t count;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    out[i] = line_sum(in + i * kLineElements<T>, count - i * kLineElements<T>);
  }
};

// The lowest `bits` bits of `value`, in reverse order.
DEVICE_ONLY inline int reversed(int value, int bits) {
  int out = 0;
  for (int bit = 0; bit < bits; ++bit) out |= (value >> bit & 1) << (bits - 1 - bit);
  return out;
}

// Block::reduce first adds threads that are 16 apart, then 8, 4, 2, 1, then warps 4, 2, 1 apart. So the threads take
// lines such that it adds neighbours first.
template <class T>
struct SquaresOfBlock {
  static_assert(kThreads == kBlockLines && kWarp == 32);
  const T* in;
  double* out;
  DEVICE_ONLY void operator()(const Block& block) const {
    const T* const first = in + block.index() * kBlockLines * kLineElements<T>;
    PerThread<double> sums;
    block.each([&](int thread) {
      const int line = reversed(thread % kWarp, 5) + kWarp * reversed(thread / kWarp, 3);
      sums[thread] = line_sum(first + line * kLineElements<T>, kLineElements<T>);
    });
    const double total = block.reduce(sums, [](double a, double b) { return a + b; });
    block.each([&](int thread) {
      if (thread == 0) out[block.index()] = total;
    });
  }
};

}  // namespace

void line_squares(const void* in, double* out, std::int64_t count, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    const std::int64_t lines = (count + kLineElements<T> - 1) / kLineElements<T>;
    launch_elements("line_squares", lines, SquaresOfLine<T>{static_cast<const T*>(in), out, count});
  });
}

void block_squares(const void* in, double* out, std::int64_t blocks, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    launch_blocks("block_squares", blocks, SquaresOfBlock<T>{static_cast<const T*>(in), out});
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
