// The 16-bit floating-point dtypes. Most operations have no kernels for them: wrappers convert to f32, compute, and
// round once.
#pragma once

#include "lockstep/tensor/dtype.h"

namespace lockstep {

constexpr bool is_half(DType dtype) { return dtype == kFloat16 || dtype == kBFloat16; }

}  // namespace lockstep
