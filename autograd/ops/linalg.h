/// \file
/// Decompositions and solutions of small matrices (..., m, n), f32 or f64, on CPU devices: one matrix after another, in
/// the calling thread. Names and results are those of torch.linalg. Every function throws InvalidArgument for other
/// dtypes, for cuda devices, and for shapes that do not match.
#pragma once

#include <utility>

#include "lockstep/tensor/tensor.h"

namespace lockstep::linalg {

/// The inverse of a square matrix. Throws InvalidArgument, naming the matrix, if it is singular.
Tensor inv(const Tensor& a);
/// X with a X = b. a (..., n, n), b (..., n, k); or a vector for each matrix, b (n) or of a's shape without the last
/// dimension. Leading dimensions broadcast. Throws InvalidArgument, naming the matrix, if it is singular.
Tensor solve(const Tensor& a, const Tensor& b);
/// L, lower triangular with a positive diagonal, with L L^T = a; reads a's lower triangle. The gradient is symmetric.
/// Throws InvalidArgument, naming the matrix and its leading minor, if a is not positive definite.
Tensor cholesky(const Tensor& a);
/// The determinant of a square matrix: (..., n, n) -> (...). The gradient is exact for singular matrices, too.
Tensor det(const Tensor& a);
/// The sign of the determinant and the logarithm of its absolute value: 0 and -infinity for a singular matrix. The sign
/// has no gradient.
std::pair<Tensor, Tensor> slogdet(const Tensor& a);
/// Q (..., m, k) with orthonormal columns, and R (..., k, n) upper triangular, with Q R = a and k = min(m, n); with
/// `complete`, k = m. The signs are LAPACK's. Backward throws InvalidArgument with `complete` for m > n.
std::pair<Tensor, Tensor> qr(const Tensor& a, bool complete = false);

/// The result of svd.
struct Svd {
  Tensor u;   ///< (..., m, m), or (..., m, k)
  Tensor s;   ///< (..., k): the singular values, largest first
  Tensor vh;  ///< (..., n, n), or (..., k, n)
};
/// a = u diag(s) vh with orthonormal columns in u and rows in vh, k = min(m, n). Only s has a gradient: backward through u
/// or vh throws InvalidArgument.
Svd svd(const Tensor& a, bool full_matrices = true);

}  // namespace lockstep::linalg
