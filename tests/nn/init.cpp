// nn::init: truncated normal distributions and orthogonal matrices, by their closed forms; bits that a seed fixes.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "support.h"

namespace {

double probability(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// The largest distance between the sample's distribution function and that of N(mean, std^2) in [low, high].
double distance(std::vector<double> sample, double mean, double std, double low, double high) {
  std::ranges::sort(sample);
  const double below = probability((low - mean) / std), range = probability((high - mean) / std) - below;
  double largest = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double expected = (probability((sample[i] - mean) / std) - below) / range;
    const double count = static_cast<double>(sample.size());
    largest =
        std::max({largest, expected - static_cast<double>(i) / count, static_cast<double>(i + 1) / count - expected});
  }
  return largest;
}

void check_orthonormal(const ls::Tensor& x, double gain, double allowed) {
  const ls::Tensor rows = x.flatten(1).to(ls::kFloat64);
  const ls::Tensor m = rows.size(0) < rows.size(1) ? rows.t() : rows;
  check_close(ls::matmul(m.t(), m), ls::eye(m.size(1), m.size(1), {.dtype = ls::kFloat64}) * (gain * gain), "m^T m",
              {0, allowed});
}

}  // namespace

TEST_CASE("trunc_normal_ has the distribution of its closed form") {
  struct Case {
    double mean, std, low, high;
  };
  const Case cases[] = {{0, 1, -2, 2}, {1, 0.5, 0, 3}, {0, 1, 2, 5}, {0, 1, -9, -3}, {0, 0.02, -2, 2}, {5, 1, -1, 1}};
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    for (const Case& each : cases) {
      const double mean = each.mean, std = each.std, low = each.low, high = each.high;
      INFO(mean, " ", std, " ", low, " ", high);
      ls::manual_seed(11);
      const ls::Tensor x = ls::empty({100, 200}, {.dtype = dtype});
      CHECK(&nn::init::trunc_normal_(x, mean, std, low, high) == &x);
      const std::vector<double> sample = x.to_vector<double>();
      CHECK(*std::ranges::min_element(sample) >= low);
      CHECK(*std::ranges::max_element(sample) <= high);
      CHECK(distance(sample, mean, std, low, high) < 1.63 / std::sqrt(20000.0));  // Kolmogorov: 1 in 100
    }
  }
}

TEST_CASE("orthogonal_ gives orthonormal rows or columns times gain") {
  for (const ls::Shape& shape : {ls::Shape{4, 4}, {7, 3}, {3, 7}, {1, 5}, {5, 1}, {3, 2, 2, 2}, {50, 20}}) {
    INFO(shape.to_string());
    ls::manual_seed(12);
    const ls::Tensor x = ls::empty(shape), wide = ls::empty(shape, {.dtype = ls::kFloat64});
    CHECK(&nn::init::orthogonal_(x) == &x);
    check_orthonormal(x, 1, 1e-5);
    nn::init::orthogonal_(wide, 2.5);
    check_orthonormal(wide, 2.5, 1e-12);
  }
  ls::Tensor half = ls::empty({4, 3}, {.dtype = ls::kBFloat16});
  nn::init::orthogonal_(half);
  check_orthonormal(half, 1, 0.05);
  CHECK(nn::init::orthogonal_(ls::empty({0, 3})).numel() == 0);
}

TEST_CASE("orthogonal_ is uniform: elements have mean 0 and variance 1 / n, and determinants both signs") {
  ls::manual_seed(13);
  double sum = 0, squares = 0;
  int positive = 0;
  constexpr int kDraws = 400;
  const ls::Tensor x = ls::empty({3, 3}, {.dtype = ls::kFloat64});
  for (int draw = 0; draw < kDraws; ++draw) {
    nn::init::orthogonal_(x);
    const double first = x[0][0].item<double>();
    sum += first, squares += first * first;
    positive += ls::linalg::det(x).item<double>() > 0;
  }
  CHECK(std::abs(sum / kDraws) < 4 * std::sqrt(1.0 / 3 / kDraws));
  CHECK(std::abs(squares / kDraws - 1.0 / 3) < 4 * std::sqrt((0.2 - 1.0 / 9) / kDraws));  // E x^4 = 3 / (n (n + 2))
  CHECK(std::abs(positive - kDraws / 2) < 4 * std::sqrt(kDraws / 4.0));
}

TEST_CASE("a seed fixes the bits, whatever the threads, and deferred parameters get the same ones, also in parts") {
  struct Net : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", 6, 4);
    nn::Linear& out = add<nn::Linear>("out", 4, 9);
    Net() {
      nn::init::trunc_normal_(fc.weight, 0, 0.5);
      nn::init::orthogonal_(out.weight, 0.5);
    }
  };
  ls::manual_seed(14);
  const Net first;
  const int threads = ls::num_threads();
  ls::set_num_threads(1);
  ls::manual_seed(14);
  const Net second;
  ls::set_num_threads(threads);
  CHECK(same_bits(first.fc.weight, second.fc.weight));
  CHECK(same_bits(first.out.weight, second.out.weight));
  nn::DeferredInit deferred(14);
  const Net later;
  deferred.end();
  for (const auto& [own, whole] :
       {std::pair(&later.fc.weight, &first.fc.weight), {&later.out.weight, &first.out.weight}}) {
    const ls::Tensor flat = whole->master().detach().flatten();
    CHECK(same_bits(nn::initial_values(own->master(), 5, 11, ls::Device()), flat.narrow(0, 5, 11)));
    CHECK(same_bits(nn::initial_values(own->master(), 0, 0, ls::Device()), flat.narrow(0, 0, 0)));
  }
}

TEST_CASE("trunc_normal_ and orthogonal_ refuse what has no distribution") {
  const ls::Tensor x = ls::ones({2, 2});
  CHECK(contains(error_of([&] { nn::init::trunc_normal_(x, 0, 0); }), "trunc_normal_: N(0, 0^2) in [-2, 2]"));
  CHECK(contains(error_of([&] { nn::init::trunc_normal_(x, 0, 1, 2, 1); }), "in [2, 1]; expected a positive"));
  CHECK(contains(error_of([&] { nn::init::trunc_normal_(x, 0, 1, 60, 61); }), "positive probability"));
  CHECK(contains(error_of([] { nn::init::orthogonal_(ls::ones({3})); }), "orthogonal_: needs two or more dimensions"));
  CHECK(ls::equal(x, ls::ones({2, 2})));
}
