// The kernel table of a device, generated from ops.def. Not installed.
//
// Kernels receive plain memory and geometry. They never allocate, check, promote or broadcast; raw ops (the wrappers)
// do, and compute nothing themselves.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/device.h"
#include "lockstep/tensor/dtype.h"
#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/scalar.h"
#include "lockstep/tensor/shape.h"

namespace lockstep {

// Defined next to the raw operations that fill them, in tensor/ops. A kernel's file includes the header it needs.
namespace raw {
struct AdamStep;
struct Attention;
struct Combine;
struct Convolution;
struct LionStep;
struct NllOptions;
struct PointwiseLoss;
struct PointwiseParams;
struct RecurrentStep;
struct RmsPropStep;
struct SgdStep;
struct SteppedMemory;
struct Windows;
enum class BinaryOp : std::uint8_t;
enum class Compare : std::uint8_t;
enum class ConvolutionPass : std::uint8_t;
enum class Reduction : std::uint8_t;
enum class Scatter : std::uint8_t;
enum class Step : std::uint8_t;
}  // namespace raw

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

// A contiguous input seen as (outer, n, inner). Reductions and row operations run along n.
struct Rows {
  std::int64_t outer = 1, n = 1, inner = 1;
};

// A strided matrix: element (i, j) is data[i * row + j * column]; one of the two strides is 1.
struct Matrix {
  void* data;
  std::int64_t row, column;
};

// Adds to `offsets` the distance of each operand's element `index` (in row-major order) from its first.
template <int N>
void add_offsets(const Loop<N>& loop, std::int64_t index, std::int64_t (&offsets)[N]) {
  for (int d = loop.dims - 1; d >= 0; --d) {
    const std::int64_t at = index % loop.shape[d];
    index /= loop.shape[d];
    for (int k = 0; k < N; ++k) offsets[k] += at * loop.strides[k][d];
  }
}

// out (m, n) = a (m, k) b (k, n) + bias (n), for each of `batch` problems; their operands lie at the given distances.
// `outer` has further batch dimensions, and the distances of out, a and b in each; null for none.
struct Gemm {
  std::int64_t m, n, k;
  Matrix a, b, out;
  const void* bias = nullptr;
  std::int64_t batch = 1, a_step = 0, b_step = 0, out_step = 0;
  const Loop<3>* outer = nullptr;
  void* workspace = nullptr;
};

inline constexpr std::int64_t kMostWords = 256;  // limit of one write_words

using raw::PointwiseParams;

struct KernelTable {
#define KERNEL(name, signature) void(*name) signature;
#include "lockstep/tensor/kernels/ops.def"
#undef KERNEL
};

// The table of a device. Throws NotBuilt for a device that this build does not support.
const KernelTable& kernels(Device device);

// The kernels of CPU devices, and the same kernels recording a trace event each.
const KernelTable& cpu_kernels();
const KernelTable& traced_cpu_kernels();

// The instruction-set level of the kernels in use: "v2", "v3", "v4" or "native".
const char* cpu_level();
// The level, the version of the matrix library, and whether the processor multiplies bf16: "native, oneDNN 2.6.3, bf16
// products". Ranks that compare bits must agree on these.
std::string cpu_description();

}  // namespace lockstep
