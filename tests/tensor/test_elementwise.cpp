// Operations with several operands: arithmetic, comparisons, where, and changes in place.
#include <functional>

#include "tests/support/golden_case.h"

namespace {
using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;
using Bools = std::vector<bool>;
}  // namespace

TEST_CASE("arithmetic with broadcasting has PyTorch's values and gradients") {
  const std::vector<std::pair<std::string, std::function<ls::Tensor(const Inputs&)>>> operations = {
      {"add", [](const Inputs& in) { return in[0] + in[1]; }},
      {"sub", [](const Inputs& in) { return in[0] - in[1]; }},
      {"mul", [](const Inputs& in) { return in[0] * in[1]; }},
      {"div", [](const Inputs& in) { return in[0] / in[1]; }},
      {"pow", [](const Inputs& in) { return ls::pow(in[0], in[1]); }}};
  const ls::StateDict file = golden("ops");
  for (const auto& [name, operation] : operations) {
    for (const std::string shapes : {"2x3x4,3x1", "4,2x3x1", "scalar,2x2", "2x1x3,1x4x1", "0x3,1x3"})
      check_case(file, name + "/" + shapes + ".f64", {"a", "b"}, operation);
  }
}

TEST_CASE("comparisons follow IEEE: NaN differs from everything, itself included") {
  const ls::StateDict file = golden("ops");
  for (const std::string& tag : float_tags()) {
    const ls::Tensor a = file.at("compare." + tag + "/a"), b = file.at("compare." + tag + "/b");
    const auto check = [&](const std::string& name, const ls::Tensor& have) {
      check_close(have, file.at("compare." + tag + "/" + name), name);
    };
    check("eq", a == b), check("ne", a != b), check("lt", a < b), check("le", a <= b), check("gt", a > b),
        check("ge", a >= b);
  }
}

TEST_CASE("comparisons with numbers promote them like arithmetic") {
  const ls::Tensor x = ls::tensor({1, 2, 3});
  CHECK((x == 2).to_vector<bool>() == Bools{false, true, false});
  CHECK((x > 1.5).to_vector<bool>() == Bools{false, true, true});
  CHECK((x <= 2).dtype() == ls::kBool);
  CHECK((ls::tensor({true, false}) != true).to_vector<bool>() == Bools{false, true});
  CHECK((ls::tensor({0.1}) == 0.1).item<bool>());  // the number is converted to the tensor's f32
}

TEST_CASE("add and sub scale their second operand by alpha") {
  const ls::Tensor a = ls::tensor({1.0, 2.0}), b = ls::tensor({10.0, 20.0});
  CHECK(ls::add(a, b, 0.5).to_vector<double>() == Doubles{6, 12});
  CHECK(ls::sub(a, b, 2).to_vector<double>() == Doubles{-19, -38});
  CHECK(ls::add(ls::tensor({1}), ls::tensor({2}), 3).item<int>() == 7);
  CHECK(contains(error_of([] { ls::add(ls::tensor({1}), ls::tensor({2}), 0.5); }), "alpha is 0.5"));
}

TEST_CASE("operators take numbers on either side") {
  const ls::Tensor x = ls::tensor({2.0, 4.0});
  CHECK((1 - x).to_vector<double>() == Doubles{-1, -3});
  CHECK((8 / x).to_vector<double>() == Doubles{4, 2});
  CHECK((1 + x * 3 - 2).to_vector<double>() == Doubles{5, 11});
  CHECK((0.5 * x / 2).to_vector<double>() == Doubles{0.5, 1});
  CHECK((ls::tensor({7}) * 2).dtype() == ls::kInt64);
  CHECK((ls::tensor({7}) * 2.0).dtype() == ls::kFloat32);
}

TEST_CASE("integer arithmetic wraps; powers and quotients are PyTorch's") {
  const ls::StateDict file = golden("ops");
  const ls::Tensor x = file.at("integer/x");
  check_close(x[0] / x[1], file.at("integer/div"), "div");
  const std::int64_t top = std::numeric_limits<std::int64_t>::max();
  CHECK((ls::tensor({std::int32_t{2147483647}}, {.dtype = ls::kInt32}) + 1).item<std::int64_t>() == -2147483648ll);
  CHECK((ls::tensor({top}) + 1).item<std::int64_t>() == -top - 1);
  CHECK((ls::tensor({200}, {.dtype = ls::kUInt8}) + 100).item<int>() == 44);
  CHECK((ls::tensor({20}, {.dtype = ls::kUInt8}) * ls::tensor({20}, {.dtype = ls::kUInt8})).item<int>() == 144);
  CHECK(ls::pow(ls::tensor({3, -2}), ls::tensor({4, 3})).to_vector<std::int64_t>() == Ints{81, -8});
  CHECK((ls::tensor({true, true, false}) + ls::tensor({true, false, false})).to_vector<bool>() ==
        Bools{true, true, false});
  CHECK((ls::tensor({true, false}) * ls::tensor({true, true})).to_vector<bool>() == Bools{true, false});
  CHECK(contains(error_of([] { ls::tensor({true}) - ls::tensor({true}); }), "bool"));
}

TEST_CASE("maximum and minimum propagate NaN from either side") {
  const ls::Tensor a = ls::tensor({1.0, kNan, 3.0, -0.5}), b = ls::tensor({2.0, 1.0, kNan, -1.0});
  const Doubles high = ls::maximum(a, b).to_vector<double>(), low = ls::minimum(a, b).to_vector<double>();
  CHECK(high[0] == 2);
  CHECK((std::isnan(high[1]) && std::isnan(high[2]) && std::isnan(low[1]) && std::isnan(low[2])));
  CHECK(low[0] == 1);
  CHECK(high[3] == -0.5);
  CHECK(low[3] == -1);
}

TEST_CASE("where chooses by a bool condition, broadcasting all three") {
  const ls::StateDict file = golden("ops");
  check_case(file, "where.f64", {"mask", "a", "b"}, [](const Inputs& in) { return ls::where(in[0], in[1], in[2]); });
  const ls::Tensor yes = ls::tensor({true, false});
  CHECK(ls::where(yes, 1, ls::tensor({5, 6})).to_vector<std::int64_t>() == Ints{1, 6});
  CHECK(ls::where(yes, ls::tensor({5, 6}), 1.5).to_vector<double>() == Doubles{5, 1.5});
  CHECK(ls::where(yes, ls::tensor({5.0, kNan}), ls::zeros({2})).to_vector<double>() == Doubles{5, 0});
  CHECK(contains(error_of([] { ls::where(ls::tensor({1}), ls::ones({1}), ls::ones({1})); }), "must be bool"));
}

TEST_CASE("masked_fill broadcasts its mask and keeps the dtype") {
  const ls::StateDict file = golden("ops");
  check_case(file, "masked_fill.f64", {"x", "mask"},
             [](const Inputs& in) { return ls::masked_fill(in[0], in[1], -7); });
  CHECK(ls::masked_fill(ls::tensor({1, 2}), ls::tensor({true, false}), 9).dtype() == ls::kInt64);
  CHECK(contains(error_of([] { ls::masked_fill(ls::ones({2}), ls::zeros({3}, {.dtype = ls::kBool}), 0); }),
                 "masked_fill: shapes (3) and (2) do not broadcast"));
}

TEST_CASE("operands of any strides give the bits of contiguous ones") {
  const ls::Tensor a = numbers({33, 70}), b = numbers({70, 33}, {}, 2), c = numbers({70, 99}, {}, 3).slice(1, 0, 99, 3);
  CHECK(same_bits(a.t() + b, a.t().contiguous() + b));
  CHECK(same_bits(b * a.t(), b * a.t().contiguous()));
  CHECK(same_bits(b / c, b / c.contiguous()));
  CHECK(same_bits(a.t() - c, a.t().contiguous() - c.contiguous()));
  CHECK(same_bits(b + c[0].expand({70, 33}), b + c[0].expand({70, 33}).contiguous()));
  CHECK(same_bits(ls::where(a.t() > 0, b, c), ls::where((a.t() > 0).contiguous(), b, c.contiguous())));
}

TEST_CASE("size-0 dimensions broadcast with 1 and stay empty") {
  CHECK((ls::zeros({0, 3}) + ls::zeros({1, 3})).shape() == ls::Shape{0, 3});
  CHECK((ls::zeros({2, 0}) * ls::tensor(1.0)).shape() == ls::Shape{2, 0});
  CHECK((ls::zeros({0}) == ls::zeros({0})).numel() == 0);
  CHECK(contains(error_of([] {
                   ls::zeros({0, 3}) + ls::zeros({2, 3});
                 }),
                 "shapes do not broadcast: (0, 3) f32 cpu and (2, 3) f32 cpu"));
}

TEST_CASE("changes in place keep dtype and storage, and give the result of the function without _") {
  const ls::Tensor a = numbers({3, 4}), b = numbers_between(1, 2, {4}, {}, 2);
  const auto check = [&](const char* what, const ls::Tensor& want, auto change) {
    const ls::Tensor x = a.clone();
    const void* at = x.raw_data();
    CHECK_MESSAGE(change(x).raw_data() == at, what);
    CHECK_MESSAGE(same_bits(x, want), what);
  };
  check("add_", a + b, [&](const ls::Tensor& x) { return x.add_(b); });
  check("add_ alpha", ls::add(a, b, 0.25), [&](const ls::Tensor& x) { return x.add_(b, 0.25); });
  check("sub_", a - b, [&](const ls::Tensor& x) { return x.sub_(b); });
  check("mul_", a * b, [&](const ls::Tensor& x) { return x.mul_(b); });
  check("div_", a / b, [&](const ls::Tensor& x) { return x.div_(b); });
  check("add_ number", a + 1.5, [&](const ls::Tensor& x) { return x.add_(1.5); });
  check("mul_ number", a * 1.5, [&](const ls::Tensor& x) { return x.mul_(1.5); });
  check("div_ number", a / 1.5, [&](const ls::Tensor& x) { return x.div_(1.5); });
  const ls::Tensor half = ls::ones({2}, {.dtype = ls::kFloat32});
  CHECK(half.add_(ls::ones({2}, {.dtype = ls::kFloat64})).dtype() == ls::kFloat32);
  const ls::Tensor column = ls::zeros({3, 2});
  column.select(1, 0).add_(ls::tensor({1.0, 2.0, 3.0}));
  CHECK(column.to_vector<double>() == Doubles{1, 0, 2, 0, 3, 0});
}

TEST_CASE("an in-place operation with itself as operand gives the result of the function") {
  const ls::Tensor a = numbers({50}), twice = a + a, square = a * a;
  CHECK(same_bits(a.clone().add_(a), twice));
  ls::Tensor x = a.clone();
  CHECK(same_bits(x.add_(x), twice));
  x = a.clone();
  CHECK(same_bits(x.mul_(x), square));
}

TEST_CASE("an in-place operation with a shifted, transposed or broadcast view of itself reads the old values") {
  const ls::Tensor x = ls::arange(8).to(ls::kFloat32);
  x.narrow(0, 1, 7).copy_(x.narrow(0, 0, 7));
  CHECK(x.to_vector<double>() == Doubles{0, 0, 1, 2, 3, 4, 5, 6});
  const auto check = [](const ls::Tensor& x, const ls::Tensor& view) {
    const ls::Tensor copied = x.clone(), added = x.clone() + view.clone(), multiplied = x.clone() * view.clone(),
                     before = x.clone();
    copied.copy_(view.clone());
    CHECK(same_bits(x.add_(view), added));
    x.copy_(before);
    CHECK(same_bits(x.mul_(view), multiplied));
    x.copy_(before);
    CHECK(same_bits(x.copy_(view), copied));
  };
  const ls::Tensor matrix = numbers({40, 40});
  check(matrix, matrix.t());
  const ls::Tensor row = numbers({40, 40});
  check(row, row[7]);
  const ls::Tensor line = numbers({1000});
  check(line.narrow(0, 3, 900), line.narrow(0, 0, 900));
  const ls::Tensor steps = numbers({1000});
  check(steps.slice(0, 0, 1000, 2), steps.slice(0, 1, 1000, 2));
}

TEST_CASE("an in-place result that does not fit its tensor is refused") {
  const ls::Tensor whole = ls::tensor({1, 2});
  CHECK(contains(error_of([&] { whole.add_(0.5); }), "add_: a result of f32 does not fit into (2) i64 cpu"));
  CHECK(contains(error_of([&] { whole.div_(2); }), "div_"));
  CHECK(contains(error_of([&] {
                   whole.add_(ls::ones({3, 2}, {.dtype = ls::kInt64}));
                 }),
                 "does not broadcast to (2) i64 cpu"));
  CHECK(whole.to_vector<int>() == std::vector<int>{1, 2});
}

TEST_CASE("in-place changes of an expanded tensor, whose elements share memory, are refused") {
  const ls::Tensor one = ls::ones({1}), expanded = one.expand({4}), mask = ls::ones({4}, {.dtype = ls::kBool});
  CHECK(error_of([&] { expanded.add_(1); }) ==
        "add_: (4) f32 cpu is expanded: several elements share one address; clone() it first");
  CHECK(contains(error_of([&] { expanded.fill_(2); }), "fill_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.zero_(); }), "zero_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.copy_(ls::zeros({4})); }), "copy_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.mul_(2); }), "mul_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.exp_(); }), "exp_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.masked_fill_(mask, 2); }), "masked_fill_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.index_put_({0}, 2); }), "index_put_: (4) f32 cpu is expanded"));
  CHECK(contains(error_of([&] { expanded.uniform_(); }), "(4) f32 cpu is expanded"));
  CHECK(one.item<float>() == 1);
  one.expand({1}).add_(1);  // one element
  CHECK(one.item<float>() == 2);
}

TEST_CASE("equal compares shape and every element; allclose allows a distance") {
  const ls::Tensor a = ls::tensor({1.0, 2.0});
  CHECK(ls::equal(a, a.clone()));
  CHECK(!ls::equal(a, a.view({1, 2})));
  CHECK(!ls::equal(ls::tensor({kNan}), ls::tensor({kNan})));
  CHECK(ls::equal(ls::tensor({0.0}), ls::tensor({-0.0})));
  CHECK(ls::equal(ls::zeros({0}), ls::zeros({0})));
  CHECK(ls::equal(ls::tensor({true}), ls::tensor({true})));
  CHECK(ls::equal(a.to(ls::kBFloat16), a.to(ls::kBFloat16)));
  CHECK(ls::allclose(a, a + 1e-6));
  CHECK(!ls::allclose(a, a + 1e-3));
  CHECK(ls::allclose(a, a + 1e-3, 0, 1e-2));
  CHECK(ls::allclose(ls::tensor({kInf, 1.0}), ls::tensor({kInf, 1.0})));
  CHECK(!ls::allclose(ls::tensor({kInf}), ls::tensor({-kInf})));
  CHECK(!ls::allclose(ls::tensor({1.0}), ls::tensor({kInf})));
  CHECK(!ls::allclose(ls::tensor({kNan}), ls::tensor({kNan})));
  CHECK(ls::allclose(ls::zeros({0}), ls::ones({0})));
}
