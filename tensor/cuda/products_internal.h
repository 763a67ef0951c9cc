// Matrix products by cuBLAS, on the current device's stream.
#pragma once

#include "lockstep/tensor/kernels/kernels_internal.h"

namespace lockstep::cuda {

// The product without its bias. `out` has column stride 1; f16 and bf16 are summed in f32; f32 uses TF32 if allowed
// (tf32.h).
void product(const Gemm& gemm, DType dtype);
// The product and its bias in one kernel. Returns false if there is no such kernel; then nothing was launched.
bool product_with_bias(const Gemm& gemm, DType dtype);

}  // namespace lockstep::cuda
