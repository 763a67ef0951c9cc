// Operations along rows and along columns, and on transposed operands: the results do not depend on the layout.
#include "tests/support/testing.h"

namespace {

// Random values with NaN, infinities, zeros of both signs and ties.
ls::Tensor values(std::int64_t rows, std::int64_t columns) {
  std::vector<float> numbers;
  const float special[] = {
      static_cast<float>(kNan), static_cast<float>(kInf), -static_cast<float>(kInf), 0.0F, -0.0F, -1.5F, 1e-45F,
      -static_cast<float>(kNan)};
  for (std::int64_t i = 0; i < rows * columns; ++i)
    numbers.push_back(i % 3 == 0 ? special[i / 3 % 8] : static_cast<float>((i * 7919) % 23 - 11) * 0.5F);
  return ls::tensor(numbers).reshape({rows, columns});
}

void check_order(const ls::Tensor& x, const ls::Tensor& wide) {
  for (const bool descending : {false, true}) {
    CHECK(ls::equal(ls::sort(x, 1, descending).second, ls::sort(wide, 1, descending).second));
    for (const std::int64_t k : {std::int64_t{1}, std::min<std::int64_t>(5, x.size(1)), x.size(1)})
      CHECK(ls::equal(ls::topk(x, k, 1, descending).second, ls::topk(wide, k, 1, descending).second));
  }
}

}  // namespace

TEST_CASE("32-bit values are ordered like 64-bit ones: NaN last, ties by position, -0 equal to 0") {
  for (const std::int64_t columns : {1, 5, 64, 301}) {
    const ls::Tensor x = values(9, columns);
    check_order(x, x.to(ls::kFloat64));
    const ls::Tensor integers = ls::where(x == x, x, ls::zeros({})).clamp(-4, 4).to(ls::kInt32);
    check_order(integers, integers.to(ls::kInt64));
    check_order((integers * 100000000), (integers * 100000000).to(ls::kInt64));
    check_order(integers > 0, (integers > 0).to(ls::kInt64));
  }
}

TEST_CASE("running sums along rows and along columns have the same bits, in both directions") {
  ls::manual_seed(3);
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 7}, {3, 70}, {37, 131}, {130, 1}}) {
    const ls::Tensor x = ls::randn({rows, columns}, {.requires_grad = true});
    const ls::Tensor along_rows = ls::cumsum(x, 1), along_columns = ls::cumsum(x.t().contiguous(), 0);
    CHECK(same_bits(along_rows, along_columns.t().contiguous()));
    const ls::Tensor weight = ls::randn({rows, columns});
    const ls::Tensor g = ls::autograd::grad({ls::sum(along_rows * weight)}, {x})[0];
    const ls::Tensor h = ls::autograd::grad({ls::sum(along_columns * weight.t())}, {x})[0];
    CHECK(same_bits(g, h));
  }
}

TEST_CASE("softmax along columns is softmax along the rows of the transposed tensor") {
  ls::manual_seed(3);
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 7}, {70, 3}, {131, 137}}) {
    for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
      const ls::Tensor x = (ls::randn({2, rows, columns}) * 4).to(dtype).requires_grad_();
      const ls::Tensor weight = ls::randn({2, rows, columns}).to(dtype);
      const double tolerance = dtype == ls::kFloat32 ? 2e-6 : 1e-14;
      for (const bool log : {false, true}) {
        const auto softmax = [&](const ls::Tensor& t, int dim) {
          return log ? ls::log_softmax(t, dim) : ls::softmax(t, dim);
        };
        const ls::Tensor columnwise = softmax(x, 1),
                         rowwise = softmax(x.transpose(1, 2).contiguous(), 2).transpose(1, 2);
        check_close(columnwise, rowwise, "values", {tolerance, tolerance});
        check_close(ls::autograd::grad({ls::sum(columnwise * weight)}, {x})[0],
                    ls::autograd::grad({ls::sum(rowwise * weight)}, {x})[0], "gradients",
                    {tolerance * 10, tolerance * 10});
      }
    }
  }
  const ls::Tensor infinite = ls::full({3, 2}, -kInf);  // columns of -inf, as rows of -inf
  CHECK(same_bits(ls::softmax(infinite, 0), ls::softmax(infinite.t().contiguous(), 1).t().contiguous()));
}

TEST_CASE("pointwise operations on large transposed operands have the bits of contiguous ones") {
  ls::manual_seed(3);
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{131, 257}, {31, 1000}, {1000, 33}}) {
    const ls::Tensor x = ls::randn({rows, columns}), y = ls::randn({columns, rows});
    const ls::Tensor dense = y.t().contiguous();
    CHECK(same_bits(x + y.t(), x + dense));
    CHECK(same_bits(y.t() * x, dense * x));
    CHECK(same_bits(ls::exp(y.t()), ls::exp(dense)));
    CHECK(same_bits(y.t() > x, dense > x));
  }
}
