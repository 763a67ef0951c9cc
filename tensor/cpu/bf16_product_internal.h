// Products of bf16 matrices by the processor's bf16 instructions.
#pragma once

#include <cstdint>

#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// The f32 elements of the workspace that bf16_product needs; -1 if the processor has no bf16 instructions, or this level of
// kernels does not use them.
std::int64_t bf16_workspace(const Gemm& gemm);
// As gemm, for bf16. Needs the instructions. Sums are f32, at most 512 terms one after another, and rounded once;
// subnormal operands and sums are 0.
void bf16_product(const Gemm& gemm);

}  // namespace lockstep::LOCKSTEP_KERNELS
