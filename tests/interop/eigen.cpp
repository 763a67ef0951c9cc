// Tensors as Eigen matrices: the same memory in any layout, and copies back.
#include <lockstep/interop/eigen.h>

#include "tests/support/testing.h"

TEST_CASE("as_eigen: a matrix on the tensor's memory") {
  const ls::Tensor x = ls::arange(6, {.dtype = ls::kFloat64}).view({2, 3});
  auto m = ls::as_eigen<double>(x);
  CHECK(m.rows() == 2);
  CHECK(m.cols() == 3);
  CHECK(m(1, 0) == 3);
  m *= 2;
  CHECK(x.to_vector<double>() == std::vector<double>{0, 2, 4, 6, 8, 10});
  const ls::Tensor other = ls::randn({3, 4}, {.dtype = ls::kFloat64});
  const Eigen::MatrixXd product = m * ls::as_eigen<double>(other);
  CHECK(ls::allclose(ls::from_eigen(product), ls::matmul(x, other)));
}

TEST_CASE("as_eigen: transposed, sliced, expanded and 1-D tensors, without elements, and integers") {
  const ls::Tensor x = ls::arange(12, {.dtype = ls::kFloat32}).view({3, 4});
  CHECK(ls::as_eigen<float>(x.t())(2, 1) == x[1][2].item<float>());
  const ls::Tensor part = x.slice(0, 0, 3, 2).slice(1, 1, 4, 2);
  CHECK(ls::as_eigen<float>(part).sum() == part.sum().item<float>());
  CHECK(ls::as_eigen<float>(x[1].expand({2, 4})).row(1).sum() == x[1].sum().item<float>());
  const auto column = ls::as_eigen<float>(x.select(1, 2));
  CHECK(column.rows() == 3);
  CHECK(column.cols() == 1);
  CHECK(column(2, 0) == 10);
  CHECK(ls::as_eigen<float>(ls::zeros({0, 3})).rows() == 0);
  CHECK(ls::as_eigen<std::int64_t>(ls::arange(3))(2, 0) == 2);
}

TEST_CASE("from_eigen: copies of matrices, vectors, rows and expressions") {
  Eigen::Matrix<float, 2, 3> m;  // column-major
  m << 1, 2, 3, 4, 5, 6;
  const ls::Tensor copy = ls::from_eigen(m);
  CHECK(copy.shape() == ls::Shape{2, 3});
  CHECK(copy.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  m(0, 0) = 9;
  CHECK(copy[0][0].item<float>() == 1);
  CHECK(ls::from_eigen(2 * m.transpose()).shape() == ls::Shape{3, 2});
  const Eigen::VectorXd v = Eigen::VectorXd::LinSpaced(4, 0, 3);
  CHECK(ls::from_eigen(v).shape() == ls::Shape{4});
  CHECK(ls::from_eigen(v.transpose()).to_vector<double>() == std::vector<double>{0, 1, 2, 3});
  CHECK(ls::from_eigen(Eigen::Matrix<float, 1, 1>(7)).shape() == ls::Shape{1});
  CHECK(ls::from_eigen(Eigen::MatrixXd(0, 2)).shape() == ls::Shape{0, 2});
}

TEST_CASE("as_eigen: errors name the tensor and the way out") {
  const ls::Tensor x = ls::zeros({2, 3, 4});
  CHECK(contains(error_of<ls::InvalidArgument>([&] { ls::as_eigen<float>(x); }),
                 "as_eigen: the tensor's shape is (2, 3, 4); a matrix has one or two dimensions"));
  CHECK(contains(error_of<ls::InvalidArgument>([&] { ls::as_eigen<double>(x[0]); }), "f64 was requested"));
  CHECK(contains(error_of<ls::InvalidArgument>([&] { ls::as_eigen<float>(ls::Tensor()); }), "undefined"));
}
