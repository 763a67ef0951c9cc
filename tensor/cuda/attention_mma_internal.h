// Attention of f16 and bf16 by tensor cores. Included by kernels only, inside their namespace.
#pragma once

#include "lockstep/tensor/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Computes the result, or grad_q, or grad_k and grad_v, if the operands have a form for which there is a kernel;
// `products` is that of AttentionOf. Returns false otherwise.
bool attention_by_mma(const raw::Attention& a, DType dtype);
bool attention_backward_queries_by_mma(const raw::Attention& a, DType dtype, float* products);
bool attention_backward_keys_by_mma(const raw::Attention& a, DType dtype, float* products);

}  // namespace lockstep::LOCKSTEP_KERNELS
