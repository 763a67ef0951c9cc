/// \file
/// Tensors as Eigen matrices, and back. Not part of lockstep.h: a program that includes it needs Eigen 3.4 or later.
#pragma once

#include <Eigen/Core>
#include <string>

#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/error.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

/// A matrix on the memory of a tensor, in any layout.
template <class T>
using EigenMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, Eigen::Unaligned,
                            Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// The tensor's elements as a matrix, without a copy: (rows, cols) of a 2-D tensor, (n, 1) of a 1-D one. It is valid while
/// the tensor lives. Autograd does not see what is written through it. Throws InvalidArgument if the tensor has another
/// number of dimensions, another dtype, or is not on the CPU.
template <class T>
EigenMap<T> as_eigen(const Tensor& tensor) {
  T* const first = tensor.data<T>();
  if (tensor.dim() != 1 && tensor.dim() != 2)
    throw InvalidArgument("as_eigen: the tensor's shape is " + tensor.shape().to_string() +
                          "; a matrix has one or two dimensions. Select or reshape first");
  if (!tensor.device().is_cpu())
    throw InvalidArgument("as_eigen: the tensor is on " + tensor.device().to_string() +
                          ", where Eigen cannot compute; copy it with .to(\"cpu\")");
  const bool is_vector = tensor.dim() == 1;
  return {first, tensor.size(0), is_vector ? 1 : tensor.size(1), {tensor.stride(0), is_vector ? 1 : tensor.stride(1)}};
}

/// A copy: 1-D if the type has one column or one row, such as Eigen::VectorXf; otherwise (rows, cols). Takes expressions.
template <class Derived>
Tensor from_eigen(const Eigen::MatrixBase<Derived>& matrix) {
  using T = typename Derived::Scalar;
  const bool is_vector = Derived::IsVectorAtCompileTime != 0;
  Tensor copy = zeros(is_vector ? Shape{matrix.size()} : Shape{matrix.rows(), matrix.cols()}, {.dtype = dtype_of<T>});
  EigenMap<T> map = as_eigen<T>(copy);
  if constexpr (Derived::RowsAtCompileTime == 1 && Derived::ColsAtCompileTime != 1)
    map = matrix.transpose();
  else
    map = matrix;
  return copy;
}

}  // namespace lockstep
