// Operations that closures use to write a gradient directly to a bucket view (Needs::view).
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/node.h"

namespace lockstep {

// If `view` is defined, these write the result to `view` and return it; otherwise they record the operation.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& view);
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& view);
// x summed over the dimensions that broadcasting from `shape` repeated: the gradient of a broadcast operand.
Tensor sum_to(const Tensor& x, const Shape& shape);
// The same for input `input`, written to its bucket view if anything is summed.
Tensor sum_to(const Tensor& x, const Shape& shape, const autograd::Needs& needs, std::size_t input);

}  // namespace lockstep
