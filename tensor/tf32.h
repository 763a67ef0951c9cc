// TensorFloat-32: matrix products of f32 on a GPU's tensor cores, with 10 bits of mantissa instead of 23 in the factors
// (sums stay f32). Several times faster on GPUs since Ampere; off unless asked for. What is torch.backends.cuda.matmul's
// allow_tf32 in PyTorch.
#pragma once

#include "lockstep/tensor/error.h"

namespace lockstep {

// For all products of f32 on cuda devices that are started from now on, by any thread. Others, and CPUs, are not affected.
void allow_tf32(bool allow);
bool tf32_allowed();  // what was said last; false at first

}  // namespace lockstep
