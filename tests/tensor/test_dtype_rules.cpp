// The dtypes that an operation accepts and returns: changes in place, alpha, bool operands, clamp. The rules are those
// of PyTorch 2.15.
#include <functional>

#include "tests/support/testing.h"

namespace {

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;
using Bools = std::vector<bool>;
using Change = std::function<void(const ls::Tensor&)>;

const std::vector<ls::DType> computed = {ls::kBool, ls::kUInt8, ls::kInt32, ls::kInt64, ls::kFloat32, ls::kFloat64};

int category(ls::DType dtype) { return dtype == ls::kBool ? 0 : ls::is_integer(dtype) ? 1 : 2; }

// Returns the error of a change of a tensor of ones of this dtype, or an empty text.
std::string refusal(ls::DType dtype, const Change& change) {
  const ls::Tensor x = ls::ones({2}, {.dtype = dtype});
  const std::string text = error_of([&] { change(x); });
  if (!text.empty()) CHECK(ls::equal(x, ls::ones({2})));
  CHECK(x.dtype() == dtype);
  return text;
}

}  // namespace

TEST_CASE("a change in place keeps the dtype and refuses a result of a higher category") {
  const std::vector<std::tuple<std::string, std::function<void(const ls::Tensor&, const ls::Tensor&)>>> changes = {
      {"add_", [](const ls::Tensor& a, const ls::Tensor& b) { a.add_(b); }},
      {"sub_", [](const ls::Tensor& a, const ls::Tensor& b) { a.sub_(b); }},
      {"mul_", [](const ls::Tensor& a, const ls::Tensor& b) { a.mul_(b); }},
      {"div_", [](const ls::Tensor& a, const ls::Tensor& b) { a.div_(b); }}};
  for (const auto& each : changes) {
    const auto& name = std::get<0>(each);
    const auto& change = std::get<1>(each);
    for (const ls::DType own : computed) {
      for (const ls::DType other : computed) {
        for (const ls::Shape& shape : {ls::Shape{2}, ls::Shape{}}) {
          INFO(name, " ", ls::name(own), " ", ls::name(other), " ", shape.to_string());
          const ls::Tensor operand = ls::ones(shape, {.dtype = other});
          bool fits = category(other) <= category(own);
          if (name == "div_") fits = category(own) == 2;  // a quotient is a float
          if (name == "sub_") fits = fits && own != ls::kBool && other != ls::kBool;
          const std::string text = refusal(own, [&](const ls::Tensor& x) { change(x, operand); });
          CHECK_MESSAGE(text.empty() == fits, text);
          if (!fits) CHECK_MESSAGE(text.starts_with(name + ": "), text);
        }
      }
    }
  }
}

TEST_CASE("a number's kind decides its category in changes in place") {
  const std::vector<Change> fractions = {
      [](const ls::Tensor& x) { x.add_(0.5); }, [](const ls::Tensor& x) { x.sub_(0.5); },
      [](const ls::Tensor& x) { x.mul_(0.5); }, [](const ls::Tensor& x) { x.div_(2); }};
  const std::vector<Change> integers = {[](const ls::Tensor& x) { x.add_(1); }, [](const ls::Tensor& x) { x.sub_(1); },
                                        [](const ls::Tensor& x) { x.mul_(1); }};
  for (const ls::DType dtype : computed) {
    INFO(ls::name(dtype));
    for (const Change& change : fractions) CHECK(refusal(dtype, change).empty() == ls::is_floating_point(dtype));
    for (const Change& change : integers) CHECK(refusal(dtype, change).empty() == (dtype != ls::kBool));
    CHECK(refusal(dtype, [](const ls::Tensor& x) { x.add_(true); }).empty());
    CHECK(refusal(dtype, [](const ls::Tensor& x) { x.mul_(true); }).empty());
    CHECK(!refusal(dtype, [](const ls::Tensor& x) { x.sub_(true); }).empty());
  }
  CHECK(contains(refusal(ls::kInt64, fractions[0]), "add_: a result of f32 does not fit into (2) i64 cpu"));
}

TEST_CASE("alpha must not be a fraction for integers, or a bool for numbers") {
  const ls::Tensor i = ls::tensor({1, 2}), f = ls::tensor({1.0, 2.0}), m = ls::tensor({true, false});
  const ls::Tensor u = ls::tensor({1, 2}, {.dtype = ls::kUInt8});
  for (const double alpha : {0.5, 2.0}) {
    CHECK(contains(error_of([&] { ls::add(i, i, alpha); }), "floating-point number, the operands are (2) i64 cpu"));
    CHECK(contains(error_of([&] { ls::sub(i, i, alpha); }), "sub: alpha is"));
    CHECK(contains(error_of([&] { i.clone().add_(i, alpha); }), "add_: alpha is"));
    CHECK(contains(error_of([&] { i.clone().sub_(i, alpha); }), "sub_: alpha is"));
    CHECK(contains(error_of([&] { m.clone().add_(m, alpha); }), "add_: alpha is"));
  }
  for (const ls::Tensor& x : {i, f, u}) {
    CHECK(contains(error_of([&] { ls::add(x, x, true); }), "alpha is a bool"));
    CHECK(contains(error_of([&] { ls::sub(x, x, true); }), "alpha is a bool"));
    CHECK(contains(error_of([&] { x.clone().add_(x, true); }), "alpha is a bool"));
    CHECK(contains(error_of([&] { x.clone().sub_(x, true); }), "alpha is a bool"));
  }
  CHECK(contains(error_of([&] { ls::add(u, u, 300); }), "add: 300 is outside the range of u8"));
  CHECK(ls::add(f, i, 0.5).to_vector<double>() == Doubles{1.5, 3});
  CHECK(f.clone().add_(i, 0.5).to_vector<double>() == Doubles{1.5, 3});
  CHECK(i.clone().add_(m, 2).to_vector<std::int64_t>() == Ints{3, 2});
  CHECK(u.clone().add_(u, -1).to_vector<std::int64_t>() == Ints{0, 0});
  CHECK(u.clone().add_(i, 300).to_vector<std::int64_t>() == Ints{45, 90});  // computed as i64, and wraps
}

TEST_CASE("sums of bools are their disjunction, for any alpha except 0") {
  const ls::Tensor a = ls::tensor({true, false, true, false}), b = ls::tensor({true, true, false, false});
  const auto in_place = [&](const ls::Scalar& alpha) { return a.clone().add_(b, alpha); };
  for (const int alpha : {1, 2, 255, 256}) {
    CHECK(in_place(alpha).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 1, 1, 0});
    CHECK(ls::add(a, b, alpha).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 1, 1, 0});
  }
  CHECK(in_place(true).to_vector<bool>() == Bools{true, true, true, false});
  CHECK(in_place(0).to_vector<bool>() == Bools{true, false, true, false});
  CHECK(ls::add(a, b, false).to_vector<bool>() == Bools{true, false, true, false});
  CHECK(a.clone().add_(true).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 1, 1, 1});
  CHECK(a.clone().mul_(b).to_vector<bool>() == Bools{true, false, false, false});
}

TEST_CASE("bools cannot be subtracted or negated") {
  const ls::Tensor m = ls::tensor({true, false}), i = ls::tensor({1, 2}), f = ls::tensor({1.0, 2.0});
  for (const ls::Tensor& x : {m, i, f}) {
    CHECK(contains(error_of([&] { x - m; }), "sub: bool tensors cannot be subtracted"));
    CHECK(contains(error_of([&] { m - x; }), "sub: bool tensors cannot be subtracted"));
    CHECK(contains(error_of([&] { x.clone().sub_(m); }), "sub_: bool tensors cannot be subtracted"));
  }
  CHECK(contains(error_of([&] { 1 - m; }), "cannot be subtracted"));
  CHECK(contains(error_of([&] { m - 1; }), "cannot be subtracted"));
  CHECK(contains(error_of([&] { i - true; }), "cannot be subtracted"));
  CHECK(contains(error_of([&] { -m; }), "neg: bool tensors are not supported, got (2) bool cpu"));
  CHECK(contains(error_of([&] { ls::abs(m); }), "abs: bool"));
  CHECK(contains(error_of([&] { ls::relu(m); }), "relu: bool"));
  CHECK(contains(error_of([&] { ls::pow(m, m); }), "pow: bool"));
  CHECK(ls::pow(m, 2).dtype() == ls::kInt64);
  CHECK(ls::exp(m).dtype() == ls::kFloat32);
}

TEST_CASE("clamp keeps integers if its limits are integers, and returns f32 if one is a fraction") {
  for (const ls::DType dtype : {ls::kUInt8, ls::kInt32, ls::kInt64}) {
    INFO(ls::name(dtype));
    const ls::Tensor x = ls::tensor({0, 1, 2, 3}, {.dtype = dtype});
    const auto check = [&](const ls::Tensor& y, const Ints& want) {
      CHECK(y.dtype() == dtype);
      CHECK(y.to_vector<std::int64_t>() == want);
    };
    check(ls::clamp(x, 1, 2), {1, 1, 2, 2});
    check(ls::clamp(x, -1, 1), {0, 1, 1, 1});
    check(ls::clamp(x, 2), {2, 2, 2, 3});
    check(ls::clamp(x, {}, 1), {0, 1, 1, 1});
    check(ls::clamp(x, 2, 0), {0, 0, 0, 0});  // the upper limit wins
    check(ls::clamp_min(x, 1), {1, 1, 2, 3});
    check(x.clamp(true, 2), {1, 1, 2, 2});
    CHECK(ls::clamp(x, 0.5, 2).dtype() == ls::kFloat32);
    CHECK(ls::clamp(x, 0.5, 1.5).to_vector<double>() == Doubles{0.5, 1, 1.5, 1.5});
  }
  const std::int64_t large = (std::int64_t{1} << 60) + 1;  // not a double
  CHECK(ls::clamp(ls::tensor({large, large + 4}), 0, large + 1).to_vector<std::int64_t>() == Ints{large, large + 1});
  const ls::Tensor u = ls::tensor({0, 3}, {.dtype = ls::kUInt8}), i = ls::tensor({0, 3}, {.dtype = ls::kInt32});
  CHECK(ls::clamp(u, -5, 300).to_vector<std::int64_t>() == Ints{0, 3});
  CHECK(ls::clamp(i, -large, large).to_vector<std::int64_t>() == Ints{0, 3});
  CHECK(contains(error_of([&] { ls::clamp(u, 300, 400); }), "clamp: the lower limit 300 is above all numbers of"));
  CHECK(contains(error_of([&] { ls::clamp(u, -5, -1); }), "clamp: the upper limit -1 is below all numbers of"));
  const ls::Tensor m = ls::tensor({true, false});
  CHECK(ls::clamp(m, 0, 1).dtype() == ls::kInt64);
  CHECK(contains(error_of([&] { ls::clamp(m, false, true); }), "clamp: bool tensors have no order"));
  CHECK(contains(error_of([&] { ls::clamp(i, {}, {}); }), "clamp: (2) i32 cpu needs a limit"));
}

TEST_CASE("in clamp the upper limit takes precedence, and NaN propagates from a limit or an element") {
  const ls::Tensor x = ls::tensor({-2.0, 0.5, 2.0, kNan});
  CHECK(ls::clamp(x.narrow(0, 0, 3), 1, -1).to_vector<double>() == Doubles{-1, -1, -1});
  CHECK(ls::clamp(x.narrow(0, 0, 3), 0).to_vector<double>() == Doubles{0, 0.5, 2});
  CHECK(ls::clamp(ls::tensor({-kInf, kInf}), {}, 0).to_vector<double>() == Doubles{-kInf, 0});
  CHECK(std::isnan(ls::clamp(x, -1, 1)[3].item<double>()));
  for (const ls::Tensor& y : {ls::clamp(x, kNan, 1), ls::clamp(x, -1, kNan), ls::clamp(ls::tensor({1}), kNan)}) {
    for (const double value : y.to_vector<double>()) CHECK(std::isnan(value));
  }
}
