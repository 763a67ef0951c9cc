// Edge cases in which random calls were compared with PyTorch 2.15: numbers outside a dtype, empty tensors, bools.
#include <cmath>
#include <functional>

#include "tests/support/testing.h"

namespace {

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

std::string refusal(const std::function<void()>& call) {
  const std::string text = error_of(call);
  return contains(text, "is outside the range of") ? text.substr(0, text.find(':')) : "not refused: " + text;
}

}  // namespace

TEST_CASE("a division of integers uses a number as it is, also outside their dtype") {
  const ls::Tensor bytes = ls::tensor({1, 7}, {.dtype = ls::kUInt8}), ints = ls::tensor({2}, {.dtype = ls::kInt32});
  CHECK((bytes / -1).to_vector<double>() == Doubles{-1, -7});
  CHECK((-14 / bytes).to_vector<double>() == Doubles{-14, -2});
  CHECK((bytes / 512).to_vector<double>() == Doubles{1.0 / 512, 7.0 / 512});
  CHECK((ints / (std::int64_t{1} << 40)).item<double>() == 0x1p-39);
  CHECK((bytes / -1).dtype() == ls::kFloat32);
}

TEST_CASE("the gradient of pow is computed in the dtype of the result") {
  const ls::Tensor x = ls::tensor(-2.0, {.dtype = ls::kFloat64, .requires_grad = true});
  ls::sum(ls::pow(x, ls::tensor({0, 200}, {.dtype = ls::kUInt8}))).backward();
  CHECK(x.grad().item<double>() == -200 * 0x1p199);
  const ls::Tensor p = ls::tensor({1.5}, {.dtype = ls::kFloat64, .requires_grad = true});
  ls::sum(ls::pow(ls::tensor({3}), p)).backward();
  CHECK(p.grad().item<double>() == doctest::Approx(std::pow(3.0, 1.5) * std::log(3.0)).epsilon(1e-14));
}

TEST_CASE("scatter_add of bools is true or false") {
  const ls::Tensor yes = ls::ones({512}, {.dtype = ls::kBool}), no = ls::zeros({2}, {.dtype = ls::kBool});
  const ls::Tensor sums = ls::scatter_add(no, 0, ls::zeros({512}, {.dtype = ls::kInt64}), yes);
  CHECK(sums.dtype() == ls::kBool);
  CHECK(sums.to(ls::kInt64).to_vector<std::int64_t>() == Ints{1, 0});
  CHECK(ls::equal(sums, ls::tensor({true, false})));
}

TEST_CASE("scatter_add of nothing has a gradient, whatever the index's dimensions") {
  const ls::Tensor x = ls::ones({2, 3}, {.requires_grad = true}), src = ls::ones({2, 0, 1}, {.requires_grad = true});
  ls::sum(ls::scatter_add(x, 1, ls::zeros({2, 0, 1}, {.dtype = ls::kInt64}), src)).backward();
  CHECK(ls::equal(x.grad(), ls::ones({2, 3})));
  CHECK(src.grad().shape() == ls::Shape{2, 0, 1});
}

TEST_CASE("a linear layer without inputs or outputs has gradients") {
  for (const ls::Shape& lead : {ls::Shape(), ls::Shape{2}, ls::Shape{2, 3}, ls::Shape{0, 3}}) {
    for (const auto& [in, out] : {std::pair{0, 4}, std::pair{4, 0}, std::pair{0, 0}}) {
      ls::Shape shape = lead;
      shape.push_back(in);
      const ls::Tensor x = ls::ones(shape, {.requires_grad = true});
      const ls::Tensor w = ls::ones({out, in}, {.requires_grad = true}), b = ls::ones({out}, {.requires_grad = true});
      ls::sum(ls::linear(x, w, b)).backward();
      CHECK(ls::equal(x.grad(), ls::zeros(shape)));
      CHECK(ls::equal(w.grad(), ls::zeros({out, in})));
      CHECK(ls::equal(b.grad(), ls::full({out}, static_cast<double>(lead.numel()))));
    }
  }
}

TEST_CASE("split by 0 is only for an empty dimension") {
  CHECK(ls::split(ls::zeros({2, 0}), 0, 1).size() == 1);
  CHECK(contains(error_of([] { ls::split(ls::zeros({2, 1}), 0, 1); }), "split: size 0; it must be positive"));
}

TEST_CASE("arange and linspace of integers convert their arguments first") {
  CHECK(ls::arange(1.9, 3.5, 1.5, {.dtype = ls::kInt64}).to_vector<std::int64_t>() == Ints{1, 2});
  CHECK(ls::arange(1, 0.1, -0.25, {.dtype = ls::kUInt8}).to_vector<std::int64_t>() == Ints{1, 1, 1, 1});
  CHECK(ls::arange(0, 3, {.dtype = ls::kFloat64}).to_vector<double>() == Doubles{0, 1, 2});
  CHECK(ls::linspace(-1.5, 1, 7, {.dtype = ls::kInt64}).to_vector<std::int64_t>() == Ints{-1, 0, 0, 0, 0, 0, 1});
  CHECK(refusal([] { ls::linspace(-3, 3, 4, {.dtype = ls::kUInt8}); }) == "linspace");
}

TEST_CASE("flatten of a 0-d tensor checks the dimensions") {
  CHECK(ls::tensor(2.5).flatten().shape() == ls::Shape{1});
  CHECK(contains(error_of([] { ls::tensor(2.5).flatten(1, -1); }), "flatten"));
  CHECK(contains(error_of([] { ls::nn::Flatten()(ls::tensor(2.5)); }), "flatten"));
}

TEST_CASE("u8 takes negative integers modulo 256, but no negative floating-point numbers") {
  const ls::Tensor bytes = ls::zeros({2}, {.dtype = ls::kUInt8});
  CHECK(refusal([&] { bytes.fill_(-2.0); }) == "fill_");
  CHECK(refusal([&] { bytes.fill_(-0.5); }) == "fill_");
  CHECK(refusal([&] { bytes.fill_(255.5); }) == "fill_");
  CHECK(refusal([&] { ls::masked_fill(bytes, bytes == 0, -2.0); }) == "masked_fill");
  CHECK(refusal([&] { ls::where(bytes == 0, bytes, 300); }) == "where");
  CHECK(refusal([&] { ls::where(bytes == 0, 300, bytes); }) == "where");
  CHECK(refusal([] { ls::full({1}, -2.0, {.dtype = ls::kUInt8}); }) == "full");
  CHECK(bytes.fill_(254.5).to_vector<int>() == std::vector<int>{254, 254});
}

TEST_CASE("randint and randperm refuse numbers outside the dtype") {
  CHECK(refusal([] { ls::randperm(257, {.dtype = ls::kUInt8}); }) == "randperm");
  CHECK(ls::randperm(256, {.dtype = ls::kUInt8}).size(0) == 256);
  CHECK(refusal([] { ls::randint(-3, 1, {5}, {.dtype = ls::kUInt8}); }) == "randint");
  CHECK(refusal([] { ls::randint(0, 257, {5}, {.dtype = ls::kUInt8}); }) == "randint");
  CHECK(refusal([] { ls::randint(0, 3, {5}, {.dtype = ls::kBool}); }) == "randint");
  CHECK(refusal([] { ls::randint(std::int64_t{1} << 40, {5}, {.dtype = ls::kInt32}); }) == "randint");
  CHECK(refusal([] { ls::randint(std::int64_t{1} << 40, {5}, {.dtype = ls::kFloat16}); }) == "randint");
  CHECK(ls::randint(0, 256, {5}, {.dtype = ls::kUInt8}).dtype() == ls::kUInt8);
  CHECK(ls::randint(0, std::int64_t{1} << 31, {5}, {.dtype = ls::kInt32}).dtype() == ls::kInt32);
}

TEST_CASE("the norm that counts elements has gradient 0") {
  const ls::Tensor x = ls::tensor({1.5, 0.0, kNan}).requires_grad_();
  const ls::Tensor count = ls::norm(x, 0);
  CHECK(count.item<double>() == 2);
  count.backward();
  CHECK(ls::equal(x.grad(), ls::zeros({3})));
}

TEST_CASE("an integer division by 0 with no elements is no error") {
  const ls::Tensor none = ls::zeros({0}, {.dtype = ls::kInt64}), zero = ls::zeros({1}, {.dtype = ls::kInt64});
  CHECK(ls::floor_divide(none, 0).shape() == ls::Shape{0});
  CHECK((none % 0).shape() == ls::Shape{0});
  CHECK(ls::fmod(none, 0).dtype() == ls::kInt64);
  CHECK(ls::floor_divide(none, zero).shape() == ls::Shape{0});
  CHECK(ls::remainder(none.expand({3, 0}), ls::zeros({3, 1}, {.dtype = ls::kInt64})).shape() == ls::Shape{3, 0});
  CHECK(contains(error_of([&] { ls::floor_divide(zero, 0); }), "an element of the integer divisor"));
}

TEST_CASE("addmm and baddbmm of f16 and bf16 round once") {
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16}) {
    const ls::Tensor x = numbers({5}).to(dtype), a = numbers({4, 7}, {}, 2).to(dtype);
    const ls::Tensor b = numbers({7, 5}, {}, 3).to(dtype);
    const auto wide = [](const ls::Tensor& t) { return t.to(ls::kFloat32); };
    const ls::Tensor want = ls::addmm(wide(x), wide(a), wide(b), 0.3, 1.7).to(dtype);
    CHECK(same_bits(ls::addmm(x, a, b, 0.3, 1.7), want));
    CHECK(same_bits(ls::baddbmm(x, a.unsqueeze(0), b.unsqueeze(0), 0.3, 1.7), want.unsqueeze(0)));
    CHECK(same_bits(ls::addmm(x, a, b), (wide(x) + ls::matmul(wide(a), wide(b))).to(dtype)));
  }
}
