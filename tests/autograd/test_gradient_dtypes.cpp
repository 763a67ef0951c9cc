// Dtypes of gradients: each operand gets its gradient in its own dtype.
#include "tests/support/testing.h"

TEST_CASE("a conversion of dtype returns the gradient in the dtype of its input") {
  const ls::Tensor x = ls::tensor({0.5, 2.0}, {.requires_grad = true});
  const ls::Tensor y = x.to(ls::kFloat64);
  ls::sum(y * y).backward();
  CHECK(x.grad().dtype() == ls::kFloat32);
  CHECK(x.grad().to_vector<double>() == std::vector<double>{1, 4});
  CHECK(!x.to(ls::kInt64).requires_grad());
  const ls::Tensor half = x.to(ls::kFloat16);
  CHECK(half.requires_grad());
  x.set_grad({});
  ls::sum(half.to(ls::kFloat32) * 3).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{3, 3});
  const ls::Tensor twice = ls::autograd::grad(ls::sum(ls::pow(x.to(ls::kFloat64), 3)), x, {.create_graph = true});
  CHECK(ls::autograd::grad(ls::sum(twice), x).to_vector<double>() == std::vector<double>{3, 12});
}

TEST_CASE("operands of two dtypes each get their gradient in their own dtype") {
  const ls::Tensor a = ls::tensor({2.0}, {.requires_grad = true}),
                   b = ls::tensor({3.0}, {.dtype = ls::kFloat64, .requires_grad = true});
  ls::sum(a * b + a / b + ls::maximum(a, b) + ls::where(ls::tensor({true}), a, b)).backward();
  CHECK(a.grad().dtype() == ls::kFloat32);
  CHECK(b.grad().dtype() == ls::kFloat64);
  const ls::Tensor c = ls::ones({2}, {.requires_grad = true});
  ls::sum(ls::cat({c, ls::ones({1}, {.dtype = ls::kFloat64})})).backward();
  CHECK(c.grad().dtype() == ls::kFloat32);
}
