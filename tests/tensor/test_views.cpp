// Views: shapes and strides on shared storage, compared with the closed form of the element at each index.
#include "tests/support/testing.h"

namespace {

using Ints = std::vector<std::int64_t>;

// Element (i, j, k) of shape (2, 3, 4) is 100 i + 10 j + k, which identifies its index.
ls::Tensor cube() {
  ls::Tensor x = ls::empty({2, 3, 4}, {.dtype = ls::kInt64});
  for (std::int64_t i = 0; i < 24; ++i) x.data<std::int64_t>()[i] = 100 * (i / 12) + 10 * (i / 4 % 3) + i % 4;
  return x;
}

Ints elements(const ls::Tensor& x) { return x.to_vector<std::int64_t>(); }

bool shares(const ls::Tensor& view, const ls::Tensor& base) {
  return view.impl().storage.get() == base.impl().storage.get();
}

}  // namespace

TEST_CASE("transpose swaps two dimensions without moving elements") {
  const ls::Tensor x = cube(), y = x.transpose(0, -1);
  CHECK(y.shape() == ls::Shape{4, 3, 2});
  CHECK(y.strides() == ls::Shape{1, 4, 12});
  CHECK(shares(y, x));
  CHECK(!y.is_contiguous());
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) {
      for (std::int64_t k = 0; k < 2; ++k) REQUIRE(y[i][j][k].item<std::int64_t>() == 100 * k + 10 * j + i);
    }
  }
  CHECK(x.transpose(1, 1).is_contiguous());
}

TEST_CASE("t transposes matrices and returns tensors of fewer dimensions unchanged") {
  const ls::Tensor m = cube()[0];
  CHECK(m.t().shape() == ls::Shape{4, 3});
  CHECK(m[0].t().shape() == ls::Shape{4});
  CHECK(ls::zeros({}).t().dim() == 0);
  CHECK(contains(error_of([] { cube().t(); }), "more than two dimensions"));
}

TEST_CASE("permute puts dimension dims[i] at place i") {
  const ls::Tensor y = cube().permute({2, 0, 1});
  CHECK(y.shape() == ls::Shape{4, 2, 3});
  CHECK(y[3][1][2].item<std::int64_t>() == 123);
  CHECK(cube().permute({-1, 0, 1}).shape() == ls::Shape{4, 2, 3});
  CHECK(elements(cube().permute({2, 0, 1}).permute({1, 2, 0})) == elements(cube()));
  CHECK(contains(error_of([] { cube().permute({0, 1}); }), "2 dimensions given for (2, 3, 4) i64 cpu"));
  CHECK(contains(error_of([] { cube().permute({0, 1, 1}); }), "twice"));
  CHECK(contains(error_of([] { cube().permute({0, 1, 3}); }), "outside [-3, 3)"));
}

TEST_CASE("select and [] drop a dimension and count negative positions from the end") {
  const ls::Tensor x = cube();
  CHECK(elements(x.select(1, 2)) == Ints{20, 21, 22, 23, 120, 121, 122, 123});
  CHECK(elements(x.select(2, -1)) == Ints{3, 13, 23, 103, 113, 123});
  CHECK(x[-1][0][1].item<std::int64_t>() == 101);
  CHECK(shares(x[1], x));
  CHECK(contains(error_of([&] { (void)x[2]; }), "index 2 is outside [-2, 2)"));
  CHECK(contains(error_of([&] { x.select(1, -4); }), "index -4"));
  CHECK(contains(error_of([] { (void)ls::zeros({})[0]; }), "0-d"));
}

TEST_CASE("slice follows Python: clipped ends, negative positions, steps") {
  const ls::Tensor x = ls::arange(7);
  const auto slice = [&](std::int64_t start, std::int64_t end, std::int64_t step = 1) {
    return elements(x.slice(0, start, end, step));
  };
  CHECK(slice(1, 4) == Ints{1, 2, 3});
  CHECK(slice(-3, -1) == Ints{4, 5});
  CHECK(slice(0, 7, 3) == Ints{0, 3, 6});
  CHECK(slice(1, 6, 2) == Ints{1, 3, 5});
  CHECK(slice(1, 7, 4) == Ints{1, 5});
  CHECK(slice(-100, 100) == elements(x));
  CHECK(slice(5, 2) == Ints{});
  CHECK(slice(7, 9) == Ints{});
  CHECK(slice(6, 7, 100) == Ints{6});
  CHECK(elements(cube().slice(1, 0, 3, 2).slice(2, 1, 3)) == Ints{1, 2, 21, 22, 101, 102, 121, 122});
  CHECK(contains(error_of([&] { x.slice(0, 0, 3, 0); }), "step 0"));
  CHECK(contains(error_of([&] { x.slice(0, 3, 0, -1); }), "step -1"));
  CHECK(contains(error_of([&] { x.slice(1, 0, 3); }), "dimension 1"));
}

TEST_CASE("narrow takes a length and refuses to exceed the dimension") {
  const ls::Tensor x = ls::arange(7);
  CHECK(elements(x.narrow(0, 2, 3)) == Ints{2, 3, 4});
  CHECK(elements(x.narrow(0, -2, 2)) == Ints{5, 6});
  CHECK(x.narrow(0, 7, 0).numel() == 0);
  CHECK(contains(error_of([&] { x.narrow(0, 5, 3); }), "outside dimension 0 of (7) i64 cpu"));
  CHECK(!error_of([&] { x.narrow(0, -8, 1); }).empty());
  CHECK(!error_of([&] { x.narrow(0, 0, -1); }).empty());
}

TEST_CASE("a write to a view changes its base") {
  const ls::Tensor x = cube();
  x.slice(2, 1, 4, 2).fill_(-1);
  x.transpose(0, 2)[0].zero_();
  CHECK(elements(x[1]) == Ints{0, -1, 102, -1, 0, -1, 112, -1, 0, -1, 122, -1});
}

TEST_CASE("view changes the shape of contiguous elements, with one size left open") {
  const ls::Tensor x = cube();
  CHECK(x.view({6, 4}).shape() == ls::Shape{6, 4});
  CHECK(x.view({-1}).shape() == ls::Shape{24});
  CHECK(x.view({2, -1, 2}).shape() == ls::Shape{2, 6, 2});
  CHECK(shares(x.view({4, 6}), x));
  CHECK(elements(x.view({3, 8})) == elements(x));
  CHECK(ls::zeros({0, 3}).view({3, 0, 7}).shape() == ls::Shape{3, 0, 7});
  CHECK(ls::zeros({0, 3}).view({-1, 3}).shape() == ls::Shape{0, 3});
  CHECK(ls::zeros({}).view({1, 1}).shape() == ls::Shape{1, 1});
  CHECK(contains(error_of([&] { x.view({5, 5}); }), "has 24 elements"));
  CHECK(!error_of([&] { x.view({-1, -1}); }).empty());
  CHECK(!error_of([&] { x.view({-1, 5}); }).empty());
  CHECK(!error_of([&] { x.view({-2, -12}); }).empty());
  CHECK(!error_of([] { ls::zeros({0}).view({-1, 0}); }).empty());  // ambiguous
}

TEST_CASE("view of strided elements works exactly where no element has to move") {
  const ls::Tensor x = cube();
  // Splitting a dimension is always possible, merging where the outer stride covers the inner one.
  CHECK(elements(x.transpose(0, 1).view({3, 2, 2, 2})) == elements(x.transpose(0, 1).contiguous()));
  CHECK(elements(x.slice(0, 1, 2).view({12})) == Ints{100, 101, 102, 103, 110, 111, 112, 113, 120, 121, 122, 123});
  CHECK(elements(x.slice(2, 0, 2).view({6, 2})) == elements(x.slice(2, 0, 2)));
  CHECK(elements(x.slice(2, 0, 4, 2).view({6, 2})) == elements(x.slice(2, 0, 4, 2)));
  CHECK(elements(x.view({24}).slice(0, 0, 24, 2).view({3, 4})) == elements(x.view({24}).slice(0, 0, 24, 2)));
  CHECK(elements(x.transpose(1, 2).unsqueeze(1).view({2, 1, 4, 1, 3})) == elements(x.transpose(1, 2).contiguous()));
  CHECK(elements(x.select(1, 0).view({2, 2, 2})) == Ints{0, 1, 2, 3, 100, 101, 102, 103});
  for (const std::string& text : {error_of([&] {
                                    x.transpose(0, 1).view({6, 4});
                                  }),
                                  error_of([&] { x.t().view({24}); }), error_of([&] {
                                    x.transpose(1, 2).view({2, 12});
                                  }),
                                  error_of([&] {
                                    x.slice(2, 0, 2).view({2, 2, 3});
                                  }),
                                  error_of([&] { x.select(1, 0).view({8}); })}) {
    CHECK(!text.empty());
  }
  CHECK(contains(error_of([&] { x.transpose(1, 2).view({24}); }), "use reshape"));
}

TEST_CASE("reshape gives the same elements as view, and copies where view refuses") {
  const ls::Tensor x = cube();
  CHECK(shares(x.reshape({4, 6}), x));
  const ls::Tensor moved = x.transpose(0, 2).reshape({-1});
  CHECK(!shares(moved, x));
  CHECK(elements(moved) == elements(x.transpose(0, 2)));
  CHECK(shares(x.transpose(0, 1).reshape({3, 2, 2, 2}), x));
  CHECK(contains(error_of([&] { x.reshape({7, -1}); }), "reshape"));
}

TEST_CASE("every reshape of every permutation of small shapes keeps the row-major order of elements") {
  const std::vector<ls::Shape> targets = {{24},       {2, 12},      {12, 2},     {6, 4},    {4, 6},
                                          {3, 8},     {8, 3},       {2, 3, 4},   {4, 3, 2}, {2, 2, 6},
                                          {1, 24, 1}, {2, 2, 2, 3}, {3, 1, 2, 4}};
  const std::vector<ls::Shape> orders = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const ls::Shape& order : orders) {
    const ls::Tensor x = cube().permute(order);
    for (const ls::Shape& target : targets) {
      INFO(order.to_string(), " as ", target.to_string());
      CHECK(elements(x.reshape(target)) == elements(x));
      if (error_of([&] { x.view(target); }).empty()) CHECK(elements(x.view(target)) == elements(x));
    }
  }
}

TEST_CASE("squeeze and unsqueeze remove and add sizes of 1") {
  const ls::Tensor x = ls::zeros({1, 3, 1, 2});
  CHECK(x.squeeze().shape() == ls::Shape{3, 2});
  CHECK(x.squeeze(0).shape() == ls::Shape{3, 1, 2});
  CHECK(x.squeeze(-2).shape() == ls::Shape{1, 3, 2});
  CHECK(x.squeeze(1).shape() == x.shape());
  CHECK(ls::zeros({1, 1}).squeeze().dim() == 0);
  CHECK(x.unsqueeze(0).shape() == ls::Shape{1, 1, 3, 1, 2});
  CHECK(x.unsqueeze(-1).shape() == ls::Shape{1, 3, 1, 2, 1});
  CHECK(ls::zeros({}).unsqueeze(0).shape() == ls::Shape{1});
  CHECK(shares(x.transpose(0, 1).squeeze(), x));
  CHECK(contains(error_of([&] { x.squeeze(4); }), "outside [-4, 4)"));
  CHECK(contains(error_of([&] { x.unsqueeze(5); }), "unsqueeze"));
  CHECK(!error_of([] { ls::zeros({1, 1, 1, 1, 1, 1, 1, 1}).unsqueeze(0); }).empty());
}

TEST_CASE("expand repeats sizes of 1 without copying") {
  const ls::Tensor x = ls::tensor({{1}, {2}});
  const ls::Tensor y = x.expand({3, 2, 2});
  CHECK(y.strides() == ls::Shape{0, 1, 0});
  CHECK(elements(y) == Ints{1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2});
  CHECK(x.expand({-1, 4}).shape() == ls::Shape{2, 4});
  CHECK(ls::tensor(7).expand({2, 2}).to_vector<int>() == std::vector<int>(4, 7));
  CHECK(ls::zeros({1, 3}).expand({0, 3}).numel() == 0);
  CHECK(shares(y, x));
  CHECK(contains(error_of([&] { x.expand({3, 2}); }), "(2, 1) i64 cpu does not expand to (3, 2)"));
  CHECK(contains(error_of([&] { x.expand({2}); }), "fewer dimensions"));
  CHECK(!error_of([&] { x.expand({-1, 2, 1}); }).empty());
}

TEST_CASE("flatten merges a range of dimensions") {
  CHECK(cube().flatten().shape() == ls::Shape{24});
  CHECK(cube().flatten(1).shape() == ls::Shape{2, 12});
  CHECK(cube().flatten(0, 1).shape() == ls::Shape{6, 4});
  CHECK(cube().flatten(-2, -1).shape() == ls::Shape{2, 12});
  CHECK(ls::zeros({}).flatten().shape() == ls::Shape{1});
  CHECK(elements(cube().transpose(0, 1).flatten(1)) == elements(cube().transpose(0, 1)));
  CHECK(contains(error_of([] { cube().flatten(2, 1); }), "flatten"));
}

TEST_CASE("a view of a view is a view of the base") {
  const ls::Tensor x = cube();
  const ls::Tensor y = x.transpose(0, 2).slice(0, 1, 4, 2).select(1, 2).unsqueeze(0).expand({2, 2, 2});
  CHECK(shares(y, x));
  CHECK(elements(y) == Ints{21, 121, 23, 123, 21, 121, 23, 123});
}

TEST_CASE("size and stride count dimensions from either end") {
  const ls::Tensor x = cube();
  CHECK(x.size(-1) == 4);
  CHECK(x.stride(-3) == 12);
  CHECK(contains(error_of([&] { x.size(3); }), "dimension 3 is outside [-3, 3)"));
}

TEST_CASE("a copy of a transposed view has its elements, for sizes around a tile and every item size") {
  for (const ls::DType dtype : {ls::kUInt8, ls::kBFloat16, ls::kFloat32, ls::kInt64}) {
    for (const std::int64_t rows : {31, 32, 33, 70, 512}) {
      for (const std::int64_t columns : {32, 45, 64, 300}) {
        const ls::Tensor x = ls::arange(2 * rows * columns).to(dtype).reshape({2, rows, columns});
        const ls::Tensor copy = x.transpose(1, 2).clone(), part = x[1].slice(0, 1, rows).t().clone();
        CHECK(ls::equal(copy.transpose(1, 2), x));
        CHECK(ls::equal(part.t(), x[1].slice(0, 1, rows)));
        const ls::Tensor into = ls::zeros({2, columns, rows + 3}, {.dtype = dtype});
        into.narrow(2, 2, rows).copy_(x.transpose(1, 2));
        CHECK(ls::equal(into.narrow(2, 2, rows), copy));
        CHECK(ls::equal(into.narrow(2, 0, 2), ls::zeros({2, columns, 2}, {.dtype = dtype})));
      }
    }
  }
}

TEST_CASE("a copy between any two layouts has the elements of a conversion, whose loop is another") {
  const auto check = [](const ls::Tensor& from) {
    for (const ls::DType dtype : {ls::kUInt8, ls::kBFloat16, ls::kFloat32, ls::kFloat64}) {
      const ls::Tensor x = from.to(ls::kInt64).to(dtype);
      const ls::Tensor base = ls::zeros({from.size(2), 2 * from.size(0), from.size(1)}, {.dtype = dtype});
      for (const ls::Tensor& view :
           {x, x.permute({2, 0, 1}), x.permute({2, 1, 0}), x.slice(2, 1, x.size(2), 2), x.slice(1, 1, x.size(1), 3),
            x.select(1, 0), x.unsqueeze(3).expand({-1, -1, -1, 3}), x.unsqueeze(0).expand({2, -1, -1, -1})}) {
        CHECK(ls::equal(view.clone(), view.to(ls::kInt64).to(dtype)));
        CHECK(ls::equal(ls::flip(ls::flip(view, {0, -1}), {-1, 0}), view));
      }
      const ls::Tensor to = base.slice(1, 1, base.size(1), 2).permute({1, 2, 0});
      to.copy_(x);
      CHECK(ls::equal(to.to(ls::kInt64), x.to(ls::kInt64)));
      CHECK(ls::all(base.slice(1, 0, base.size(1), 2) == 0).item<bool>());
    }
  };
  for (const ls::Shape& shape : std::vector<ls::Shape>{{2, 3, 5}, {3, 70, 17}, {65, 2, 130}, {40, 33, 3}, {2, 200, 90}})
    check((ls::arange(shape.numel()) % 251).view(shape));
}

TEST_CASE("sizes that overflow are refused") {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const ls::Tensor x = ls::ones({4});
  CHECK(contains(error_of([&] { x.narrow(0, 1, kLargest); }), "narrow: [1, 1 + "));
  CHECK(contains(error_of([&] { ls::ones({1, 1}).expand({kLargest / 8, 64}); }), "expand: shape"));
  CHECK(contains(error_of([&] { x.repeat({kLargest}); }), "too many elements"));
  for (const ls::PadMode mode : {ls::PadMode::kConstant, ls::PadMode::kReplicate})
    CHECK(contains(error_of([&] { ls::pad(x, {0, kLargest}, {.mode = mode}); }), "is too large"));
}

TEST_CASE("the error for an accessor says what to call instead") {
  const ls::Tensor x = ls::ones({2, 3});
  CHECK(contains(error_of([&] { x.accessor<float, 1>(); }), "use accessor<T, 2>()"));
  CHECK(contains(error_of([&] { x.accessor<double, 2>(); }), "call to(f64) first"));
}
