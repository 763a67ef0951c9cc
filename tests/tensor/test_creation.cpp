// Creation, literals, wrapped memory, and access to elements.
#include <array>
#include <limits>

#include "lockstep/tensor/half_internal.h"
#include "tests/support/testing.h"

using ls::kBool, ls::kFloat16, ls::kFloat32, ls::kFloat64, ls::kInt32, ls::kInt64, ls::kUInt8;
using Doubles = std::vector<double>;

TEST_CASE("zeros, ones, full and empty have the requested shape, dtype and device") {
  const ls::Tensor zeros = ls::zeros({2, 3});
  CHECK(zeros.shape() == ls::Shape{2, 3});
  CHECK(zeros.dtype() == kFloat32);
  CHECK(zeros.device() == ls::Device());
  CHECK(zeros.to_vector<double>() == Doubles(6, 0.0));
  CHECK(ls::ones({4}, {.dtype = kInt64}).to_vector<std::int64_t>() == std::vector<std::int64_t>(4, 1));
  const ls::Tensor full = ls::full({2}, 2.5, {.dtype = kFloat64, .device = "cpu:3"});
  CHECK(full.to_vector<double>() == Doubles(2, 2.5));
  CHECK(full.device() == ls::Device("cpu:3"));
  CHECK(ls::empty({0, 5}, {.dtype = kUInt8}).numel() == 0);
  CHECK(ls::zeros({}).dim() == 0);
  CHECK(ls::zeros({}).item<float>() == 0);
}

TEST_CASE("full without a dtype takes that of its value") {
  CHECK(ls::full({1}, 1.0).dtype() == kFloat32);
  CHECK(ls::full({1}, 1).dtype() == kInt64);
  CHECK(ls::full({1}, true).dtype() == kBool);
}

TEST_CASE("every creation function honours requires_grad") {
  const ls::TensorOptions leaf = {.requires_grad = true};
  for (const ls::Tensor& t :
       {ls::empty({2}, leaf), ls::zeros({2}, leaf), ls::ones({2}, leaf), ls::full({2}, 1.5, leaf),
        ls::zeros_like(ls::ones({2}), leaf), ls::ones_like(ls::ones({2}), leaf), ls::arange(0.0, 2.0, leaf),
        ls::linspace(0, 1, 2, leaf), ls::eye(2, leaf), ls::rand({2}, leaf), ls::randn({2}, leaf),
        ls::tensor({1.0, 2.0}, leaf), ls::tensor(1.0, leaf)}) {
    CHECK(t.requires_grad());
    CHECK(t.is_leaf());
  }
  CHECK(contains(error_of([] { ls::zeros({2}, {.dtype = kInt64, .requires_grad = true}); }), "i64"));
}

TEST_CASE("the like functions take dtype and device of their model unless options are given") {
  const ls::Tensor model = ls::zeros({2, 1}, {.dtype = kFloat64, .device = "cpu:1"});
  CHECK(ls::zeros_like(model).dtype() == kFloat64);
  CHECK(ls::zeros_like(model).device() == ls::Device("cpu:1"));
  CHECK(ls::ones_like(model).shape() == ls::Shape{2, 1});
  CHECK(ls::ones_like(model, {.dtype = kInt32}).dtype() == kInt32);
  CHECK(!ls::ones_like(ls::ones({1}, {.requires_grad = true})).requires_grad());
}

TEST_CASE("arange counts from start to below end, in integers where all its arguments are") {
  CHECK(ls::arange(4).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(ls::arange(4).dtype() == kInt64);
  CHECK(ls::arange(2, 9, 3).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 5, 8});
  CHECK(ls::arange(3, -1, -2).to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 1});
  CHECK(ls::arange(0.0, 1.0, 0.25).to_vector<double>() == Doubles{0, 0.25, 0.5, 0.75});
  CHECK(ls::arange(0.0, 1.0, 0.25).dtype() == kFloat32);
  CHECK(ls::arange(5, 5).numel() == 0);
  CHECK(ls::arange(3, {.dtype = kFloat64}).dtype() == kFloat64);
  const std::int64_t large = (std::int64_t{1} << 53) + 1;  // not a double
  CHECK(ls::arange(large, large + 2).to_vector<std::int64_t>() == std::vector<std::int64_t>{large, large + 1});
  CHECK(contains(error_of([] { ls::arange(0, 3, 0); }), "step"));
  CHECK(contains(error_of([] { ls::arange(0, 3, -1); }), "step"));
  CHECK(contains(error_of([] { ls::arange(0.0, std::numeric_limits<double>::infinity()); }), "arange"));
}

TEST_CASE("linspace includes both ends exactly") {
  CHECK(ls::linspace(0, 1, 5).to_vector<double>() == Doubles{0, 0.25, 0.5, 0.75, 1});
  const ls::Tensor thirds = ls::linspace(-0.1, 0.7, 1000, {.dtype = kFloat64});
  CHECK(thirds[0].item<double>() == -0.1);
  CHECK(thirds[999].item<double>() == 0.7);
  CHECK(ls::linspace(3, 8, 1).to_vector<double>() == Doubles{3});
  CHECK(ls::linspace(3, 8, 0).numel() == 0);
  CHECK(!error_of([] { ls::linspace(0, 1, -1); }).empty());
}

TEST_CASE("eye has ones on its diagonal") {
  CHECK(ls::eye(3).to_vector<double>() == Doubles{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(ls::eye(2, {.dtype = kInt64}).dtype() == kInt64);
  CHECK(ls::eye(0).shape() == ls::Shape{0, 0});
}

TEST_CASE("literals give i64 for integers, f32 for fractions and bool for bools, up to three levels") {
  CHECK(ls::tensor(3).dtype() == kInt64);
  CHECK(ls::tensor(3.0).dtype() == kFloat32);
  CHECK(ls::tensor(true).dtype() == kBool);
  CHECK(ls::tensor({true, false}).to_vector<bool>() == std::vector<bool>{true, false});
  const ls::Tensor matrix = ls::tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}});
  CHECK(matrix.shape() == ls::Shape{3, 2});
  CHECK(matrix.to_vector<double>() == Doubles{1, 2, 3, 4, 5, 6});
  const ls::Tensor cube = ls::tensor({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}, {.dtype = kFloat64});
  CHECK(cube.shape() == ls::Shape{2, 2, 2});
  CHECK(cube.dtype() == kFloat64);
  CHECK(cube.to_vector<double>() == Doubles{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(ls::tensor(std::vector<double>{1, 2}, {.dtype = kFloat64}).dtype() == kFloat64);
  CHECK(ls::tensor(std::vector<float>{}).shape() == ls::Shape{0});
  CHECK(ls::tensor({9007199254740993}).item<std::int64_t>() == 9007199254740993);
}

TEST_CASE("literals of unequal rows are refused") {
  CHECK(contains(error_of([] { ls::tensor({{1.0, 2.0}, {3.0}}); }), "rows of different lengths"));
  CHECK(!error_of([] { ls::tensor({{{1, 2}}, {{3, 4}, {5, 6}}}); }).empty());
  CHECK(!error_of([] { ls::tensor({{1, 2}, {3, 4}, {5, 6, 7}, {8}}); }).empty());
}

TEST_CASE("from_memory shares the caller's memory instead of copying it") {
  std::vector<float> memory = {1, 2, 3, 4, 5, 6};
  const ls::Tensor t = ls::from_memory(std::span(memory), {2, 3});
  CHECK(t.data<float>() == memory.data());
  memory[4] = 50;
  CHECK(t[1][1].item<float>() == 50);
  t.fill_(7);
  CHECK(memory == std::vector<float>(6, 7));
  const std::array<std::int64_t, 2> constant = {1, 2};
  CHECK(ls::from_memory(std::span<const std::int64_t>(constant), {2}).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{1, 2});
}

TEST_CASE("from_memory refuses a shape that exceeds the memory") {
  std::vector<double> memory(5);
  CHECK(contains(error_of([&] { ls::from_memory(std::span(memory), {2, 3}); }), "48 bytes, the memory has 40"));
  CHECK(ls::from_memory(std::span(memory), {2, 2}).numel() == 4);
  CHECK(!error_of([&] { ls::from_memory(std::span(memory), {-1}); }).empty());
}

TEST_CASE("item converts the only element and refuses any other number of them") {
  CHECK(ls::tensor({2.75}).item<int>() == 2);
  CHECK(ls::tensor({{3}}).item<double>() == 3);
  CHECK(ls::tensor(0.5).item<bool>());
  CHECK(ls::tensor(1.5).to(kFloat16).item<float>() == 1.5f);
  CHECK(ls::tensor(1.5).to(ls::kBFloat16).item<double>() == 1.5);
  CHECK(contains(error_of([] { ls::ones({2, 3}).item<float>(); }), "(2, 3) f32 cpu"));
  CHECK(!error_of([] { ls::ones({0}).item<float>(); }).empty());
}

TEST_CASE("data and span give the elements if the type matches, and otherwise name the actual dtype") {
  const ls::Tensor t = ls::arange(6).view({2, 3});
  CHECK(t.span<std::int64_t>()[5] == 5);
  CHECK(t[1].data<std::int64_t>() == t.data<std::int64_t>() + 3);
  CHECK(contains(error_of([&] { t.data<float>(); }), "f32 was requested, the tensor is (2, 3) i64 cpu"));
  CHECK(contains(error_of([&] { t.span<float>(); }), "f32 was requested"));
  CHECK(contains(error_of([&] { t.t().span<std::int64_t>(); }), "not contiguous"));
}

TEST_CASE("to_vector gives row-major elements of any view, converted") {
  const ls::Tensor t = ls::arange(6).view({2, 3});
  CHECK(t.t().to_vector<double>() == Doubles{0, 3, 1, 4, 2, 5});
  CHECK(t.slice(1, 0, 3, 2).to_vector<float>() == std::vector<float>{0, 2, 3, 5});
  CHECK(ls::zeros({0}).to_vector<float>().empty());
  CHECK(ls::zeros({1}, {.device = "cpu:2"}).to_vector<float>() == std::vector<float>{0});
}

TEST_CASE("any use of an undefined tensor is an error that says so") {
  const ls::Tensor none;
  CHECK(!none.defined());
  CHECK(none.to_string() == "tensor(undefined)");
  const ls::Tensor one = ls::ones({1});
  for (const std::string& text : {error_of([&] { (void)none.shape(); }), error_of([&] { (void)(none + one); }),
                                  error_of([&] { (void)(one + none); }), error_of([&] { (void)ls::exp(none); }),
                                  error_of([&] { (void)none.clone(); }), error_of([&] { none.backward(); }),
                                  error_of([&] { (void)none.to("cpu:1"); }), error_of([&] {
                                    (void)ls::cat({one, none});
                                  }),
                                  error_of([&] { (void)ls::matmul(none, one); }),
                                  error_of([&] { (void)none.requires_grad(); }), error_of([&] { one.copy_(none); })}) {
    CHECK_MESSAGE(contains(text, "undefined"), text);
  }
}

TEST_CASE("a shape that is negative, too large or too deep is refused before memory is allocated") {
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK(contains(error_of([] { ls::zeros({2, -1}); }), "negative"));
  CHECK(contains(error_of([&] { ls::zeros({huge, huge}); }), "too many elements"));
  CHECK(contains(error_of([&] { ls::zeros({huge, huge, 0}); }), "too many elements"));
  CHECK(ls::zeros({0, huge, huge}).numel() == 0);
  CHECK(contains(error_of([] { ls::zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}); }), "at most 8"));
  CHECK(contains(error_of<ls::DeviceError>([&] { ls::empty({huge, 1 << 12}); }), "out of memory"));
}

TEST_CASE("every storage is aligned to 64 bytes") {
  for (std::int64_t n : {0, 1, 3, 17, 1000, 5000, 100000}) {
    CHECK(reinterpret_cast<std::uintptr_t>(ls::empty({n}, {.dtype = kUInt8}).raw_data()) % 64 == 0);
  }
}
