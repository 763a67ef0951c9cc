// Writing by index and finding elements: PyTorch's values and gradients, duplicates in a fixed order.
#include "tests/support/golden_case.h"

namespace {

using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

Ints ints(const ls::Tensor& x) { return x.to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("scatter, scatter_reduce and index_add have PyTorch's values and gradients") {
  const ls::StateDict file = golden("tensor_ops");
  const ls::Tensor index = ls::tensor({{0, 2, 2, 0}, {1, 1, 2, 2}});
  check_case(file, "scatter", {"x", "src"}, [](const Inputs& in) {
    return ls::scatter(in[0], 0, ls::tensor({{0, 2, 1}, {1, 0, 2}}), in[1]);
  });
  check_case(file, "scatter_value", {"x"}, [](const Inputs& in) {
    return ls::scatter(in[0], 1, ls::tensor({{3, 1}, {0, 0}}), -7);
  });
  for (const std::string reduce : {"sum", "mean", "prod", "amax", "amin"}) {
    for (const bool own : {true, false})
      check_case(file, "scatter_reduce_" + reduce + (own ? "_True" : "_False"), {"x", "src"},
                 [&](const Inputs& in) { return ls::scatter_reduce(in[0], 0, index, in[1], reduce, own); });
    const ls::Tensor y = ls::scatter_reduce(ls::tensor({1, 2, 3}), 0, ls::tensor({0, 0, 2}), ls::tensor({9, -7, 5}),
                                            reduce, reduce != "amin");
    check_close(y, file.at("scatter_reduce_integers/" + reduce), reduce);
  }
  const ls::Tensor rows = ls::tensor({{0, 2, 2, 0}, {0, 2, 2, 1}, {0, 2, 2, 1}});
  check_case(file, "scatter_reduce_prod_zeros", {"x", "src"},
             [&](const Inputs& in) { return ls::scatter_reduce(in[0], 0, rows, in[1], "prod"); });
  check_case(file, "scatter_reduce_amax_ties", {"x", "src"},
             [&](const Inputs& in) { return ls::scatter_reduce(in[0], 0, rows, in[1], "amax"); });
  check_case(file, "index_add", {"x", "src"}, [](const Inputs& in) {
    return ls::index_add(in[0], 1, ls::tensor({2, 0, 2}), in[1], 0.5);
  });
}

TEST_CASE("nonzero, masked_select and argsort have PyTorch's values") {
  const ls::StateDict file = golden("tensor_ops");
  check_case(file, "masked_select", {"x"}, [](const Inputs& in) {
    return ls::masked_select(in[0], ls::tensor({true, false, true}));
  });
  const ls::Tensor x = ls::tensor({{0, 3, 0}, {1, 0, 2}});
  CHECK(ls::equal(ls::nonzero(x), file.at("nonzero")));
  CHECK(ls::equal(ls::nonzero(x.t().contiguous().t()), file.at("nonzero")));
  CHECK(ls::equal(ls::argsort(ls::tensor({{3.0, 1.0, 2.0}, {1.0, 3.0, 2.0}}), 1, true), file.at("argsort")));
  CHECK(ls::nonzero(ls::tensor(5.0)).shape() == ls::Shape{1, 0});
  CHECK(ls::nonzero(ls::tensor(0.0)).shape() == ls::Shape{0, 0});
  CHECK(ls::nonzero(ls::zeros({0, 3})).shape() == ls::Shape{0, 2});
  CHECK(ls::nonzero(ls::tensor({kNan, 0.0, -0.0})).shape() == ls::Shape{1, 1});
  CHECK(ls::masked_select(x, x > 9).shape() == ls::Shape{0});
  CHECK(ints(ls::masked_select(x, ls::tensor({{true}, {false}}))) == Ints{0, 3, 0});
}

TEST_CASE("of several elements for one place, the last is kept and gets the gradient") {
  const ls::Tensor x = ls::zeros({3}, {.requires_grad = true}),
                   src = ls::tensor({1.0, 2.0, 3.0, 4.0}, {.requires_grad = true});
  const ls::Tensor index = ls::tensor({0, 2, 0, 2});
  const ls::Tensor y = ls::scatter(x, 0, index, src);
  CHECK(y.to_vector<double>() == Doubles{3, 0, 4});
  y.backward(ls::tensor({5.0, 6.0, 7.0}));
  CHECK(x.grad().to_vector<double>() == Doubles{0, 6, 0});
  CHECK(src.grad().to_vector<double>() == Doubles{0, 0, 5, 7});
}

TEST_CASE("all dtypes scatter; sums of f16 and bf16 round once") {
  for (const ls::DType dtype :
       {ls::kBool, ls::kUInt8, ls::kInt32, ls::kInt64, ls::kHalf, ls::kBFloat16, ls::kFloat64}) {
    INFO(ls::name(dtype));
    const ls::Tensor x = ls::tensor({0, 1, 0}).to(dtype), ones = ls::ones({2}, {.dtype = dtype});
    const ls::Tensor y = ls::scatter(x, 0, ls::tensor({2, 2}), ones);
    CHECK(y.dtype() == dtype);
    CHECK(ints(y) == Ints{0, 1, 1});
  }
  const ls::Tensor x = ls::tensor({2048.0, 0.0}, {.dtype = ls::kHalf}), one = ls::ones({4}, {.dtype = ls::kHalf});
  CHECK(ls::scatter_add(x, 0, ls::zeros({4}, {.dtype = ls::kInt64}), one)[0].item<double>() == 2052);
  CHECK(ls::scatter_reduce(x, 0, ls::zeros({4}, {.dtype = ls::kInt64}), one, "sum")[0].item<double>() == 2052);
}

TEST_CASE("errors of scatter name the operation, the index and the source") {
  const ls::Tensor x = ls::zeros({3, 4}), index = ls::tensor({{0, 3}});
  CHECK(contains(error_of([&] { ls::scatter(x, 0, index, ls::zeros({1, 2})); }), "scatter: index 3 is outside [0, 3)"));
  CHECK(contains(error_of([&] {
                   ls::scatter(x, 1, index, ls::zeros({1, 1}));
                 }),
                 "scatter: the index (1, 2) i64 cpu is"));
  CHECK(contains(error_of([&] { ls::scatter(x, 1, index, ls::zeros({2})); }), "needs as many dimensions"));
  CHECK(contains(error_of([&] { ls::scatter_reduce(x, 1, index, x, "max"); }), "scatter_reduce: reduce is \"max\""));
  CHECK(contains(error_of([&] { ls::index_add(x, 1, ls::tensor({0}), x); }),
                 "index_add: the index (1) i64 cpu and the source (3, 4) f32 cpu do not fit (3, 4) f32 cpu"));
  CHECK(contains(error_of([&] { ls::masked_select(x, x); }), "masked_select: the mask must be bool"));
}
