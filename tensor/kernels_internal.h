// What a device has to offer: one table of kernels, generated from ops.def and pointwise.def. Not installed.
//
// Kernels get plain memory and geometry. They never allocate, check, promote or broadcast; raw ops (the wrappers) do,
// and compute nothing themselves.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/tensor/combine_internal.h"
#include "lockstep/tensor/device.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/image_ops_internal.h"
#include "lockstep/tensor/losses.h"
#include "lockstep/tensor/ops_internal.h"
#include "lockstep/tensor/optim_ops_internal.h"
#include "lockstep/tensor/random.h"
#include "lockstep/tensor/scalar.h"
#include "lockstep/tensor/shape.h"

namespace lockstep {

// A loop nest over N operands of one (already broadcast) shape. Operand 0 is the output. Strides are in elements; a
// stride of 0 repeats. Dimensions are merged where all operands allow it.
template <int N>
struct Loop {
  int dims = 0;
  std::int64_t numel = 0;
  std::int64_t shape[kMaxDims];
  std::int64_t strides[N][kMaxDims];
  void* data[N];
};

// A contiguous input seen as (outer, n, inner); n is reduced, or is what a row operation runs along.
struct Rows {
  std::int64_t outer = 1, n = 1, inner = 1;
};

// A strided matrix: element (i, j) is data[i * row + j * column]; one of the two strides is 1.
struct Matrix {
  void* data;
  std::int64_t row, column;
};

// out (m, n) = a (m, k) b (k, n) + bias (n), for each of `batch` problems whose operands lie at the given distances.
struct Gemm {
  std::int64_t m, n, k;
  Matrix a, b, out;
  const void* bias = nullptr;
  std::int64_t batch = 1, a_step = 0, b_step = 0, out_step = 0;
};

inline constexpr std::int64_t kMostWords = 256;  // that one write_words writes

using raw::PointwiseParams;

struct KernelTable {
#define KERNEL(name, signature) void(*name) signature;
#include "lockstep/tensor/ops.def"
#undef KERNEL
// y = f(x); out = grad f'(x) with operands (out, grad, x, y); out = grad f''(x) with operands (out, grad, x).
#define POINTWISE(name, functor, low, high)                            \
  void (*name)(const Loop<2>&, DType, const PointwiseParams&);         \
  void (*name##_slope)(const Loop<4>&, DType, const PointwiseParams&); \
  void (*name##_bend)(const Loop<3>&, DType, const PointwiseParams&);
#include "lockstep/tensor/pointwise.def"
#undef POINTWISE
};

// The table of a device. Throws NotBuilt for a device this build lacks.
const KernelTable& kernels(Device device);

// The instruction-set level whose kernels run: "v2", "v3", "v4" or "native".
const char* cpu_level();
// The level and the library of products, by version: "native, oneDNN 2.6.3". Ranks that compare bits must agree on it.
std::string cpu_description();

}  // namespace lockstep
