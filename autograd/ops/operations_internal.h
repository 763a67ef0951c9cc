// Names and helpers for the files with the public operations.
#pragma once

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/functions.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep {

using autograd::Gradients;
using autograd::Needs;
using autograd::record;
using autograd::requires_grad;
using autograd::Saved;

// A number as an operand of mul and div. Next to f16 and bf16 it is f32, so that the result is rounded once.
Tensor factor_like(const Tensor& x, const Scalar& number);

// Closures use these to write a gradient directly to a bucket view (Needs::view). If `view` is defined, they write the
// result to `view` and return it; otherwise they record the operation.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& view);
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& view);
// t with its leading dimensions merged: (batch, features); a vector is one row. Returns a matrix itself, without a
// reference count; the reshaped view of any other tensor is stored in `flat`.
const Tensor& as_rows(const Tensor& t, Tensor& flat);
// x summed over the dimensions that broadcasting from `shape` repeated: the gradient of a broadcast operand.
Tensor sum_to(const Tensor& x, const Shape& shape);
// The same for input `input`, written to its bucket view if anything is summed.
Tensor sum_to(const Tensor& x, const Shape& shape, const Needs& needs, std::size_t input);

// Sets or adds to x's elements, without history: Tensor::index_put_.
void put(const Tensor& x, const std::vector<TensorIndex>& indices, const Tensor& values, bool accumulate);

}  // namespace lockstep
