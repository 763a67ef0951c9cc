// Decompositions of small matrices, by Eigen. The namespace is renamed as for kernels (cmake/flags.cmake): programs may
// contain Eigen with other options.
#define Eigen Eigen_matrices
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_MPL2_ONLY
#include <Eigen/Cholesky>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/ops/matrices_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::raw {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Map = Eigen::Map<Matrix<T>>;

// Contiguous matrices, by number.
struct Batch {
  explicit Batch(const Tensor& x) : tensor(contiguous(x)), rows(x.size(-2)), columns(x.size(-1)) {
    for (int d = 0; d < x.dim() - 2; ++d) count *= x.size(d);
  }
  template <class T>
  Map<T> at(std::int64_t i) const {
    return {static_cast<T*>(tensor.raw_data()) + i * rows * columns, rows, columns};
  }

  Tensor tensor;
  std::int64_t rows, columns, count = 1;
};

void check(const char* op, const Tensor& a, bool square) {
  LOCKSTEP_CHECK(a.dim() >= 2 && (a.dtype() == kFloat32 || a.dtype() == kFloat64),
                 "{}: the matrix is {}, expected (..., rows, columns) of f32 or f64", op, describe(a));
  LOCKSTEP_CHECK(a.device().type() == DeviceType::kCpu,
                 "{}: the matrix is {}; matrices are decomposed on CPU devices only: pass x.to(\"cpu\")", op,
                 describe(a));
  LOCKSTEP_CHECK(!square || a.size(-1) == a.size(-2), "{}: the matrix is {}, expected a square one", op, describe(a));
}

// (leading dimensions of x, rows, columns), uninitialised; a negative size leaves its dimension out.
Tensor matrices_like(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  Shape shape;
  for (int d = 0; d < x.dim() - 2; ++d) shape.push_back(x.size(d));
  if (rows >= 0) shape.push_back(rows);
  if (columns >= 0) shape.push_back(columns);
  return empty(shape, x.options());
}

template <class F>
void for_type(const Tensor& x, F function) {
  if (x.dtype() == kFloat32)
    function(float{});
  else
    function(double{});
}

template <class T>
T determinant_sign(const Eigen::PartialPivLU<Matrix<T>>& lu) {
  return static_cast<T>(lu.permutationP().determinant());
}

}  // namespace

Tensor solve(const char* op, const Tensor& a, const Tensor& b) {
  check(op, a, true);
  const Batch from(a), right(b);
  const Batch to(matrices_like(b, right.rows, right.columns));
  for_type(a, [&]<class T>(T) {
    for (std::int64_t i = 0; i < from.count; ++i) {
      const Eigen::PartialPivLU<Matrix<T>> lu(from.at<T>(i));
      for (std::int64_t k = 0; k < from.rows; ++k)
        LOCKSTEP_CHECK(lu.matrixLU()(k, k) != T(0),
                       "{}: matrix {} of {} is singular: pivot {} of its LU decomposition is 0", op, i, describe(a), k);
      to.at<T>(i) = lu.solve(right.at<T>(i));
    }
  });
  return to.tensor;
}

Tensor det(const char* op, const Tensor& a) {
  check(op, a, true);
  const Batch from(a);
  const Tensor out = matrices_like(a, -1, -1);
  for_type(a, [&]<class T>(T) {
    for (std::int64_t i = 0; i < from.count; ++i) {
      const Eigen::PartialPivLU<Matrix<T>> lu(from.at<T>(i));
      T product = determinant_sign(lu);
      for (std::int64_t k = 0; k < from.rows; ++k) product *= lu.matrixLU()(k, k);
      static_cast<T*>(out.raw_data())[i] = product;
    }
  });
  return out;
}

std::pair<Tensor, Tensor> slogdet(const char* op, const Tensor& a) {
  check(op, a, true);
  const Batch from(a);
  const Tensor signs = matrices_like(a, -1, -1), logarithms = empty(signs.shape(), signs.options());
  for_type(a, [&]<class T>(T) {
    for (std::int64_t i = 0; i < from.count; ++i) {
      const Eigen::PartialPivLU<Matrix<T>> lu(from.at<T>(i));
      T sign = determinant_sign(lu), sum = 0;
      for (std::int64_t k = 0; k < from.rows; ++k) {
        const T pivot = lu.matrixLU()(k, k);
        sign *= static_cast<T>((pivot > 0) - (pivot < 0));
        sum += std::log(std::abs(pivot));
      }
      static_cast<T*>(signs.raw_data())[i] = sign;
      static_cast<T*>(logarithms.raw_data())[i] = sum;
    }
  });
  return {signs, logarithms};
}

// Row by row, with a check of each diagonal element: Eigen's LLT does not report which one failed.
Tensor cholesky(const char* op, const Tensor& a) {
  check(op, a, true);
  const Batch from(a);
  const Batch to(zeros(a.shape(), a.options()));
  for_type(a, [&]<class T>(T) {
    for (std::int64_t m = 0; m < from.count; ++m) {
      const Map<T> x = from.at<T>(m);
      Map<T> l = to.at<T>(m);
      for (std::int64_t i = 0; i < from.rows; ++i) {
        for (std::int64_t j = 0; j <= i; ++j) {
          double rest = x(i, j);
          for (std::int64_t k = 0; k < j; ++k) rest -= static_cast<double>(l(i, k)) * static_cast<double>(l(j, k));
          LOCKSTEP_CHECK(i != j || rest > 0,
                         "{}: matrix {} of {} is not positive definite: its leading minor of order {} is not", op, m,
                         describe(a), i + 1);
          l(i, j) = static_cast<T>(i == j ? std::sqrt(rest) : rest / static_cast<double>(l(j, j)));
        }
      }
    }
  });
  return to.tensor;
}

std::pair<Tensor, Tensor> qr(const char* op, const Tensor& a, bool complete) {
  check(op, a, false);
  const Batch from(a);
  const std::int64_t rows = complete ? from.rows : std::min(from.rows, from.columns);
  const Batch q(matrices_like(a, from.rows, rows)), r(matrices_like(a, rows, from.columns));
  for_type(a, [&]<class T>(T) {
    for (std::int64_t i = 0; i < from.count; ++i) {
      q.at<T>(i).setIdentity();
      r.at<T>(i).setZero();
      if (from.rows == 0 || from.columns == 0) continue;
      const Eigen::HouseholderQR<Matrix<T>> decomposition(from.at<T>(i));
      q.at<T>(i) = decomposition.householderQ() * Matrix<T>::Identity(from.rows, rows);
      r.at<T>(i) = decomposition.matrixQR().topRows(rows).template triangularView<Eigen::Upper>();
    }
  });
  return {q.tensor, r.tensor};
}

Svd svd(const char* op, const Tensor& a, bool full) {
  check(op, a, false);
  const Batch from(a);
  const std::int64_t small = std::min(from.rows, from.columns), u_columns = full ? from.rows : small,
                     v_rows = full ? from.columns : small;
  const Batch u(matrices_like(a, from.rows, u_columns)), vh(matrices_like(a, v_rows, from.columns)),
      s(matrices_like(a, small, 1));
  const unsigned options = full ? Eigen::ComputeFullU | Eigen::ComputeFullV : Eigen::ComputeThinU | Eigen::ComputeThinV;
  for_type(a, [&]<class T>(T) {
    for (std::int64_t i = 0; i < from.count; ++i) {
      u.at<T>(i).setIdentity();
      vh.at<T>(i).setIdentity();
      if (small == 0) continue;
      const Eigen::JacobiSVD<Matrix<T>> decomposition(from.at<T>(i), options);
      LOCKSTEP_CHECK(decomposition.info() == Eigen::Success, "{}: matrix {} of {} has elements that are not finite", op,
                     i, describe(a));
      u.at<T>(i) = decomposition.matrixU();
      vh.at<T>(i) = decomposition.matrixV().transpose();
      s.at<T>(i) = decomposition.singularValues();
    }
  });
  return {u.tensor, view(s.tensor, matrices_like(a, small, -1).shape()), vh.tensor};
}

}  // namespace lockstep::raw
