// Raw decompositions of small matrices (..., m, n), f32 or f64, on CPU devices (tensor/cpu/matrices.cpp). Each matrix is
// decomposed by itself, in the calling thread, by code that is compiled once for all instruction sets. Errors name `op`.
#pragma once

#include <utility>

#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// The matrix x with a x = b, for a (..., n, n) and b (..., n, k) with equal leading dimensions. Throws if a is singular.
Tensor solve(const char* op, const Tensor& a, const Tensor& b);
// (...): the determinant; its sign and the logarithm of its absolute value.
Tensor det(const char* op, const Tensor& a);
std::pair<Tensor, Tensor> slogdet(const char* op, const Tensor& a);
Tensor cholesky(const char* op, const Tensor& a);  // throws unless a is positive definite
std::pair<Tensor, Tensor> qr(const char* op, const Tensor& a, bool complete);

struct Svd {
  Tensor u, s, vh;
};
Svd svd(const char* op, const Tensor& a, bool full);

}  // namespace lockstep::raw
