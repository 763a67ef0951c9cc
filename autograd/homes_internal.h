// Operations that can write a gradient where it lives (Needs::home), for closures.
#pragma once

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/node.h"

namespace lockstep {

// The operation written to `home` and returned as it, where `home` is defined; otherwise the recorded operation.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& home);
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& home);
// x summed over what broadcasting from `shape` repeated: the gradient of a broadcast operand.
Tensor sum_to(const Tensor& x, const Shape& shape);
// The same for input `input`, written where its gradient lives if anything is summed.
Tensor sum_to(const Tensor& x, const Shape& shape, const autograd::Needs& needs, std::size_t input);

}  // namespace lockstep
