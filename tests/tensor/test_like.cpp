// Tensors created like others, and random tensors with parameters.
#include "tests/support/testing.h"

TEST_CASE("empty_like, full_like, rand_like and randn_like take shape, dtype and device from a tensor") {
  const ls::Tensor x = ls::zeros({2, 3}, {.dtype = ls::kFloat64, .device = "cpu:1"});
  for (const ls::Tensor& y : {ls::empty_like(x), ls::full_like(x, 2), ls::rand_like(x), ls::randn_like(x)}) {
    CHECK(y.shape() == x.shape());
    CHECK(y.dtype() == ls::kFloat64);
    CHECK(y.device() == x.device());
  }
  CHECK(ls::equal(ls::full_like(x, 2), ls::full({2, 3}, 2, {.device = "cpu:1"})));
  CHECK(ls::rand_like(x, {.dtype = ls::kFloat32, .requires_grad = true}).requires_grad());
  ls::manual_seed(3);
  const ls::Tensor want = ls::randn({2, 3}, x.options());
  ls::manual_seed(3);
  CHECK(same_bits(ls::randn_like(x), want));
}

TEST_CASE("normal and bernoulli have the mean and the deviation that are asked for") {
  ls::manual_seed(5);
  const auto agrees = [](const ls::Tensor& x, double mean, double std) {
    const auto [deviation, average] = ls::std_mean(x.to(ls::kFloat64));
    CHECK(average.item<double>() == doctest::Approx(mean).epsilon(0.02));
    CHECK(deviation.item<double>() == doctest::Approx(std).epsilon(0.02));
  };
  const ls::Tensor means = ls::full({200, 100}, 3), deviations = ls::full({100}, 2.0);
  agrees(ls::normal(3, 2, {200, 100}), 3, 2);
  agrees(ls::normal(means.to(ls::kFloat32), 2), 3, 2);
  agrees(ls::normal(3, deviations.expand({200, 100})), 3, 2);
  agrees(ls::normal(means.to(ls::kFloat32), deviations), 3, 2);
  CHECK(ls::normal(3, 2, {2}, {.requires_grad = true}).is_leaf());
  CHECK(!ls::normal(deviations.clone().requires_grad_(), 1).requires_grad());
  agrees(ls::bernoulli(means, 0.25), 0.25, std::sqrt(0.25 * 0.75));
  CHECK(ls::bernoulli(means, 0.25).dtype() == ls::kInt64);
  const ls::Tensor p = ls::tensor({0.0, 1.0, 0.5}).expand({20000, 3});
  const ls::Tensor drawn = ls::bernoulli(p);
  CHECK(ls::equal(drawn.mean(0).slice(0, 0, 2), ls::tensor({0.0, 1.0})));
  agrees(drawn.select(1, 2), 0.5, 0.5);
  CHECK(ls::bernoulli(ls::ones({2}, {.dtype = ls::kHalf})).dtype() == ls::kHalf);
}

TEST_CASE("normal and bernoulli refuse parameters outside their range") {
  CHECK(contains(error_of([] { ls::normal(0, -1, {2}); }), "normal: the standard deviation is -1"));
  CHECK(contains(error_of([] { ls::bernoulli(ls::tensor({0.5, 1.5})); }), "bernoulli: a probability of (2) f32 cpu"));
  CHECK(contains(error_of([] { ls::bernoulli(ls::tensor({1})); }), "bernoulli: the probabilities must be floating"));
  CHECK(contains(error_of([] { ls::bernoulli(ls::zeros({2}), kNan); }), "bernoulli: probability nan"));
}
