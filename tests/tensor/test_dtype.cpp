// Promotion and conversion of dtypes.
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "lockstep/tensor/half_internal.h"
#include "tests/support/testing.h"

namespace {

const nlohmann::json& promotion() {
  static const nlohmann::json table = nlohmann::json::parse(std::ifstream(LOCKSTEP_GOLDEN_DIR "/promotion.json"));
  return table;
}

// Splits a key "f32,i64" into its two dtypes.
std::pair<std::string, std::string> halves(const std::string& key) {
  const auto comma = key.find(',');
  return {key.substr(0, comma), key.substr(comma + 1)};
}

// Checks the dtype of the result of `operation`.
template <class F>
void check_result(const std::string& key, const std::string& want, F operation) {
  INFO(key);
  CHECK(std::string(ls::name(operation().dtype())) == want);
}

ls::Tensor one(const std::string& dtype) { return ls::ones({1}, {.dtype = dtype_named(dtype)}); }

}  // namespace

TEST_CASE("promote is PyTorch's table") {
  REQUIRE(promotion()["tensor,tensor"].size() == 64);
  for (const auto& entry : promotion()["tensor,tensor"].items()) {
    const auto& key = entry.key();
    const auto& want = entry.value();
    const auto [a, b] = halves(key);
    CHECK_MESSAGE(ls::name(ls::promote(dtype_named(a), dtype_named(b))) == want.get<std::string>(), key);
  }
}

TEST_CASE("a sum of two tensors has PyTorch's dtype") {
  for (const auto& [key, want] : promotion()["tensor,tensor"].items()) {
    const auto [a, b] = halves(key);
    check_result(key, want, [&, a = a, b = b] { return one(a) + one(b); });
  }
}

TEST_CASE("a 0-d tensor combined with one that has dimensions counts as a number") {
  for (const auto& [key, want] : promotion()["tensor,0-d tensor"].items()) {
    const auto [a, b] = halves(key);
    check_result(key, want, [&, a = a, b = b] { return one(a) + one(b)[0]; });
    check_result(key, want, [&, a = a, b = b] { return one(b)[0] + one(a); });
  }
}

TEST_CASE("a number promotes a tensor only across categories") {
  REQUIRE(promotion()["tensor,scalar"].size() == 24);
  for (const auto& [key, want] : promotion()["tensor,scalar"].items()) {
    const auto [a, kind] = halves(key);
    const ls::Scalar number = kind == "bool" ? ls::Scalar(true) : kind == "int" ? ls::Scalar(1) : ls::Scalar(1.5);
    check_result(key, want, [&, a = a] { return one(a) + number; });
  }
}

TEST_CASE("a quotient is floating-point, of PyTorch's dtype") {
  for (const auto& [key, want] : promotion()["tensor/tensor"].items()) {
    const auto [a, b] = halves(key);
    check_result(key, want, [&, a = a, b = b] { return one(a) / one(b); });
  }
}

TEST_CASE("a sum over integers or bools is i64") {
  for (const auto& [a, want] : promotion()["sum"].items()) {
    check_result(a, want, [&, a = a] { return ls::sum(one(a)); });
  }
}

TEST_CASE("casts to f16 and bf16 round to nearest, ties to even, with PyTorch's bits") {
  const ls::StateDict file = golden("ops");
  const ls::Tensor& x = file.at("cast/x");
  for (const std::string name : {"f16", "bf16"}) {
    CAPTURE(name);
    const ls::Tensor half = x.to(dtype_named(name));
    const auto* have = static_cast<const std::uint16_t*>(half.raw_data());
    const auto* want = static_cast<const std::uint16_t*>(file.at("cast/" + name).raw_data());
    const auto values = x.to_vector<float>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i]))
        CHECK(std::isnan(half[static_cast<std::int64_t>(i)].item<float>()));
      else
        CHECK_MESSAGE(have[i] == want[i], values[i]);
    }
    check_close(half.to(ls::kFloat32), file.at("cast/" + name + "_f32"), "and back to f32 without loss", {});
  }
}

TEST_CASE("every f16 and bf16 pattern survives the conversion to f32 and back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float from_half = ls::to_float(ls::Half{pattern}), from_bfloat = ls::to_float(ls::BFloat16{pattern});
    if (std::isnan(from_half))
      REQUIRE(std::isnan(ls::to_float(ls::to_half(from_half))));
    else
      REQUIRE(ls::to_half(from_half).bits == pattern);
    if (std::isnan(from_bfloat))
      REQUIRE(std::isnan(ls::to_float(ls::to_bfloat16(from_bfloat))));
    else
      REQUIRE(ls::to_bfloat16(from_bfloat).bits == pattern);
  }
}

TEST_CASE("casts of fractions to integers round towards zero, casts to bool test for nonzero") {
  const ls::StateDict file = golden("ops");
  for (const std::string name : {"i64", "i32", "bool", "f64"}) {
    check_close(file.at("cast/small").to(dtype_named(name)), file.at("cast/small_" + name), name, {});
  }
}

TEST_CASE("every pair of dtypes converts numbers that both represent exactly, contiguous or not") {
  const ls::Tensor source = ls::tensor({{0, 1, 2}, {100, 7, 64}});
  for (int f = 0; f < ls::kDTypeCount; ++f) {
    for (int t = 0; t < ls::kDTypeCount; ++t) {
      const auto from = static_cast<ls::DType>(f), to = static_cast<ls::DType>(t);
      INFO(ls::name(from), " to ", ls::name(to));
      const bool truth = from == ls::kBool || to == ls::kBool;
      std::vector<double> want = source.to_vector<double>(), turned = source.t().to_vector<double>();
      for (auto* values : {&want, &turned}) {
        for (double& value : *values) value = truth ? value != 0 : value;
      }
      const ls::Tensor x = source.to(from), y = x.to(to);
      CHECK(y.dtype() == to);
      CHECK(y.to_vector<double>() == want);
      CHECK(x.t().to(to).to_vector<double>() == turned);
      CHECK((from == to) == (y.raw_data() == x.raw_data()));  // the tensor itself if its dtype is unchanged
      const ls::Tensor into = ls::empty({3, 2}, {.dtype = to});
      into.t().copy_(x);
      CHECK(into.to_vector<double>() == turned);
    }
  }
}

TEST_CASE("large and special numbers convert as in PyTorch") {
  CHECK(ls::tensor({1e300, -1e300}, {.dtype = ls::kFloat64}).to(ls::kFloat32).to_vector<double>() ==
        std::vector<double>{kInf, -kInf});
  CHECK(std::isnan(ls::tensor({kNan}).to(ls::kFloat64).item<double>()));
  CHECK(ls::tensor({kNan}).to(ls::kBool).item<bool>());
  CHECK(std::signbit(ls::tensor({-0.0}).to(ls::kFloat64).to(ls::kFloat16).item<double>()));
  CHECK(ls::tensor({300, -1, 256}).to(ls::kUInt8).to_vector<int>() == std::vector<int>{44, 255, 0});
  CHECK(ls::tensor({300.7, -1.0}).to(ls::kUInt8).to_vector<int>() == std::vector<int>{44, 255});
  CHECK(ls::tensor({(std::int64_t{1} << 32) + 5}).to(ls::kInt32).item<int>() == 5);
  CHECK(ls::tensor({std::int64_t{9007199254740993}}).to(ls::kInt64).item<std::int64_t>() == 9007199254740993);
}

TEST_CASE("clone always copies, contiguous and to only if needed") {
  const ls::Tensor x = numbers({3, 4});
  CHECK(x.clone().raw_data() != x.raw_data());
  CHECK(same_bits(x.clone(), x));
  CHECK(x.contiguous().raw_data() == x.raw_data());
  CHECK(x.t().clone().is_contiguous());
  CHECK(x.t().contiguous().raw_data() != x.raw_data());
  CHECK(same_bits(x.t().contiguous().t(), x));
  CHECK(x.to(ls::kFloat32).raw_data() == x.raw_data());
  CHECK(x.to("cpu").raw_data() == x.raw_data());
  CHECK(x.detach().raw_data() == x.raw_data());
}

TEST_CASE("copy_ broadcasts, converts and writes only to its destination") {
  const ls::Tensor x = ls::zeros({2, 3}, {.dtype = ls::kFloat64});
  x.copy_(ls::tensor({1, 2, 3}));
  CHECK(x.to_vector<double>() == std::vector<double>{1, 2, 3, 1, 2, 3});
  x.select(1, 1).copy_(ls::tensor(9.0));
  CHECK(x.to_vector<double>() == std::vector<double>{1, 9, 3, 1, 9, 3});
  CHECK(contains(error_of([&] { x.copy_(ls::ones({2})); }), "copy_"));
  CHECK(contains(error_of([&] { ls::zeros({1}).copy_(ls::ones({2})); }), "copy_"));
  CHECK(contains(error_of([&] { ls::zeros({0}).copy_(ls::ones({2})); }), "copy_"));
  CHECK(contains(error_of([&] { ls::ones({1}).expand({3}).copy_(ls::ones({3})); }), "expanded"));
}
