// Edges of operations on positions and dimensions: 0-d tensors, bools, and the divisor's gradient.
#include "tests/support/testing.h"

TEST_CASE("a tensor without dimensions counts as one of a single element") {
  CHECK(ls::movedim(ls::tensor(2.0), 0, -1).item<double>() == 2);
  const ls::Tensor first = ls::tensor({std::int64_t{0}}), fourth = ls::tensor({std::int64_t{4}});
  CHECK(ls::index_add(ls::tensor(1.0), 0, first, ls::tensor(2.0)).item<double>() == 3);
  CHECK_THROWS_AS(ls::index_add(ls::zeros({5}).select(0, 2), 0, fourth, ls::ones({1}).select(0, 0)),
                  ls::InvalidArgument);
}

TEST_CASE("bools that are added to one place stay true or false") {
  const ls::Tensor twice = ls::tensor({std::int64_t{0}, std::int64_t{0}});
  const ls::Tensor both = ls::ones({2}, {.dtype = ls::kBool});
  ls::Tensor x = ls::zeros({3}, {.dtype = ls::kBool});
  x.index_put_({twice}, both, /*accumulate=*/true);
  CHECK(same_bits(x, ls::tensor({1.0, 0.0, 0.0}) != 0));
  CHECK(
      same_bits(ls::index_add(ls::zeros({3}, {.dtype = ls::kBool}), 0, twice, both), ls::tensor({1.0, 0.0, 0.0}) != 0));
}

TEST_CASE("the gradient of remainder's divisor belongs to its value where the quotient rounds up") {
  const ls::Tensor a = ls::tensor({1.0F}), b = ls::tensor({0.1F}).requires_grad_();
  ls::remainder(a, b).backward(ls::ones({1}));
  CHECK(b.grad().item<double>() == -9);
}
