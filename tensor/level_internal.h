// The declarations of one kernel table and its namespace. Included first by every file of kernels, which is compiled
// once for each table (an instruction-set level, or a kind of device) with LOCKSTEP_KERNELS set to the namespace:
// cpu::v3, cuda::device.
#pragma once

#include "lockstep/tensor/kernels_internal.h"

// Marks functions that host and device share.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

namespace lockstep::LOCKSTEP_KERNELS {

#define KERNEL(name, signature) void name signature;
#include "lockstep/tensor/ops.def"
#undef KERNEL
#define POINTWISE(name, functor, low, high)                              \
  void name(const Loop<2>&, DType, const PointwiseParams&);              \
  void name##_derivative(const Loop<4>&, DType, const PointwiseParams&); \
  void name##_second_derivative(const Loop<3>&, DType, const PointwiseParams&);
#include "lockstep/tensor/pointwise.def"
#undef POINTWISE

extern const KernelTable kTable;

}  // namespace lockstep::LOCKSTEP_KERNELS
