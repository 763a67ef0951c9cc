// Products of f16 and bf16: sums in f32, rounded once. Processors with bf16 instructions have kernels of their own, whose
// blocks, panels and chunks the sizes here cut in every way.
#include "lockstep/base/threads.h"
#include "tests/support/testing.h"

namespace {

// A matrix of whole numbers from -7 to 7, so that all sums are exact in f32; column-major if `transposed`, with rows apart
// if `sliced`.
ls::Tensor whole_numbers(std::int64_t rows, std::int64_t columns, ls::DType dtype, bool transposed, bool sliced) {
  if (transposed) return whole_numbers(columns, rows, dtype, false, sliced).t();
  const ls::Tensor x = ls::randint(-7, 8, {rows, columns + (sliced ? 3 : 0)}).to(dtype);
  return sliced ? x.slice(1, 1, columns + 1) : x;
}

ls::Tensor exact(const ls::Tensor& a, const ls::Tensor& b, ls::DType dtype) {
  return ls::matmul(a.to(ls::kFloat64), b.to(ls::kFloat64)).to(dtype);
}

}  // namespace

TEST_CASE("half-precision products are the exact sums, rounded once, for every size and layout") {
  ls::manual_seed(5);
  const std::vector<std::int64_t> rows{1, 2, 4, 5, 13, 16, 17, 25, 128, 131, 300}, columns{1, 3, 16, 31, 33, 64, 515},
      terms{1, 2, 3, 31, 32, 63, 512, 513, 1030};
  std::size_t layout = 0;
  for (const ls::DType dtype : {ls::kBFloat16, ls::kFloat16}) {
    for (const std::int64_t m : rows) {
      for (const std::int64_t n : columns) {
        for (const std::int64_t k : terms) {
          ++layout;
          const ls::Tensor a = whole_numbers(m, k, dtype, layout % 2 == 0, layout % 3 == 0);
          const ls::Tensor b = whole_numbers(k, n, dtype, layout % 5 < 3, layout % 7 < 2);
          if (!ls::equal(ls::matmul(a, b), exact(a, b, dtype)))
            FAIL("matmul of ", ls::describe(a), " and ", ls::describe(b));
        }
      }
    }
  }
}

TEST_CASE("half-precision linear adds the bias before it rounds") {
  ls::manual_seed(6);
  for (const std::int64_t m : {1, 3, 40}) {
    for (const std::int64_t k : {5, 64, 600}) {
      const ls::Tensor x = whole_numbers(m, k, ls::kBFloat16, false, false),
                       weight = whole_numbers(35, k, ls::kBFloat16, false, m == 3);
      const ls::Tensor bias = ls::randint(-50, 50, {35}).to(ls::kBFloat16) * 0.25;
      const ls::Tensor want = exact(x, weight.t(), ls::kFloat64) + bias.to(ls::kFloat64);
      CHECK(ls::equal(ls::linear(x, weight, bias), want.to(ls::kBFloat16)));
    }
  }
}

TEST_CASE("half-precision products of batches: broadcast, transposed and empty ones") {
  ls::manual_seed(7);
  const ls::Tensor a = ls::randint(-7, 8, {2, 3, 9, 21}).to(ls::kBFloat16),
                   b = ls::randint(-7, 8, {3, 40, 21}).to(ls::kBFloat16);
  CHECK(ls::equal(ls::matmul(a, b.transpose(1, 2)), exact(a, b.transpose(1, 2), ls::kBFloat16)));
  CHECK(ls::equal(ls::matmul(a.transpose(2, 3), a), exact(a.transpose(2, 3), a, ls::kBFloat16)));
  CHECK(ls::equal(ls::matmul(a, b[0].t()), exact(a, b[0].t(), ls::kBFloat16)));
  CHECK(ls::equal(ls::matmul(a[0][0][0], b[0].t()), exact(a[0][0][0], b[0].t(), ls::kBFloat16)));
  CHECK(ls::equal(ls::matmul(b, a[0][0][0]), exact(b, a[0][0][0], ls::kBFloat16)));
  const ls::Tensor none = ls::zeros({3, 0}, {.dtype = ls::kBFloat16});
  CHECK(ls::equal(ls::matmul(none, none.t()), ls::zeros({3, 3}, {.dtype = ls::kBFloat16})));
  CHECK(ls::matmul(none.t(), none).numel() == 0);
}

TEST_CASE("half-precision products of any numbers are as exact as f32 sums; nan and infinity spread") {
  ls::manual_seed(8);
  for (const std::int64_t k : {40, 3000, 20000}) {
    for (const std::int64_t m : {2, 30}) {
      const ls::Tensor a = ls::randn({m, k}).to(ls::kBFloat16), b = ls::randn({50, k}).to(ls::kBFloat16);
      const ls::Tensor want = exact(a, b.t(), ls::kFloat64), have = ls::matmul(a, b.t()).to(ls::kFloat64);
      const double of_sum = 1e-6 * std::sqrt(static_cast<double>(k));
      CHECK(((have - want).abs() <= want.abs() * 0x1p-8 + of_sum).all().item<bool>());
    }
  }
  const double inf = std::numeric_limits<double>::infinity();
  const ls::Tensor x = ls::tensor({{1.0, inf}, {inf, -inf}, {1.0, 2.0}}).to(ls::kBFloat16);
  const ls::Tensor y = ls::matmul(x, ls::ones({2, 1}, {.dtype = ls::kBFloat16})).to(ls::kFloat64);
  CHECK(y.data<double>()[0] == inf);
  CHECK(std::isnan(y.data<double>()[1]));
  CHECK(y.data<double>()[2] == 3);
}

TEST_CASE("half-precision products have the same bits with any number of threads, and as part of a larger one") {
  ls::manual_seed(9);
  const int before = ls::num_threads();
  const ls::Tensor a = ls::randn({300, 700}).to(ls::kBFloat16), b = ls::randn({1100, 700}).to(ls::kBFloat16);
  ls::set_num_threads(1);
  const ls::Tensor want = ls::matmul(a, b.t()), of_few = ls::matmul(a.slice(0, 0, 2), b.t());
  CHECK(
      same_bits(ls::matmul(a.slice(0, 100, 245), b.slice(0, 30, 600).t()), want.slice(0, 100, 245).slice(1, 30, 600)));
  for (const int threads : {2, 3, 7}) {
    ls::set_num_threads(threads);
    CHECK(same_bits(ls::matmul(a, b.t()), want));
    CHECK(same_bits(ls::matmul(a.slice(0, 0, 2), b.t()), of_few));
  }
  ls::set_num_threads(before);
}
