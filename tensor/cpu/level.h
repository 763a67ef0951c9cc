// One instruction-set level: the namespace its kernels live in, and their declarations. Included first by every
// kernels_*.cpp, which is compiled once for each level with LOCKSTEP_LEVEL set.
#pragma once

#include "lockstep/tensor/kernels_internal.h"

#define LOCKSTEP_KERNELS cpu::LOCKSTEP_LEVEL

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

#define KERNEL(name, signature) void name signature;
#include "lockstep/tensor/ops.def"
#undef KERNEL
#define POINTWISE(name, functor, low, high)                         \
  void name(const Loop<2>&, DType, const PointwiseParams&);         \
  void name##_slope(const Loop<4>&, DType, const PointwiseParams&); \
  void name##_bend(const Loop<3>&, DType, const PointwiseParams&);
#include "lockstep/tensor/pointwise.def"
#undef POINTWISE

extern const KernelTable kTable;

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
