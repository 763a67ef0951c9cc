// The declarations of one kernel table and its namespace. Included first by every file of kernels, which is compiled
// once for each table (an instruction-set level, or a kind of device) with LOCKSTEP_KERNELS set to the namespace:
// cpu::v3, cuda::device.
#pragma once

#include "lockstep/tensor/kernels/kernels_internal.h"

// Marks functions that host and device share.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

namespace lockstep::LOCKSTEP_KERNELS {

#define KERNEL(name, signature) void name signature;
#include "lockstep/tensor/kernels/ops.def"
#undef KERNEL

extern const KernelTable kTable;

}  // namespace lockstep::LOCKSTEP_KERNELS
