// Names and helpers for the files that define the public operations.
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

// A number as an operand of mul and div with x. It is f32 if x is f16 or bf16, so that the result is rounded once.
Tensor factor_like(const char* op, const Tensor& x, const Scalar& number);

// For closures that write a gradient directly to a bucket view (Needs::view). If `view` is defined, these write the
// result to `view` and return `view`; otherwise they record the operation.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& view);
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim, const Tensor& view);
// t with its leading dimensions merged: (batch, features); a vector is one row. Returns `t` itself if it is a matrix,
// without counting a reference; otherwise stores the reshaped view in `flat` and returns `flat`.
const Tensor& as_rows(const Tensor& t, Tensor& flat);
// The dimensions of x, which has at least two, but for the last two.
Shape leading_of(const Tensor& x);
// The shape (leading..., rows, columns).
Shape with_matrix(Shape leading, std::int64_t rows, std::int64_t columns);
// x summed over the dimensions that broadcasting from `shape` repeated: the gradient of a broadcast operand.
Tensor sum_to(const Tensor& x, const Shape& shape);
// The same for the gradient of input `input`. If anything is summed, the sum is written to the input's bucket view.
Tensor sum_to(const Tensor& x, const Shape& shape, const Needs& needs, std::size_t input);

// Tensor::index_put_: sets elements of x, or adds to them, without history.
void put(const Tensor& x, const std::vector<TensorIndex>& indices, const Tensor& values, bool accumulate);

}  // namespace lockstep
