// Rounding errors of f32 sums do not grow with the number of terms. Every case sums n terms of about 0.1, for which
// addition one after another in f32 is wrong from the third digit on.
#include <cmath>
#include <functional>

#include "tests/nn/support.h"

namespace {

constexpr double kAllowed = 32;  // in units of 2^-24, relative; `sum` itself has up to 17

double last(const ls::Tensor& x) {
  return x.detach().flatten().narrow(0, x.numel() - 1, 1).to(ls::kFloat64).item<double>();
}

// f(x) of x (n) in f32, compared with f in f64 of the same values: the last element.
void check_sum(const std::string& what, std::int64_t n, const std::function<ls::Tensor(const ls::Tensor&)>& f) {
  ls::manual_seed(1);
  for (const ls::Tensor& x : {ls::full({n}, 0.1), ls::rand({n})}) {
    const double have = last(f(x)), want = last(f(x.to(ls::kFloat64)));
    INFO(what, " of ", n, " terms: ", have, ", expected ", want);
    CHECK(std::abs(have - want) <= kAllowed * 0x1p-24 * std::abs(want));
  }
}

ls::Tensor columns(const ls::Tensor& x, std::int64_t count) {
  return x.unsqueeze(1).expand({x.numel(), count}).contiguous();
}
ls::Tensor rows(const ls::Tensor& x, std::int64_t count) { return x.expand({count, x.numel()}).contiguous(); }
ls::Tensor zero_index(std::int64_t n) { return ls::zeros({n}, {.dtype = ls::kInt64}); }

// The gradient of f at zeros of `shape`, for the gradient `grad` of its result.
ls::Tensor gradient(const ls::Shape& shape, const ls::Tensor& grad,
                    const std::function<ls::Tensor(const ls::Tensor&)>& f) {
  const ls::Tensor leaf = ls::zeros(shape, grad.options()).requires_grad_(true);
  f(leaf).backward(grad);
  return leaf.grad();
}

constexpr std::int64_t kMany = 300'007;  // neither a whole number of packets nor of blocks

}  // namespace

TEST_CASE("the error of a cumulative sum does not grow with its length, along rows, columns and backwards") {
  check_sum("cumsum", kMany, [](const ls::Tensor& x) { return ls::cumsum(x, 0); });
  check_sum("cumsum of five rows", kMany, [](const ls::Tensor& x) { return ls::cumsum(rows(x, 5), 1); });
  check_sum("cumsum of columns", kMany, [](const ls::Tensor& x) { return ls::cumsum(columns(x, 3), 0); });
  check_sum("gradient of cumsum", kMany, [](const ls::Tensor& x) {
    return gradient({x.numel()}, x, [](const ls::Tensor& y) { return ls::cumsum(y, 0); }).narrow(0, 0, 1);
  });
}

TEST_CASE("the error of an inner product does not grow with its length, however it is written") {
  for (const std::int64_t n : {1000, 4099, 20000, static_cast<int>(kMany)}) {
    check_sum("dot", n, [](const ls::Tensor& x) { return ls::dot(x, x); });
    check_sum("dot of every other element", n, [](const ls::Tensor& x) {
      const ls::Tensor other = columns(x, 2).select(1, 1);
      return ls::dot(other, other);
    });
    check_sum("matmul (n) (n)", n, [](const ls::Tensor& x) { return ls::matmul(x, x); });
    check_sum("matmul (1, n) (n, 1)", n,
              [](const ls::Tensor& x) { return ls::matmul(x.unsqueeze(0), x.unsqueeze(1)); });
    check_sum("bmm", n, [](const ls::Tensor& x) { return ls::bmm(rows(x, 2).unsqueeze(1), rows(x, 2).unsqueeze(2)); });
    check_sum("einsum", n, [](const ls::Tensor& x) { return ls::einsum("i,i->", {x, x}); });
  }
}

TEST_CASE("the error of a matrix product does not grow with the number of terms") {
  for (const std::int64_t n : {1000, 10000, static_cast<int>(kMany)}) {
    check_sum("(3, n) (n)", n, [](const ls::Tensor& x) { return ls::matmul(rows(x, 3), x); });
    check_sum("(n, 3)^T (n)", n, [](const ls::Tensor& x) { return ls::matmul(columns(x, 3).t(), x); });
    check_sum("(n) (n, 3)", n, [](const ls::Tensor& x) { return ls::matmul(x, columns(x, 3)); });
    check_sum("(n) (3, n)^T", n, [](const ls::Tensor& x) { return ls::matmul(x, rows(x, 3).t()); });
    check_sum("(3, n) (n, 3)", n, [](const ls::Tensor& x) { return ls::matmul(rows(x, 3), columns(x, 3)); });
    check_sum("(n, 3)^T (n, 3)", n, [](const ls::Tensor& x) { return ls::matmul(columns(x, 3).t(), columns(x, 3)); });
    check_sum("(2, 3, n) (n, 3) per matrix", n, [](const ls::Tensor& x) {
      return ls::matmul(rows(x, 6).reshape({2, 3, x.numel()}), rows(x, 6).reshape({2, 3, x.numel()}).transpose(1, 2));
    });
    check_sum("linear", n,
              [](const ls::Tensor& x) { return ls::linear(rows(x, 2), rows(x, 3), ls::ones({3}, x.options())); });
    check_sum("gradient of linear's weight", n, [](const ls::Tensor& x) {
      return gradient({2, 3}, columns(x, 2), [&](const ls::Tensor& w) { return ls::linear(columns(x, 3), w, {}); });
    });
  }
}

TEST_CASE("the error of additions by index does not grow with their number") {
  check_sum("index_add", kMany, [](const ls::Tensor& x) {
    return ls::index_add(ls::ones({2, 1, 2}, x.options()), 1, zero_index(x.numel()),
                         columns(x, 2).expand({2, x.numel(), 2}));
  });
  check_sum("scatter_add", kMany, [](const ls::Tensor& x) {
    return ls::scatter_add(ls::ones({1}, x.options()), 0, zero_index(x.numel()), x);
  });
  check_sum("scatter_add of rows", kMany, [](const ls::Tensor& x) {
    return ls::scatter_add(ls::ones({2, 1}, x.options()), 1, zero_index(2 * x.numel()).reshape({2, -1}), rows(x, 2));
  });
  check_sum("gradient of index_select", kMany, [](const ls::Tensor& x) {
    return gradient({1, 3}, columns(x, 3),
                    [&](const ls::Tensor& w) { return ls::index_select(w, 0, zero_index(x.numel())); });
  });
}

TEST_CASE("the error of softmax, losses and pooling does not grow with the number of terms") {
  const auto start = [](const ls::Tensor& grad, std::int64_t dim) {
    return gradient(grad.shape(), grad, [dim](const ls::Tensor& x) { return ls::log_softmax(x, dim); }) - grad;
  };
  check_sum("softmax of columns", kMany, [](const ls::Tensor& x) { return ls::softmax(columns(x, 3), 0); });
  check_sum("gradient of log_softmax", kMany, [&](const ls::Tensor& x) { return start(x, 0); });
  check_sum("gradient of log_softmax of columns", kMany, [&](const ls::Tensor& x) { return start(columns(x, 3), 0); });
  check_sum("cross_entropy of many classes", kMany, [](const ls::Tensor& x) {
    return ls::nn::cross_entropy(x.unsqueeze(0), zero_index(1), {.label_smoothing = 0.5});
  });
  check_sum("cross_entropy of many classes in places", kMany, [](const ls::Tensor& x) {
    return ls::nn::cross_entropy(columns(x, 2).unsqueeze(0), zero_index(2).unsqueeze(0));
  });
  check_sum("mse_loss", kMany, [](const ls::Tensor& x) { return ls::nn::mse_loss(x, ls::zeros_like(x)); });
  check_sum("avg_pool2d", 250000, [](const ls::Tensor& x) { return ls::avg_pool2d(x.reshape({1, 500, 500}), 500); });
}
