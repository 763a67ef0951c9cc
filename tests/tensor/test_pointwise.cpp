// The pointwise functions compared with PyTorch, on ordinary values and at the limits of the format.
#include <bit>
#include <functional>
#include <random>

#include "tests/support/testing.h"

namespace {

using Function = std::function<ls::Tensor(const ls::Tensor&)>;

const std::vector<std::pair<std::string, Function>>& functions() {
  static const std::vector<std::pair<std::string, Function>> table = {
#define POINTWISE(name, ...) {#name, [](const ls::Tensor& x) { return ls::name(x); }},
#define POINTWISE_WITH_PARAMETERS(...)
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE
      {"leaky_relu", [](const ls::Tensor& x) { return ls::leaky_relu(x); }},
      {"elu", [](const ls::Tensor& x) { return ls::elu(x); }},
      {"clamp", [](const ls::Tensor& x) { return ls::clamp(x, -1, 1); }},
      {"pow_2", [](const ls::Tensor& x) { return ls::pow(x, 2); }},
      {"softplus", [](const ls::Tensor& x) { return ls::softplus(x); }},
      {"pow_3", [](const ls::Tensor& x) { return ls::pow(x, 3); }},
      {"pow_0", [](const ls::Tensor& x) { return ls::pow(x, 0); }},
      {"pow_0.5", [](const ls::Tensor& x) { return ls::pow(x, 0.5); }},
      {"pow_-1", [](const ls::Tensor& x) { return ls::pow(x, -1); }},
      {"pow_2.5", [](const ls::Tensor& x) { return ls::pow(x, 2.5); }},
  };
  return table;
}

// The golden values of a function.
const ls::StateDict& file_of(const std::string& name) {
  static const ls::StateDict ops = golden("ops"), breadth = golden("breadth");
  return breadth.contains("edges.f64/" + name + "/y") ? breadth : ops;
}

// Checks values and gradients (for an upstream gradient of ones) of every function at `<key>/x`.
void check_all(const std::string& key, const Tolerance& allowed) {
  for (const auto& entry : functions()) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    const ls::StateDict& file = file_of(name);
    const ls::Tensor x = file.at(key + "/x").clone().requires_grad_();
    const ls::Tensor y = function(x);
    y.backward(ls::ones_like(y));
    check_close(y, file.at(key + "/" + name + "/y"), name, allowed);
    check_close(x.grad(), file.at(key + "/" + name + "/grad_x"), name + ", gradient", allowed);
  }
}

// Numbers of f32 with random bits: all magnitudes and signs, infinities, NaN.
ls::Tensor of_all_magnitudes(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(200'000);
  for (float& each : x) each = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return ls::tensor(x);
}

// The largest difference of y from f64 numbers, in units of the last place; infinite where a sign or a number that is not
// finite in f32 differs.
double largest_error(const ls::Tensor& y, const ls::Tensor& exact) {
  const std::vector<float> have = y.to_vector<float>();
  const std::vector<double> want = exact.to_vector<double>();
  double largest = 0;
  for (std::size_t i = 0; i < have.size(); ++i) {
    const auto rounded = static_cast<float>(want[i]);
    if (std::isnan(rounded) && std::isnan(have[i])) continue;
    if (std::signbit(rounded) != std::signbit(have[i])) return kInf;
    if (rounded == have[i]) continue;
    const double of = std::max<double>(std::abs(want[i]), std::numeric_limits<float>::min());
    const double error = std::abs(have[i] - want[i]) / std::ldexp(1.0, std::ilogb(of) - 23);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

// The largest error of f in f32 over evenly spaced points, in units of the last place of the result in f64; `units_of_x`:
// of the last place of x.
double largest_error(const Function& f, double low, double high, bool units_of_x = false) {
  const ls::Tensor x = ls::linspace(low, high, 200'001);
  const std::vector<float> points = x.to_vector<float>(), y = f(x).to_vector<float>();
  const std::vector<double> exact = f(x.to(ls::kFloat64)).to_vector<double>();
  double largest = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double of = std::max<double>(std::abs(units_of_x ? points[i] : exact[i]), std::numeric_limits<float>::min());
    const double unit = std::ldexp(1.0, std::ilogb(of) - 23), error = std::abs(y[i] - exact[i]) / unit;
    if (!(error <= largest)) largest = error;  // NaN, too
  }
  return largest;
}

}  // namespace

TEST_CASE("pointwise functions and their gradients have PyTorch's values in f64") {
  check_all("unary.f64", {1e-12, 0});
}
TEST_CASE("pointwise functions at the edges of f64: zeros of both signs, infinities, NaN, huge and tiny values") {
  check_all("edges.f64", {1e-12, 1e-300});
}
TEST_CASE("pointwise functions at the edges of f32") { check_all("edges.f32", tolerance(ls::kFloat32)); }

TEST_CASE("tiny and subnormal values keep their relative precision") {
  for (const auto& [name, function] : functions()) {
    if (name == "gelu") continue;  // 1 + erf(x) cancels
    const ls::StateDict& file = file_of(name);
    check_close(function(file.at("edges.f32/x")), file.at("edges.f32/" + name + "/y"), name, {1e-5, 1e-38});
  }
  const ls::Tensor x = ls::tensor({1e-45, 1e-40, 1.1754942e-38, 1.17549435e-38});
  check_close(ls::log(x), ls::log(x.to(ls::kFloat64)).to(ls::kFloat32), "log", {1e-6, 0});
  const ls::Tensor tiny = ls::tensor({5e-324, 1e-310, 2.2e-308}, {.dtype = ls::kFloat64});
  check_close(ls::log(tiny),
              ls::tensor({std::log(5e-324), std::log(1e-310), std::log(2.2e-308)}, {.dtype = ls::kFloat64}), "log",
              {1e-15, 0});
}

TEST_CASE("a NaN with any bits is a NaN: GPUs write one with a mantissa of ones") {
  for (const std::uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7fc00001u}) {
    const ls::Tensor x = ls::full({40}, std::bit_cast<float>(bits));
    for (const auto& function : functions()) {
      INFO(function.first, " of a NaN of bits ", bits);
      const float usual = function.second(ls::full({1}, kNan)).item<float>();
      for (const float y : function.second(x).to_vector<float>()) CHECK(std::isnan(y) == std::isnan(usual));
    }
    CHECK(std::isnan(ls::softmax(x, 0)[7].item<float>()));
  }
}

TEST_CASE("softplus takes beta and threshold, and has PyTorch's value and derivatives") {
  const auto check = [](double beta, double threshold, const std::vector<double>& value,
                        const std::vector<double>& first, const std::vector<double>& second) {
    const ls::Tensor x = ls::tensor({-3.0, -1.0, 0.0, 4.0, 9.9}, {.dtype = ls::kFloat64, .requires_grad = true});
    const ls::Tensor y = ls::softplus(x, beta, threshold);
    const ls::Tensor dy = ls::autograd::grad(y.sum(), x, {.create_graph = true});
    const auto close = [](const ls::Tensor& have, const std::vector<double>& want) {
      check_close(have, ls::tensor(want, {.dtype = ls::kFloat64}), "softplus", {1e-9, 1e-11});
    };
    close(y, value);
    close(dy, first);
    close(ls::autograd::grad(dy.sum(), x), second);
  };
  check(2, 20, {1.2378425689e-03, 6.3464005521e-02, 3.4657359028e-01, 4.0001677032, 9.9000000013},
        {2.4726231566e-03, 1.1920292202e-01, 0.5, 9.9966464987e-01, 9.9999999749e-01},
        {4.9330185827e-03, 2.0998717081e-01, 0.5, 6.7047534151e-04, 5.0349972953e-09});
  check(0.5, 3, {4.0282655597e-01, 9.4815396836e-01, 1.3862943611, 4.2538560221, 9.9},
        {1.8242552381e-01, 3.7754066880e-01, 0.5, 8.8079707798e-01, 1},
        {7.4573226035e-02, 1.1750185610e-01, 0.125, 5.2496792702e-02, 0});
}

TEST_CASE("f32 functions are within two units in the last place") {
  for (const auto& entry : functions()) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    const bool is_positive = name.starts_with("log") || name.starts_with("pow") || name.ends_with("sqrt"),
               is_arc = name == "asin" || name == "acos",
               cancels = name.starts_with("gelu");  // 1 + tanh does; gelu in f64, too
    INFO(name);
    const double low = is_positive ? 100.0 / 200'001 : is_arc ? -1 : -20, high = is_positive ? 100 : is_arc ? 1 : 20;
    CHECK(largest_error(function, low, high, cancels) <= 2);
    if (name == "sin" || name == "cos") CHECK(largest_error(function, -1000, 1000) <= 2);
  }
}

TEST_CASE("f32 functions are within two units in the last place at every magnitude, and right at special values") {
  const ls::Tensor x = of_all_magnitudes(1);
  for (const auto& entry : functions()) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    if (!contains("log log2 log10 log1p sin cos tan asin acos atan elu leaky_relu pow_3 pow_-1 pow_2.5", name))
      continue;
    INFO(name);
    CHECK(largest_error(function(x), function(x.to(ls::kFloat64))) <= 2);
  }
}

TEST_CASE("atan2 and pow of two f32 tensors are within two units in the last place, and C's at special values") {
  const ls::Tensor special = ls::tensor({0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -1e-45, 3e38, kInf, -kInf, kNan}),
                   small = ls::linspace(0.01, 10, 5000), exponents = ls::linspace(-30, 30, 5000).flip({0});
  const std::vector<std::pair<ls::Tensor, ls::Tensor>> cases = {
      {special.unsqueeze(1), special}, {of_all_magnitudes(1), of_all_magnitudes(2)}, {small, exponents}};
  for (const auto& [a, b] : cases) {
    const ls::Tensor wide_a = a.to(ls::kFloat64), wide_b = b.to(ls::kFloat64);
    CHECK(largest_error(ls::atan2(a, b), ls::atan2(wide_a, wide_b)) <= 2);
    CHECK(largest_error(ls::pow(a, b), ls::pow(wide_a, wide_b)) <= 2);
  }
}

TEST_CASE("remainders of f32 are exact, whatever the other numbers of a block") {
  const ls::Tensor a = of_all_magnitudes(1), b = of_all_magnitudes(2);
  const ls::Tensor near = ls::linspace(-1000, 1000, 5000), divisor = ls::linspace(0.1, 7, 5000);
  for (const auto& [x, y] : {std::pair(a, b), std::pair(near, divisor)}) {
    const std::vector<float> have = ls::fmod(x, y).to_vector<float>(), of = x.to_vector<float>(),
                             by = y.to_vector<float>();
    std::vector<float> want(of.size());
    for (std::size_t i = 0; i < of.size(); ++i) want[i] = std::fmod(of[i], by[i]);
    CHECK(largest_error(ls::tensor(have), ls::tensor(want).to(ls::kFloat64)) == 0);
  }
}

TEST_CASE("gelu of f32 keeps its relative accuracy below 0, where 1 + erf would cancel") {
  const ls::Tensor x = ls::linspace(-12, -1, 10'001);
  const std::vector<float> points = x.to_vector<float>(), y = ls::gelu(x).to_vector<float>();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double exact = 0.5 * points[i] * std::erfc(-points[i] / std::sqrt(2.0));
    if (std::abs(y[i] - exact) > 1e-5 * std::abs(exact)) CHECK_MESSAGE(false, points[i], " gives ", y[i]);
  }
  CHECK(ls::gelu(ls::tensor({-14.0, 14.0})).to_vector<float>() == std::vector<float>{0, 14});
}

TEST_CASE("exp, sigmoid and tanh reach their limits exactly") {
  const ls::Tensor x = ls::tensor({-1e4, -200.0, 200.0, 1e4});
  CHECK(ls::exp(x).to_vector<float>() == std::vector<float>{0, 0, INFINITY, INFINITY});
  CHECK(ls::sigmoid(x).to_vector<float>() == std::vector<float>{0, 0, 1, 1});
  CHECK(ls::tanh(x).to_vector<float>() == std::vector<float>{-1, -1, 1, 1});
  CHECK(ls::softplus(x).to_vector<float>() == std::vector<float>{0, 0, 200, 1e4f});
}

TEST_CASE("a value does not depend on its neighbours: every function, every length from 1 to 70") {
  for (const auto& entry : functions()) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
      INFO(name, " ", ls::name(dtype));
      const ls::Tensor x = numbers_between(0.2, 3, {70}, {.dtype = dtype});
      const ls::Tensor whole = function(x);
      for (std::int64_t n = 1; n <= 70; ++n)
        REQUIRE(same_bits(function(x.narrow(0, 0, n).clone()), whole.narrow(0, 0, n)));
      const ls::Tensor strided = ls::zeros({70, 3}, {.dtype = dtype});
      strided.select(1, 1).copy_(x);
      CHECK(same_bits(function(strided.select(1, 1)), whole));
      CHECK(same_bits(function(x[7].expand({300})), whole[7].expand({300})));
    }
  }
}

TEST_CASE("neg, abs and relu keep integers, the others convert them to f32") {
  const ls::Tensor x = ls::tensor({-2, 0, 3});
  CHECK(ls::neg(x).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 0, -3});
  CHECK((-x).dtype() == ls::kInt64);
  CHECK(ls::abs(x).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 0, 3});
  CHECK(ls::relu(x).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 3});
  CHECK(ls::exp(x).dtype() == ls::kFloat32);
  CHECK(ls::sqrt(ls::tensor({4})).item<float>() == 2);
  CHECK(ls::pow(x, 2).to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 0, 9});
  CHECK(ls::pow(x, 2.0).dtype() == ls::kFloat32);
  CHECK(contains(error_of([&] { ls::pow(x, -1); }), "pow"));
}

TEST_CASE("pointwise functions take empty and 0-d tensors") {
  for (const auto& entry : functions()) {
    const auto& name = entry.first;
    const auto& function = entry.second;
    CAPTURE(name);
    CHECK(function(ls::zeros({0, 3})).shape() == ls::Shape{0, 3});
    CHECK(function(ls::tensor(0.5)).dim() == 0);
  }
}
