// Rounding, remainders, bits and logic compared with PyTorch, over special values and all dtypes.
#include <functional>
#include <limits>

#include "tests/support/golden_case.h"

namespace {

using Unary = std::function<ls::Tensor(const ls::Tensor&)>;
using Binary = std::function<ls::Tensor(const ls::Tensor&, const ls::Tensor&)>;

#define UNARY(name)                                        \
  {                                                        \
#name, [](const ls::Tensor& x) { return ls::name(x); } \
  }
#define BINARY(name)                                                               \
  {                                                                                \
#name, [](const ls::Tensor& a, const ls::Tensor& b) { return ls::name(a, b); } \
  }

const std::vector<std::pair<std::string, Unary>> kSteps = {UNARY(floor), UNARY(ceil), UNARY(round), UNARY(trunc),
                                                           UNARY(sign)};
const std::vector<std::pair<std::string, Unary>> kKinds = {UNARY(isnan), UNARY(isinf), UNARY(isfinite)};
const std::vector<std::pair<std::string, Unary>> kOfIntegers = {UNARY(bitwise_not), UNARY(square), UNARY(reciprocal)};
const std::vector<std::pair<std::string, Binary>> kDivisions = {BINARY(remainder), BINARY(fmod), BINARY(floor_divide),
                                                                BINARY(atan2)};
const std::vector<std::pair<std::string, Binary>> kBits = {BINARY(bitwise_and), BINARY(bitwise_or),
                                                           BINARY(bitwise_xor)};
const std::vector<std::pair<std::string, Binary>> kLogic = {BINARY(logical_and), BINARY(logical_or),
                                                            BINARY(logical_xor)};

// Compares every function with PyTorch's value for rounding/<dtype>/x.
void check(const ls::StateDict& file, const std::string& dtype,
           const std::vector<std::pair<std::string, Unary>>& functions) {
  const ls::Tensor& x = file.at("rounding/" + dtype + "/x");
  for (const auto& [name, function] : functions)
    check_close(function(x), file.at("rounding/" + dtype + "/" + name), dtype + " " + name);
}
void check(const ls::StateDict& file, const std::string& dtype,
           const std::vector<std::pair<std::string, Binary>>& functions) {
  const ls::Tensor& x = file.at("rounding/" + dtype + "/x");
  for (const auto& [name, function] : functions)
    check_close(function(x.unsqueeze(1), x), file.at("rounding/" + dtype + "/" + name), dtype + " " + name,
                name == "atan2" ? Tolerance{4e-3, 1e-6} : Tolerance{});
}

}  // namespace

TEST_CASE("rounding, remainders and logic of floats have PyTorch's values, special values included") {
  const ls::StateDict file = golden("tensor_ops");
  for (const std::string dtype : {"f32", "f64", "f16", "bf16"})
    check(file, dtype, kSteps), check(file, dtype, kKinds), check(file, dtype, kDivisions), check(file, dtype, kLogic);
  for (const std::string dtype : {"f32", "f64"}) {  // signs of zeros
    const ls::Tensor& x = file.at("rounding/" + dtype + "/x");
    for (const auto& each : kSteps)
      CHECK(ls::equal(1 / each.second(x), 1 / file.at("rounding/" + dtype + "/" + each.first)) ==
            ls::equal(each.second(x), file.at("rounding/" + dtype + "/" + each.first)));
  }
}

TEST_CASE("remainders, bits and logic of integers have PyTorch's values and dtypes") {
  const ls::StateDict file = golden("tensor_ops");
  for (const std::string dtype : {"i64", "i32", "u8"}) {
    check(file, dtype, kSteps), check(file, dtype, kOfIntegers);
    check(file, dtype, kDivisions), check(file, dtype, kBits), check(file, dtype, kLogic);
  }
}

TEST_CASE("operators and numbers: promotion as in PyTorch") {
  const ls::Tensor i = ls::tensor({7, -7, 3}), f = ls::tensor({7.5, -7.5, 3.0}), m = ls::tensor({true, false, true});
  using Ints = std::vector<std::int64_t>;
  CHECK((i % 4).to_vector<std::int64_t>() == Ints{3, 1, 3});
  CHECK((i % -4).to_vector<std::int64_t>() == Ints{-1, -3, -1});
  CHECK((9 % i).to_vector<std::int64_t>() == Ints{2, -5, 0});
  CHECK((i % 2.0).dtype() == ls::kFloat32);
  CHECK((f % i).to_vector<double>() == std::vector<double>{0.5, -0.5, 0});
  CHECK(ls::fmod(i, 4).to_vector<std::int64_t>() == Ints{3, -3, 3});
  CHECK(ls::floor_divide(i, 2).to_vector<std::int64_t>() == Ints{3, -4, 1});
  CHECK(ls::floor_divide(f, 2).to_vector<double>() == std::vector<double>{3, -4, 1});
  CHECK((i & 5).to_vector<std::int64_t>() == Ints{5, 1, 1});
  CHECK((i | 8).to_vector<std::int64_t>() == Ints{15, -7, 11});
  CHECK((i ^ i).to_vector<std::int64_t>() == Ints{0, 0, 0});
  CHECK((m & i).dtype() == ls::kInt64);
  CHECK((m ^ true).to_vector<bool>() == std::vector<bool>{false, true, false});
  CHECK((~m).to_vector<bool>() == std::vector<bool>{false, true, false});
  CHECK((~i).to_vector<std::int64_t>() == Ints{-8, 6, -4});
  CHECK((m & 3).dtype() == ls::kInt64);
  CHECK(ls::sign(m).dtype() == ls::kBool);
  CHECK(ls::isnan(i).to_vector<bool>() == std::vector<bool>(3, false));
  CHECK(ls::isfinite(m).to_vector<bool>() == std::vector<bool>(3, true));
}

TEST_CASE("integers divided by 0 are an error, and the smallest integer divided by -1 wraps") {
  const ls::Tensor i = ls::tensor({7, 0}), least = ls::tensor({std::numeric_limits<std::int64_t>::min()});
  CHECK(contains(error_of([&] { i % i; }), "remainder: an element of the integer divisor (2) i64 cpu is 0"));
  CHECK(contains(error_of([&] { ls::fmod(i, 0); }), "fmod: an element"));
  CHECK(contains(error_of([&] { ls::floor_divide(i, 0); }), "floor_divide: an element"));
  CHECK(ls::equal(ls::floor_divide(least, -1), least));
  CHECK((least % -1).item<std::int64_t>() == 0);
  const ls::Tensor m = ls::tensor({true, false});
  CHECK(contains(error_of([&] { m % m; }), "remainder: bool tensors are not supported"));
  CHECK(contains(error_of([&] { ls::floor(m); }), "floor: bool tensors are not supported, got (2) bool cpu"));
  CHECK(contains(error_of([&] { ls::tensor({1.5}) & 3; }), "bitwise_and: needs bool or integer tensors"));
}

TEST_CASE("remainders, angles and step functions have PyTorch's gradients") {
  const ls::StateDict file = golden("tensor_ops");
  const auto binary = [&](const std::string& name, const Binary& f) {
    check_case(file, name, {"a", "b"}, [&](const Inputs& in) { return f(in[0], in[1]); });
  };
  binary("remainder", [](const ls::Tensor& a, const ls::Tensor& b) { return ls::remainder(a, b); });
  binary("fmod", [](const ls::Tensor& a, const ls::Tensor& b) { return ls::fmod(a, b); });
  binary("atan2", [](const ls::Tensor& a, const ls::Tensor& b) { return ls::atan2(a, b); });
  const std::vector<std::pair<std::string, Unary>> unary = {UNARY(floor), UNARY(round), UNARY(sign), UNARY(square),
                                                            UNARY(reciprocal)};
  for (const auto& each : unary)
    check_case(file, each.first, {"x"}, [&](const Inputs& in) { return each.second(in[0]); });
}
