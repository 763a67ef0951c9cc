// LibTorch calls that compile here have their LibTorch meaning. Values are those of PyTorch 2.15.
#include "tests/support/testing.h"

using Doubles = std::vector<double>;
using Ints = std::vector<std::int64_t>;

namespace {

ls::Tensor matrix() { return ls::tensor({{-1.5, 0.0, 0.75}, {2.0, -0.25, 1.0}}); }

// Calls whose bool is `unbiased` in LibTorch must not compile; concepts test that.
template <class T>
concept VarTakesBool = requires(const T& x) {
  ls::var(x, true);
}
|| requires(const T& x) { ls::var(x, {0}, true); }
|| requires(const T& x) { x.var(true); }
|| requires(const T& x) { x.var({0, 1}, false); }
|| requires(const T& x) { ls::std(x, {0}, true); }
|| requires(const T& x) { x.std(false); };
template <class T>
concept AssignsNumberToVariable = requires(T& x) {
  x = 5.0;
};
template <class T>
concept MaximumWithNumber = requires(const T& x) {
  ls::Tensor(ls::max(x, 1));
}
|| requires(const T& x) { ls::Tensor(ls::max(x, 0.5)); }
|| requires(const T& x) { ls::maximum(x, 1); };

}  // namespace

TEST_CASE("assignment to a temporary changes its elements, assignment to a variable rebinds the variable") {
  const ls::Tensor x = ls::zeros({2, 3}), y = matrix();
  x[0] = y[1];
  CHECK(x.to_vector<double>() == Doubles{2, -0.25, 1, 0, 0, 0});
  x[1] = 5.0;
  x[0][2] = 7;
  CHECK(x.to_vector<double>() == Doubles{2, -0.25, 7, 5, 5, 5});
  x.select(1, 0) = ls::tensor({1, 2});  // i64 becomes f32
  x.narrow(1, 1, 2) = ls::tensor(0.5);
  CHECK(x.to_vector<double>() == Doubles{1, 0.5, 0.5, 2, 0.5, 0.5});
  x[0] = x[1] = 4;
  CHECK(x.to_vector<double>() == Doubles(6, 4));
  CHECK(contains(error_of([&] { x[0] = y; }), "copy_: (2, 3) f32 cpu does not broadcast to (3) f32 cpu"));

  ls::Tensor a = ls::zeros({2}), b = ls::ones({2});
  const ls::Tensor first = a;
  a = b;
  CHECK(a.raw_data() == b.raw_data());
  CHECK(first.to_vector<double>() == Doubles{0, 0});
  std::move(a) = first;  // an rvalue, too
  CHECK(b.to_vector<double>() == Doubles{0, 0});
  CHECK(!AssignsNumberToVariable<ls::Tensor>);
}

TEST_CASE("containers, swap and tie move handles, not elements") {
  ls::Tensor a = ls::tensor({1.0}), b = ls::tensor({2.0});
  const void *at_a = a.raw_data(), *at_b = b.raw_data();
  std::swap(a, b);
  CHECK(a.raw_data() == at_b);
  CHECK(b.raw_data() == at_a);
  std::vector<ls::Tensor> list = {a, b};
  list.insert(list.begin(), ls::tensor({3.0}));
  list.erase(list.begin() + 1);
  list[0] = a;
  CHECK(list[0].raw_data() == at_b);
  CHECK(list[1].raw_data() == at_a);
  std::tie(a, b) = std::pair(b, a);
  CHECK(a.raw_data() == at_a);
  CHECK(b.raw_data() == at_b);
  struct Pair {
    ls::Tensor one, other;
  } pair{a, b};
  pair = Pair{b, a};
  CHECK(pair.one.raw_data() == at_b);
  CHECK(std::exchange(a, {}).raw_data() == at_a);
  CHECK(!a.defined());
  CHECK(ls::tensor({1.0, 2.0}).to_vector<double>() == Doubles{1, 2});
  CHECK(std::is_nothrow_move_constructible_v<ls::Tensor>);
  CHECK(std::is_nothrow_move_assignable_v<ls::Tensor>);
}

TEST_CASE("a change in place through an assignment is refused where a gradient would be lost") {
  const ls::Tensor w = ls::ones({2}, {.requires_grad = true});
  CHECK(contains(error_of([&] { w[0] = 3; }), "requires grad"));
  const ls::NoGradGuard no_grad;
  w[0] = 3;
  CHECK(w.to_vector<double>() == Doubles{3, 1});
}

TEST_CASE("grad of lists gives a list") {
  const ls::Tensor x = matrix().requires_grad_(), w = ls::ones({3}, {.requires_grad = true});
  const ls::Tensor loss = ls::sum(x * x * w);
  CHECK(ls::autograd::grad({loss}, {x}, {.retain_graph = true})[0].to_vector<double>() ==
        Doubles{-3, 0, 1.5, 4, -0.5, 2});
  CHECK(ls::autograd::grad({loss}, {x, w}, {.retain_graph = true}).size() == 2);
  CHECK(ls::autograd::grad(loss, w, {.retain_graph = true}).shape() == ls::Shape{3});  // not a list
  const ls::nn::Linear layer(3, 1);
  const ls::Tensor out = ls::sum(layer(x));
  CHECK(ls::autograd::grad(out, layer.bias, {.retain_graph = true}).item<double>() == 2);
  CHECK(ls::autograd::grad({out}, {layer.bias})[0].item<double>() == 2);
}

TEST_CASE("the first number of norm is p") {
  const ls::Tensor x = matrix();
  const auto near = [](const ls::Tensor& t) { return t.to_vector<double>(); };
  CHECK(x.norm(1).item<double>() == 5.5);
  CHECK(ls::norm(x, 1).item<double>() == 5.5);
  CHECK(x.norm(0).item<double>() == 5);
  CHECK(x.norm(kInf).item<double>() == 2);
  CHECK(x.norm(-kInf).item<double>() == 0);
  CHECK(x.norm(2).item<double>() == doctest::Approx(2.80624));
  CHECK(x.norm(3).item<double>() == doctest::Approx(2.33995));
  CHECK(x.norm(0.5).item<double>() == doctest::Approx(25.0499));
  CHECK(near(x.norm(1, 1)) == Doubles{2.25, 3.25});
  CHECK(near(ls::norm(x, 1, {0})) == Doubles{3.5, 0.25, 1.75});
  CHECK(near(ls::norm(x, kInf, {1})) == Doubles{1.5, 2});
  CHECK(ls::norm(x, 2, {1}, true).shape() == ls::Shape{2, 1});
  CHECK(same_bits(x.norm(2), x.norm()));
}

TEST_CASE("max and min with a number reduce that dimension and give values and indices") {
  const ls::Tensor x = matrix();
  const auto [values, indices] = ls::max(x, 1);
  CHECK(values.to_vector<double>() == Doubles{0.75, 2});
  CHECK(indices.to_vector<std::int64_t>() == Ints{2, 0});
  CHECK(x.min(0).first.to_vector<double>() == Doubles{-1.5, -0.25, 0.75});
  CHECK(std::get<1>(x.min(0)).to_vector<std::int64_t>() == Ints{0, 1, 0});
  CHECK(x.max(-1, true).first.shape() == ls::Shape{2, 1});
  CHECK(x.max(-1, true).second.shape() == ls::Shape{2, 1});
  CHECK(ls::max(x, 0).second.to_vector<std::int64_t>() == Ints{1, 0, 1});
  CHECK(x.max(ls::zeros({3})).to_vector<double>() == Doubles{0, 0, 0.75, 2, 0, 1});
  CHECK(ls::min(x, ls::zeros({3})).to_vector<double>() == Doubles{-1.5, 0, 0, 0, -0.25, 0});
  CHECK(ls::clamp_min(x, 0).to_vector<double>() == Doubles{0, 0, 0.75, 2, 0, 1});  // the maximum with a number
  CHECK(ls::clamp_max(x, 0).to_vector<double>() == Doubles{-1.5, 0, 0, 0, -0.25, 0});
  CHECK(!MaximumWithNumber<ls::Tensor>);
  CHECK(x.amax({0, 1}).item<double>() == 2);
  CHECK(x.amin(1).to_vector<double>() == Doubles{-1.5, -0.25});
}

TEST_CASE("var and std take their options by name, and no bool") {
  const ls::Tensor x = matrix();
  const auto close = [](const ls::Tensor& t, const Doubles& want) { check_close(t, ls::tensor(want), "var"); };
  close(x.var({0}), {6.125, 0.03125, 0.03125});
  close(x.var(0), {6.125, 0.03125, 0.03125});
  close(ls::var(x, {0}, {.correction = 0}), {3.0625, 0.015625, 0.015625});
  close(x.std({0}), {2.4748737, 0.1767767, 0.1767767});
  close(ls::std(x, {0}, {.correction = 0}), {1.75, 0.125, 0.125});
  CHECK(x.var({1}, {.keepdim = true}).shape() == ls::Shape{2, 1});
  CHECK(ls::std(x, {0, 1}, {.keepdim = true}).shape() == ls::Shape{1, 1});
  CHECK(x.std().item<double>() == doctest::Approx(1.20069));
  CHECK(!VarTakesBool<ls::Tensor>);
}

TEST_CASE("avg_pool2d takes ceil_mode before count_include_pad") {
  const ls::Tensor x = ls::ones({1, 1, 3, 3});
  CHECK(ls::avg_pool2d(x, 2, 2, 0, true).shape() == ls::Shape{1, 1, 2, 2});
  CHECK(ls::avg_pool2d(x, 2, 2, 0, false, false).shape() == ls::Shape{1, 1, 1, 1});
  CHECK(ls::avg_pool2d(x, 3, 2, 1, false, true)[0][0][0][0].item<double>() == doctest::Approx(4.0 / 9));
  CHECK(ls::avg_pool2d(x, 3, 2, 1, false, false)[0][0][0][0].item<double>() == 1);
}

TEST_CASE("tensor gives one dtype for a literal, a list and a vector") {
  CHECK(ls::tensor(std::vector<double>{1, 2}).dtype() == ls::kFloat32);
  CHECK(ls::tensor(std::vector<float>{1, 2}).dtype() == ls::kFloat32);
  CHECK(ls::tensor(std::vector<int>{1, 2}).dtype() == ls::kInt64);
  CHECK(ls::tensor(std::vector<std::int64_t>{1, 2}).dtype() == ls::kInt64);
  CHECK(ls::tensor(std::vector<std::uint8_t>{1, 2}).dtype() == ls::kUInt8);
  CHECK(ls::tensor(std::vector<double>{}).dtype() == ls::kFloat32);
  CHECK(ls::tensor(std::vector<double>{0.1}, {.dtype = ls::kFloat64}).item<double>() == 0.1);
  CHECK(ls::tensor(1.5f).dtype() == ls::kFloat32);
  CHECK(ls::tensor(std::uint8_t{5}).dtype() == ls::kUInt8);
  CHECK(ls::tensor({{1, 2}, {3, 4}}).dtype() == ls::kInt64);
}

TEST_CASE("the like functions honour a given option, even if it is the default of other functions") {
  const ls::Tensor x = ls::zeros({2}, {.dtype = ls::kFloat64, .device = "cpu:1"});
  CHECK(ls::zeros_like(x, {.device = "cpu"}).device() == ls::Device("cpu"));
  CHECK(ls::ones_like(x, {.dtype = ls::kFloat32}).device() == ls::Device("cpu:1"));
  CHECK(ls::ones_like(x, {.dtype = ls::kFloat32}).dtype() == ls::kFloat32);
  CHECK(ls::zeros_like(x, {.requires_grad = true}).device() == ls::Device("cpu:1"));
  CHECK(ls::zeros_like(x, {.device = "cpu"}).dtype() == ls::kFloat64);
  CHECK(ls::ones({1}, x.options()).device() == ls::Device("cpu:1"));
}

TEST_CASE("empty braces for a dimension mean none") {
  const ls::Tensor x = matrix();
  CHECK(ls::argmax(x, {}).item<int>() == 3);
  CHECK(x.argmin({}, true).shape() == ls::Shape{1, 1});
  CHECK(x.argmax().item<int>() == 3);
  CHECK(x.sum({}).dim() == 0);
  CHECK(ls::logsumexp(x, {}).dim() == 0);
  CHECK(x.amax({}, true).shape() == ls::Shape{1, 1});
}

TEST_CASE("chunk of an empty dimension gives the requested number of parts") {
  CHECK(ls::chunk(ls::zeros({0, 2}), 3).size() == 3);
  CHECK(ls::chunk(ls::zeros({2, 0}), 2, 1)[1].shape() == ls::Shape{2, 0});
  CHECK(ls::chunk(ls::zeros({5}), 4).size() == 3);
}

TEST_CASE("equal compares values whatever their dtypes") {
  CHECK(ls::equal(ls::tensor({1.0, 2.0}), ls::tensor({1.0, 2.0}, {.dtype = ls::kFloat64})));
  CHECK(ls::equal(ls::tensor({1, 2}), ls::tensor({1.0, 2.0})));
  CHECK(ls::equal(ls::ones({1}).to(ls::kFloat16), ls::ones({1}).to(ls::kBFloat16)));
  CHECK(!ls::equal(ls::tensor({0.1}), ls::tensor({0.1}, {.dtype = ls::kFloat64})));
  CHECK(!ls::equal(ls::tensor({1.0, 2.0}), ls::tensor({1.0})));
}

TEST_CASE("a 0-d tensor has no sizes") {
  const ls::Tensor x = ls::tensor(2.5);
  CHECK(contains(error_of([&] { x.size(0); }), "size: dimension 0 was requested, but () f32 cpu is 0-d"));
  CHECK(contains(error_of([&] { x.stride(-1); }), "stride"));
  CHECK(contains(error_of([&] { ls::split(x, 1); }), "0-d"));
}

TEST_CASE("a number outside the range of a dtype is refused where it would become an element") {
  const auto refused = [](const std::string& text) { return contains(text, "is outside the range of"); };
  const ls::Tensor bytes = ls::zeros({2}, {.dtype = ls::kUInt8}), ints = ls::zeros({2}, {.dtype = ls::kInt32});
  CHECK(contains(error_of([&] { bytes.fill_(300); }), "fill_: 300 is outside the range of u8"));
  CHECK(refused(error_of([&] { bytes.fill_(-300); })));
  CHECK(refused(error_of([&] { ints.fill_(std::int64_t{1} << 40); })));
  CHECK(refused(error_of([&] { ints.fill_(kNan); })));
  CHECK(refused(error_of([&] { ints[0] = 1e30; })));
  CHECK(refused(error_of([] { ls::zeros({1}).fill_(1e300); })));
  CHECK(refused(error_of([] { ls::zeros({1}, {.dtype = ls::kFloat16}).fill_(1e5); })));
  CHECK(refused(error_of([] { ls::full({1}, 300, {.dtype = ls::kUInt8}); })));
  CHECK(refused(error_of([] { ls::tensor({1, 300}, {.dtype = ls::kUInt8}); })));
  CHECK(contains(error_of([&] { ls::masked_fill(bytes, bytes == 0, 300); }), "masked_fill: 300"));
  CHECK(bytes.fill_(-1).to_vector<int>() == std::vector<int>{255, 255});  // modulo 256, as in PyTorch
  CHECK(ints.fill_(1.9).to_vector<int>() == std::vector<int>{1, 1});
  CHECK(ls::full({1}, kInf).item<double>() == kInf);
  CHECK((bytes + 300).to_vector<int>() == std::vector<int>{43, 43});  // arithmetic wraps
}
