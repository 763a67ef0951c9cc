/// \file
/// TensorFloat-32: matrix products of f32 on a GPU's tensor cores, with 10 instead of 23 mantissa bits in the factors
/// (sums stay f32). Several times faster on GPUs since Ampere; off by default. Corresponds to PyTorch's
/// torch.backends.cuda.matmul.allow_tf32.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

/// Applies to all f32 products started on cuda devices from now on, by any thread. CPUs are not affected.
void allow_tf32(bool allow);
bool tf32_allowed();  ///< the last setting; false by default

}  // namespace lockstep
