// Rotary positions: the closed form, both layouts of pairs, and the property that they are made for.
#include <complex>

#include "tests/support/testing.h"

namespace {

const ls::TensorOptions f64 = {.dtype = ls::kFloat64};

// One row of x at `position`, turned with complex numbers.
std::vector<double> turned(const std::vector<double>& x, double position, const ls::RotaryOptions& options) {
  const std::size_t pairs = x.size() / 2;
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t a = options.interleaved ? 2 * i : i, b = options.interleaved ? a + 1 : a + pairs;
    const double angle =
        position * std::pow(options.base, -2.0 * static_cast<double>(i) / static_cast<double>(x.size()));
    const std::complex<double> z = std::complex<double>(x[a], x[b]) * std::polar(1.0, angle);
    y[a] = z.real(), y[b] = z.imag();
  }
  return y;
}

}  // namespace

TEST_CASE("each pair is turned by its position times its frequency") {
  for (const ls::RotaryOptions& options :
       {ls::RotaryOptions{}, ls::RotaryOptions{.base = 100, .first = 7}, ls::RotaryOptions{.interleaved = false}}) {
    const ls::Tensor x = numbers({2, 3, 5, 8}, f64), y = ls::rotary_embedding(x, options);
    REQUIRE(y.shape() == x.shape());
    const auto f32 = ls::rotary_embedding(x.to(ls::kFloat32), options);
    CHECK(f32.dtype() == ls::kFloat32);
    CHECK(ls::allclose(f32.to(ls::kFloat64), y, 1e-5, 1e-6));
    for (std::int64_t t = 0; t < 5; ++t) {
      const auto want = turned(x[1][2][t].to_vector<double>(), static_cast<double>(options.first + t), options);
      check_close(y[1][2][t], ls::tensor(want, f64), "row", {1e-13, 1e-15});
    }
  }
}

TEST_CASE("the product of a query and a key depends on the distance of their positions") {
  const ls::Tensor q = numbers({1, 16}, f64, 1), k = numbers({1, 16}, f64, 2);
  const auto product = [&](std::int64_t at_q, std::int64_t at_k) {
    return ls::sum(ls::rotary_embedding(q, {.first = at_q}) * ls::rotary_embedding(k, {.first = at_k})).item<double>();
  };
  CHECK(product(9, 4) == doctest::Approx(product(1005, 1000)).epsilon(1e-10));
  CHECK(product(9, 4) != doctest::Approx(product(9, 3)).epsilon(1e-3));
  CHECK(product(0, 0) == ls::sum(q * k).item<double>());  // position 0 changes nothing
}

TEST_CASE("rotary_embedding takes no time and no pairs, and refuses an odd size, integers and a base of 0") {
  CHECK(ls::rotary_embedding(ls::ones({2, 0, 4})).shape() == ls::Shape{2, 0, 4});
  CHECK(ls::rotary_embedding(ls::ones({2, 3, 0})).shape() == ls::Shape{2, 3, 0});
  const std::string odd = error_of([] { ls::rotary_embedding(ls::ones({4, 3})); });
  CHECK(odd == "rotary_embedding: x is (4, 3) f32 cpu, expected floating point, (..., time, dim) with an even dim");
  CHECK(!error_of([] { ls::rotary_embedding(ls::ones({4})); }).empty());
  CHECK(!error_of([] { ls::rotary_embedding(ls::ones({4, 2}, {.dtype = ls::kInt64})); }).empty());
  CHECK(contains(error_of([] { ls::rotary_embedding(ls::ones({4, 2}), {.base = 0}); }), "base is 0"));
}
