// Matrix products by cuBLAS.
#pragma once

#include "lockstep/tensor/kernels_internal.h"

namespace lockstep::inline LOCKSTEP_ABI::cuda {

// gemm without its bias, on the current device's stream; dtype is f32 or f64. `out` has row stride n and column stride 1.
void product(const Gemm& gemm, DType dtype);

}  // namespace lockstep::inline LOCKSTEP_ABI::cuda
