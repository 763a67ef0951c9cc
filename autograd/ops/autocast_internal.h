// How the public operations convert operands for f16, bf16 and autocast (tensor/autocast.h). Autograd records the
// conversions, so the gradient of an f32 parameter is f32.
#pragma once

#include "lockstep/tensor/autocast.h"
#include "lockstep/tensor/half_dtypes_internal.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// True if x must be converted to `dtype`, the dtype of products. f64 is not converted, as in PyTorch.
inline bool is_narrowed(const Tensor& x, DType dtype) {
  return x.defined() && x.dtype() != dtype && x.is_floating_point() && x.dtype() != kFloat64;
}

// Whether autocast converts any operand of a product.
template <class... Operands>
bool narrows(const Operands&... operands) {
  const std::optional<DType> dtype = autocast_dtype();
  return dtype && (... || is_narrowed(operands, *dtype));
}
// The operand in the dtype of products. Autocast must be enabled.
inline Tensor narrowed(const Tensor& x) {
  const DType dtype = *autocast_dtype();
  return is_narrowed(x, dtype) ? x.to(dtype) : x;
}

// For operations without kernels for f16 and bf16: an operand as f32. Returns other dtypes and undefined tensors as is.
inline Tensor in_f32(const Tensor& x) { return x.defined() && is_half(x.dtype()) ? x.to(kFloat32) : x; }
template <class... Operands>
bool any_half(const Operands&... operands) {
  return (... || (operands.defined() && is_half(operands.dtype())));
}
// Whether such an operation converts its operands: if x is f16 or bf16, or, under autocast, if a parameter is.
template <class... Parameters>
bool widens(const Tensor& x, const Parameters&... parameters) {
  return any_half(x) || (is_autocast_enabled() && any_half(parameters...));
}
// Rounds the f32 result of such an operation to its operands' `dtype`; under autocast leaves it in f32.
inline Tensor rounded_result(const Tensor& result, DType dtype) {
  return is_autocast_enabled() ? result : result.to(dtype);
}

}  // namespace lockstep
