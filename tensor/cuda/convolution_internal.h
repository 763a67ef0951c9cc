// Convolution by cuDNN.
#pragma once

#include "lockstep/tensor/kernels/kernels_internal.h"

namespace lockstep::cuda {

// One pass of a convolution without its bias, on the current device's stream; dtype is f32 or f64. The operands, in
// the order of the kernels: x and weight; grad and weight; grad and x. Algorithms are deterministic, without TF32.
// Throws NotBuilt in a build without cuDNN.
void convolve(const raw::Convolution& convolution, raw::ConvolutionPass pass, const void* a, const void* b, void* out,
              DType dtype);

}  // namespace lockstep::cuda
