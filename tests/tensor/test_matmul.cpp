// Matrix products compared with PyTorch and with explicit sums.
#include "tests/support/golden_case.h"

namespace {

// out[i][j] = sum over p of a[i][p] b[p][j], in f64.
ls::Tensor product(const ls::Tensor& a, const ls::Tensor& b) {
  const ls::Tensor x = a.to(ls::kFloat64).contiguous(), y = b.to(ls::kFloat64).contiguous();
  const std::int64_t m = x.size(0), k = x.size(1), n = y.size(1);
  const ls::Tensor out = ls::zeros({m, n}, {.dtype = ls::kFloat64});
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t j = 0; j < n; ++j)
        out.data<double>()[i * n + j] += x.data<double>()[i * k + p] * y.data<double>()[p * n + j];
    }
  }
  return out;
}

void check_product(const ls::Tensor& a, const ls::Tensor& b) {
  const double k = static_cast<double>(a.size(1));
  const Tolerance allowed = a.dtype() == ls::kFloat32 ? Tolerance{1e-5, 2e-7 * k} : Tolerance{1e-12, 1e-15 * k};
  check_close(ls::matmul(a, b), product(a, b).to(a.dtype()), ls::describe(a) + " by " + ls::describe(b), allowed);
}

}  // namespace

TEST_CASE("matmul of every combination of dimensions has PyTorch's values and gradients") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    for (const std::string shapes :
         {"3@3", "3@3x2", "2x3@3", "2x3@3x4", "1x1@1x1", "5x2x3@3", "3@5x3x2", "5x2x3@3x4", "2x3@5x3x4", "5x2x3@5x3x4",
          "1x2x3@5x3x4", "2x1x2x3@5x3x4", "2x5x2x3@2x5x3x4", "0x3@3x2", "2x0@0x3"})
      check_case(file, "matmul/" + shapes + "." + tag, {"a", "b"},
                 [](const Inputs& in) { return ls::matmul(in[0], in[1]); });
  }
}

TEST_CASE("linear has PyTorch's values and gradients for vectors, matrices and batches, with and without bias") {
  const ls::StateDict file = golden("layers");
  for (const std::string& tag : float_tags()) {
    for (const std::string name : {"linear", "linear_1d", "linear_3d"})
      check_case(file, name + "." + tag, {"x", "weight", "bias"},
                 [](const Inputs& in) { return ls::linear(in[0], in[1], in[2]); });
    check_case(file, "linear_no_bias." + tag, {"x", "weight"},
               [](const Inputs& in) { return ls::linear(in[0], in[1]); });
  }
}

TEST_CASE("products of every size class agree with the explicit sum") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{1, 1, 1},
                                  {3, 5, 7},
                                  {16, 16, 16},
                                  {17, 16, 16},
                                  {1, 5000, 1},
                                  {1, 300, 40},
                                  {40, 300, 1},
                                  {33, 70, 19},
                                  {128, 64, 130},
                                  {300, 129, 150},
                                  {512, 300, 33}}) {
      check_product(numbers({m, k}, {.dtype = dtype}), numbers({k, n}, {.dtype = dtype}, 2));
    }
  }
}

TEST_CASE("transposed operands are read in place and give the product of their copies") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    for (const std::int64_t size : {4, 40, 150}) {
      const ls::Tensor a = numbers({size + 2, size}, {.dtype = dtype}),
                       b = numbers({size + 5, size + 2}, {.dtype = dtype}, 2);
      const std::int64_t before = ls::allocator_stats().allocations;
      const ls::Tensor out = ls::matmul(a.t(), b.t());
      CHECK(ls::allocator_stats().allocations == before + 1);
      check_product(a.t(), b.t());
      check_product(a.t(), numbers({size + 2, 9}, {.dtype = dtype}, 3));
      check_product(a, b.t().slice(0, 0, size));
    }
  }
}

TEST_CASE("large operands that are far apart along the inner dimension give the product of their copies") {
  const auto close = [](const ls::Tensor& x, const ls::Tensor& y) { return ls::allclose(x, y, 1e-5, 1e-3); };
  const ls::Tensor a = ls::randn({200, 512}), b = ls::randn({200, 768}), c = ls::randn({512, 768});
  const ls::Tensor wide = ls::matmul(a.t().to(ls::kFloat64), b.to(ls::kFloat64)).to(ls::kFloat32);
  CHECK(close(ls::matmul(a.t(), b), wide));
  CHECK(close(ls::matmul(a, c), ls::matmul(a.to(ls::kFloat64), c.to(ls::kFloat64)).to(ls::kFloat32)));
}

TEST_CASE("operands of any stride multiply: steps, expanded rows and columns, single rows and columns") {
  const ls::Tensor wide = numbers({20, 60}), b = numbers({30, 11}, {}, 2);
  check_product(wide.slice(1, 0, 60, 2), b);
  check_product(wide.slice(0, 0, 20, 3).slice(1, 0, 30), b);
  check_product(wide[3].slice(0, 0, 30).unsqueeze(0).expand({7, 30}), b);
  check_product(wide.slice(1, 3, 4).expand({20, 30}), b);
  check_product(wide.slice(1, 5, 35), b.slice(1, 4, 5));
  check_product(wide.slice(1, 5, 35).slice(0, 2, 3), b);
  check_product(wide.slice(1, 5, 6), numbers({1, 13}, {}, 4));
  check_product(numbers({60, 20}).t().slice(0, 0, 1), numbers({60, 5}, {}, 5));
  check_product(b.t().slice(1, 0, 30).slice(0, 2, 9), numbers({30, 8}, {}, 5));
}

TEST_CASE("batches broadcast, transposed and strided ones too, and agree with one product at a time") {
  const ls::Tensor a = numbers({2, 1, 6, 5}), b = numbers({3, 4, 5}, {}, 2).transpose(1, 2);
  const ls::Tensor out = ls::matmul(a, b);
  REQUIRE(out.shape() == ls::Shape{2, 3, 6, 4});
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) check_close(out[i][j], ls::matmul(a[i][0], b[j]), "batched");
  }
  const ls::Tensor turned = numbers({6, 3, 5}, {}, 3).transpose(0, 1);  // (3, 6, 5), not contiguous
  const ls::Tensor m = numbers({5, 4}, {}, 4);
  check_close(ls::matmul(turned, m), ls::matmul(turned.contiguous(), m), "not contiguous");
  CHECK(ls::matmul(numbers({1, 6, 5}), numbers({7, 5, 2}, {}, 2)).shape() == ls::Shape{7, 6, 2});
}

TEST_CASE("batches of several dimensions are one product without copies, whatever their strides") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const ls::TensorOptions options = {.dtype = dtype};
    const auto heads = [&](std::uint32_t salt) {  // (batch, heads, time, dim), stored as (batch, time, heads, dim)
      return numbers({3, 20, 4, 8}, options, salt).transpose(1, 2);
    };
    const ls::Tensor q = heads(1), k = heads(2).transpose(-1, -2), other = numbers({2, 1, 4, 8, 5}, options, 3);
    const std::int64_t before = ls::allocator_stats().allocations;
    const ls::Tensor scores = ls::matmul(q, k), five = ls::matmul(q, other);
    CHECK(ls::allocator_stats().allocations == before + 2);
    REQUIRE(scores.shape() == ls::Shape{3, 4, 20, 20});
    REQUIRE(five.shape() == ls::Shape{2, 3, 4, 20, 5});
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t h = 0; h < 4; ++h) {
        CHECK(same_bits(scores[b][h], ls::matmul(q[b][h], k[b][h])));
        for (std::int64_t i = 0; i < 2; ++i) CHECK(same_bits(five[i][b][h], ls::matmul(q[b][h], other[i][0][h])));
      }
    }
  }
}

TEST_CASE("products over an inner size of 0 are zeros, of empty outer sizes empty") {
  CHECK(ls::matmul(ls::zeros({2, 0}), ls::zeros({0, 3})).to_vector<float>() == std::vector<float>(6, 0));
  CHECK(ls::matmul(ls::zeros({5, 2, 0}), ls::zeros({0, 3})).to_vector<float>() == std::vector<float>(30, 0));
  CHECK(ls::matmul(ls::zeros({5, 2, 0}), ls::zeros({5, 0, 3})).to_vector<float>() == std::vector<float>(30, 0));
  CHECK(ls::matmul(ls::zeros({0}), ls::zeros({0})).item<float>() == 0);
  CHECK(ls::matmul(ls::zeros({0, 2, 3}), ls::zeros({3, 4})).shape() == ls::Shape{0, 2, 4});
  CHECK(ls::matmul(ls::zeros({5, 0, 3}), ls::zeros({3, 4})).shape() == ls::Shape{5, 0, 4});
  CHECK(ls::linear(ls::zeros({2, 0}), ls::zeros({3, 0}), ls::ones({3})).to_vector<float>() == std::vector<float>(6, 1));
  CHECK(ls::linear(ls::zeros({2, 0}), ls::zeros({3, 0})).to_vector<float>() == std::vector<float>(6, 0));
  CHECK(ls::linear(ls::zeros({0, 4}), ls::zeros({3, 4}), ls::ones({3})).shape() == ls::Shape{0, 3});
}

TEST_CASE("NaN and infinity propagate through a product") {
  const ls::Tensor a = ls::tensor({{kNan, 1.0}, {kInf, 0.0}}), b = ls::tensor({{0.0, 1.0}, {2.0, 3.0}});
  const std::vector<double> out = ls::matmul(a, b).to_vector<double>();
  CHECK(std::isnan(out[0]));
  CHECK(std::isnan(out[1]));
  CHECK(std::isnan(out[2]));
  CHECK(out[3] == kInf);
  const ls::Tensor large = ls::zeros({100, 100});
  large[5].fill_(kInf);
  CHECK(std::isnan(ls::matmul(ls::zeros({100, 100}), large)[0][0].item<float>()));
}

TEST_CASE("products of incompatible shapes name both operands") {
  const auto matmul = [](const ls::Tensor& a, const ls::Tensor& b) { return error_of([&] { ls::matmul(a, b); }); };
  CHECK(matmul(ls::ones({2, 3}), ls::ones({4, 5})) ==
        "matmul: inner sizes differ: a is (2, 3) f32 cpu, b is (4, 5) f32 cpu");
  CHECK(contains(matmul(ls::ones({2}), ls::ones({3})), "a is (2) f32 cpu, b is (3) f32 cpu"));
  CHECK(contains(matmul(ls::ones({}), ls::ones({3})), "at least one dimension"));
  CHECK(contains(matmul(ls::ones({2, 3}), ls::ones({3, 2}, {.dtype = ls::kFloat64})),
                 "different dtypes: (2, 3) f32 cpu and (3, 2) f64 cpu"));
  CHECK(contains(matmul(ls::ones({2, 3, 4}), ls::ones({3, 4, 5})), "do not broadcast"));
  CHECK(contains(error_of([] {
                   ls::linear(ls::ones({2, 3}), ls::ones({4, 5}));
                 }),
                 "linear: inner sizes differ: x is (2, 3) f32 cpu, weight is (4, 5) f32 cpu"));
  CHECK(contains(error_of([] {
                   ls::linear(ls::ones({2, 3}), ls::ones({4, 3}), ls::ones({3}));
                 }),
                 "linear: bias is (3) f32 cpu, weight is (4, 3) f32 cpu"));
  CHECK(contains(error_of([] { ls::linear(ls::ones({}), ls::ones({4, 3})); }), "linear"));
}
