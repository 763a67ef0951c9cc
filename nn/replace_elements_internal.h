// Moves a parameter to other memory: conversions of modules, and sharded training. Not installed.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// Replaces the elements of a parameter's tensor by those of `fresh`, which has the same shape. The tensor remains the
// same object, so hooks, their handles and graph edges stay valid. No other tensor is this object, see Parameter's
// constructor. A gradient and a bucket view of another dtype or device are the caller's to replace. Throws
// InvalidArgument if the shapes differ.
void replace_elements(const Tensor& tensor, const Tensor& fresh);
// The same; the gradient and its bucket view become undefined.
void replace_without_grad(const Tensor& tensor, const Tensor& fresh);

}  // namespace lockstep::nn
