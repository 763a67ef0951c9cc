// Names of PyTorch and LibTorch that programs use in their first hour: operators, members, creation, aliases. Values are
// those of PyTorch 2.15.
#include <sstream>
#include <type_traits>

#include "tests/support/testing.h"

using Doubles = std::vector<double>;
using Ints = std::vector<std::int64_t>;
using Bools = std::vector<bool>;

namespace {

Ints ints(const ls::Tensor& x) { return x.to_vector<std::int64_t>(); }

template <class T>
concept RandintWithoutShape = requires(T n) {
  ls::randint(n, n);
};

template <class T>
std::string printed(const T& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

}  // namespace

TEST_CASE("dtypes have LibTorch's short names") {
  CHECK(ls::kByte == ls::kUInt8);
  CHECK(ls::kInt == ls::kInt32);
  CHECK(ls::kLong == ls::kInt64);
  CHECK(ls::kHalf == ls::kFloat16);
  CHECK(ls::kFloat == ls::kFloat32);
  CHECK(ls::kDouble == ls::kFloat64);
}

TEST_CASE("shapes, dtypes and devices can be written to a stream") {
  const ls::Tensor x = ls::zeros({2, 3}, {.dtype = ls::kLong, .device = "cpu:1"});
  CHECK(printed(x.shape()) == "(2, 3)");
  CHECK(printed(x[0][0].shape()) == "()");
  CHECK(printed(x.dtype()) == "i64");
  CHECK(printed(x.device()) == "cpu:1");
}

TEST_CASE("a number on the left of a comparison gives a bool tensor") {
  const ls::Tensor x = ls::tensor({1, 2, 3}), y = ls::tensor({0.5, 1.5, 2.5});
  static_assert(std::is_same_v<decltype(1 == x), ls::Tensor> && std::is_same_v<decltype(1 != x), ls::Tensor>);
  CHECK((2 == x).dtype() == ls::kBool);
  CHECK((2 == x).to_vector<bool>() == Bools{false, true, false});
  CHECK((2 != x).to_vector<bool>() == Bools{true, false, true});
  CHECK((2 < x).to_vector<bool>() == Bools{false, false, true});
  CHECK((2 <= x).to_vector<bool>() == Bools{false, true, true});
  CHECK((2 > x).to_vector<bool>() == Bools{true, false, false});
  CHECK((2 >= x).to_vector<bool>() == Bools{true, true, false});
  CHECK((1.5 >= y).to_vector<bool>() == Bools{true, true, false});
  CHECK((x == 2).to_vector<bool>() == Bools{false, true, false});
  CHECK((x != x).to_vector<bool>() == Bools{false, false, false});
}

TEST_CASE("+= and its siblings change the elements, of views too, and keep the dtype") {
  ls::Tensor x = ls::tensor({{1.0, 2.0}, {3.0, 4.0}});
  const ls::Tensor same = x;
  x += ls::tensor({10, 20});
  x -= 1;
  x *= 2;
  x /= ls::tensor({{2.0}, {4.0}});
  CHECK(same.to_vector<double>() == Doubles{10, 21, 6, 11.5});
  x[0] += 5;
  x.select(1, 1) *= ls::tensor(0.0);
  CHECK(same.to_vector<double>() == Doubles{15, 0, 6, 0});
  CHECK((x += 1).raw_data() == same.raw_data());
  const ls::Tensor i = ls::tensor({1, 2});
  i += 1;
  CHECK(ints(i) == Ints{2, 3});
  CHECK(contains(error_of([&] { i += 0.5; }), "add_: a result of f32 does not fit into (2) i64 cpu"));
  CHECK(contains(error_of([&] { i /= 2; }), "div_: a result of f32"));
  const ls::Tensor w = ls::ones({2}, {.requires_grad = true}), total = ls::zeros({2});
  CHECK(contains(error_of([&] { w += 1; }), "requires grad and cannot be changed in place"));
  CHECK(contains(error_of([&] { total += w; }), "x = x + y"));
}

TEST_CASE("eye has a number of columns, randint a range from 0 on") {
  CHECK(ls::eye(2, 3).to_vector<double>() == Doubles{1, 0, 0, 0, 1, 0});
  CHECK(ls::eye(3, 2).to_vector<double>() == Doubles{1, 0, 0, 1, 0, 0});
  CHECK(ls::eye(3, 0).shape() == ls::Shape{3, 0});
  CHECK(ls::eye(2, {.dtype = ls::kLong}).dtype() == ls::kLong);
  CHECK(ls::eye(1, 2, {.dtype = ls::kLong}).dtype() == ls::kLong);
  ls::manual_seed(7);
  const ls::Tensor one = ls::randint(5, {100}), dice = ls::randint(1, 7, {100});
  ls::manual_seed(7);
  CHECK(same_bits(one, ls::randint(0, 5, {100})));
  CHECK(one.min().item<int>() == 0);
  CHECK(one.max().item<int>() == 4);
  CHECK(dice.min().item<int>() == 1);
  CHECK(dice.max().item<int>() == 6);
  CHECK(ls::randint(5, {2}, {.dtype = ls::kInt}).dtype() == ls::kInt);
  CHECK(!RandintWithoutShape<int>);
}

TEST_CASE("cat skips empty 1-D tensors, but not their dtypes") {
  const ls::Tensor none = ls::zeros({0}, {.dtype = ls::kDouble, .requires_grad = true});
  const ls::Tensor x = ls::ones({2, 3}, {.requires_grad = true});
  const ls::Tensor out = ls::cat({none, x, none, x}, -1);
  CHECK(out.shape() == ls::Shape{2, 6});
  CHECK(out.dtype() == ls::kDouble);
  out.sum().backward();
  CHECK(none.grad().shape() == ls::Shape{0});
  CHECK(x.grad().to_vector<double>() == Doubles(6, 2));
  CHECK(ls::cat({none, none}).shape() == ls::Shape{0});
  CHECK(ls::cat({none, ls::ones({2})}).to_vector<double>() == Doubles{1, 1});
  CHECK(contains(error_of([&] { ls::cat({none, x}, 2); }), "cat: dimension 2 is outside"));
  CHECK(contains(error_of([&] { ls::cat({ls::zeros({0, 2}), x}); }), "(0, 2) f32 cpu and (2, 3) f32 cpu"));
}

TEST_CASE("matmul of integers keeps their dtype, and sums wrap") {
  const ls::Tensor a = ls::tensor({{1, 2}, {3, 4}}), v = ls::tensor({5, -6});
  CHECK(ls::matmul(a, a).dtype() == ls::kLong);
  CHECK(ints(ls::matmul(a, a)) == Ints{7, 10, 15, 22});
  CHECK(ints(ls::matmul(a, v)) == Ints{-7, -9});
  CHECK(ints(ls::matmul(v, a)) == Ints{-13, -14});
  CHECK(ls::matmul(v, v).dim() == 0);
  CHECK(ls::matmul(v, v).item<int>() == 61);
  const ls::Tensor bytes = ls::tensor({{1, 2}, {3, 4}}, {.dtype = ls::kByte});
  const ls::Tensor large = ls::tensor({{100, 2}, {3, 100}}, {.dtype = ls::kByte});
  CHECK(ls::matmul(bytes, large).dtype() == ls::kByte);
  CHECK(ints(ls::matmul(bytes, large)) == Ints{106, 202, 56, 150});
  CHECK(ls::matmul(ls::zeros({2, 0}, {.dtype = ls::kInt}), ls::zeros({0, 3}, {.dtype = ls::kInt})).shape() ==
        ls::Shape{2, 3});
  const ls::Tensor batch = ls::randint(-9, 9, {3, 1, 70, 300}), other = ls::randint(-9, 9, {2, 300, 5});
  const ls::Tensor product = ls::matmul(batch, other);  // large enough for several blocks
  CHECK(product.shape() == ls::Shape{3, 2, 70, 5});
  CHECK(ls::equal(product, ls::matmul(batch.to(ls::kDouble), other.to(ls::kDouble))));
  CHECK(contains(error_of([&] { ls::matmul(a, a.to(ls::kInt)); }), "matmul: operands of different dtypes"));
  CHECK(contains(error_of([&] { ls::matmul(a == 1, a == 1); }), "matmul: needs"));
}

TEST_CASE("conv2d and the pools take a single image, without a batch dimension") {
  const ls::Tensor x = numbers({2, 5, 6}, {.requires_grad = true}), w = numbers({4, 2, 3, 3}), b = numbers({4});
  const ls::Tensor one = x.unsqueeze(0);
  CHECK(same_bits(ls::conv2d(x, w, b, 1, 1), ls::conv2d(one, w, b, 1, 1)[0]));
  CHECK(ls::conv2d(x, w).shape() == ls::Shape{4, 3, 4});
  CHECK(same_bits(ls::max_pool2d(x, 2), ls::max_pool2d(one, 2)[0]));
  CHECK(same_bits(ls::avg_pool2d(x, 3, 1), ls::avg_pool2d(one, 3, 1)[0]));
  CHECK(ls::conv2d(ls::ones({1, 4, 5}), ls::ones({1, 1, 2, 2})).to_vector<double>() == Doubles(12, 4));
  ls::max_pool2d(x, {5, 6}).sum().backward();
  CHECK(x.grad().shape() == x.shape());
  CHECK(x.grad().sum().item<double>() == 2);
  CHECK(contains(error_of([&] { ls::conv2d(x[0], w); }), "(channels, height, width), got (5, 6) f32 cpu"));
  CHECK(contains(error_of([&] { ls::max_pool2d(x[0], 2); }), "max_pool2d: x must be (images, channels"));
}

TEST_CASE("allclose refuses operands of different dtypes, and takes equal_nan") {
  const ls::Tensor x = ls::tensor({1.0, kNan}), nan = ls::tensor({kNan, 1.0});
  CHECK(contains(error_of([&] { ls::allclose(x, x.to(ls::kDouble)); }),
                 "allclose: operands of different dtypes: (2) f32 cpu and (2) f64 cpu"));
  CHECK(!ls::allclose(x, x));
  CHECK(ls::allclose(x, x, 1e-5, 1e-8, true));
  CHECK(!ls::allclose(x, nan, 1e-5, 1e-8, true));
  CHECK(ls::allclose(ls::tensor({1, 2}), ls::tensor({1, 2})));
}

TEST_CASE("bool tensors have ~, & and |, all tensors any and all") {
  const ls::Tensor a = ls::tensor({true, true, false, false}), b = ls::tensor({true, false, true, false});
  CHECK((~a).to_vector<bool>() == Bools{false, false, true, true});
  CHECK((a & b).to_vector<bool>() == Bools{true, false, false, false});
  CHECK((a | b).to_vector<bool>() == Bools{true, true, true, false});
  CHECK((a & ~b.view({4, 1})).shape() == ls::Shape{4, 4});
  CHECK((a | b).dtype() == ls::kBool);
  CHECK(contains(error_of([&] { ~ls::ones({2}); }), "bitwise_not: needs bool or integer tensors, got (2) f32 cpu"));
  CHECK(contains(error_of([&] { a& ls::ones({4}); }), "bitwise_and: needs bool or integer"));
  CHECK(contains(error_of([&] { a | ls::tensor({true, false}); }), "bitwise_or: shapes do not broadcast"));
  const ls::Tensor x = ls::tensor({{0.0, kNan}, {0.0, 0.0}});
  CHECK(x.any().dtype() == ls::kBool);
  CHECK(x.any().item<bool>());
  CHECK(!x.all().item<bool>());
  CHECK(x.any(1).to_vector<bool>() == Bools{true, false});
  CHECK(ls::all(x != 0, {0}, true).shape() == ls::Shape{1, 2});
  CHECK(!ls::any(ls::zeros({0})).item<bool>());
  CHECK(ls::all(ls::zeros({2, 0}), {1}).to_vector<bool>() == Bools{true, true});
  CHECK(contains(error_of([&] { x.all(2); }), "all: dimension 2 is outside"));
}

TEST_CASE("where takes two numbers, masked_fill broadcasts") {
  const ls::Tensor mask = ls::tensor({true, false});
  CHECK(ints(ls::where(mask, 1, 2)) == Ints{1, 2});
  CHECK(ls::where(mask, 1, 2).dtype() == ls::kLong);
  CHECK(ls::where(mask, 1, 2.5).to_vector<double>() == Doubles{1, 2.5});
  CHECK(ls::masked_fill(ls::tensor(1.0), mask, 2).to_vector<double>() == Doubles{2, 1});
  CHECK(ints(ls::masked_fill(ls::tensor({1, 2}), mask, 1.5)) == Ints{1, 2});
}

TEST_CASE("tril and triu keep a triangle, and the dtype") {
  const ls::Tensor x = ls::arange(1, 13).view({3, 4});
  CHECK(ints(ls::tril(x)) == Ints{1, 0, 0, 0, 5, 6, 0, 0, 9, 10, 11, 0});
  CHECK(ints(ls::tril(x, 1)) == Ints{1, 2, 0, 0, 5, 6, 7, 0, 9, 10, 11, 12});
  CHECK(ints(x.tril(-1)) == Ints{0, 0, 0, 0, 5, 0, 0, 0, 9, 10, 0, 0});
  CHECK(ints(ls::triu(x)) == Ints{1, 2, 3, 4, 0, 6, 7, 8, 0, 0, 11, 12});
  CHECK(ints(x.triu(2)) == Ints{0, 0, 3, 4, 0, 0, 0, 8, 0, 0, 0, 0});
  CHECK(ls::tril(x > 0).dtype() == ls::kBool);
  CHECK(ls::tril(ls::full({2, 2, 2}, kNan)).to_vector<double>()[1] == 0);
  CHECK(ls::tril(ls::ones({2, 3, 3})).sum().item<double>() == 12);
  CHECK(contains(error_of([] { ls::tril(ls::ones({3})); }), "tril: needs at least two dimensions, got (3) f32 cpu"));
}

TEST_CASE("one_hot counts the classes unless their number is given") {
  const ls::Tensor index = ls::tensor({{0, 2}, {1, 0}});
  CHECK(ls::one_hot(index).shape() == ls::Shape{2, 2, 3});
  CHECK(ls::one_hot(index).dtype() == ls::kLong);
  CHECK(ints(ls::one_hot(index)) == Ints{1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0});
  CHECK(ints(ls::one_hot(ls::tensor(1), 3)) == Ints{0, 1, 0});
  CHECK(ls::one_hot(ls::zeros({0}, {.dtype = ls::kLong}), 4).shape() == ls::Shape{0, 4});
  CHECK(contains(error_of([&] { ls::one_hot(index, 2); }), "one_hot: index 2 is outside [0, 2)"));
  CHECK(contains(error_of([&] { ls::one_hot(index - 1); }), "one_hot: index -1 is outside"));
  CHECK(contains(error_of([&] { ls::one_hot(index.to(ls::kInt)); }), "one_hot: the index must be i64"));
  CHECK(contains(error_of([] { ls::one_hot(ls::zeros({0}, {.dtype = ls::kLong})); }), "positive number of classes"));
}

TEST_CASE("repeat copies the tensor side by side") {
  const ls::Tensor x = ls::tensor({{1, 2}, {3, 4}});
  CHECK(ints(x.repeat({2, 1})) == Ints{1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(ints(x.repeat({1, 2})) == Ints{1, 2, 1, 2, 3, 4, 3, 4});
  CHECK(x.repeat({2, 1, 3}).shape() == ls::Shape{2, 2, 6});
  CHECK(x.repeat({0, 1}).shape() == ls::Shape{0, 2});
  CHECK(ls::tensor(7).repeat(3).shape() == ls::Shape{3});
  CHECK(x.repeat({1, 1}).raw_data() != x.raw_data());
  CHECK(contains(error_of([&] { x.repeat(2); }), "repeat: expected a count of at least 0 for each dimension"));
  CHECK(contains(error_of([&] { x.repeat({2, -1}); }), "got (2, -1)"));
}

TEST_CASE("joining, indexing and sorting are members too") {
  const ls::Tensor x = numbers({4, 3}), at = ls::tensor({{2, 0, 1}, {1, 1, 3}});
  CHECK(same_bits(x.masked_fill(x > 0, 2), ls::masked_fill(x, x > 0, 2)));
  CHECK(same_bits(x.gather(0, at), ls::gather(x, 0, at)));
  CHECK(same_bits(x.index_select(1, at[0]), ls::index_select(x, 1, at[0])));
  CHECK(same_bits(x.scatter_add(0, at, x), ls::scatter_add(x, 0, at, x)));
  CHECK(same_bits(x.split(3)[1], ls::split(x, 3)[1]));
  CHECK(same_bits(x.chunk(2, 1)[1], ls::chunk(x, 2, 1)[1]));
  CHECK(same_bits(x.cumsum(0), ls::cumsum(x, 0)));
  CHECK(same_bits(x.logsumexp(1), ls::logsumexp(x, 1)));
  CHECK(same_bits(x.sort(0, true).first, ls::sort(x, 0, true).first));
  CHECK(same_bits(x.topk(2).second, ls::topk(x, 2).second));
}
