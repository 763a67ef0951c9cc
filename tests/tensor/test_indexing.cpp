// Joining, splitting, indexing and sorting.
#include "tests/support/golden_case.h"

namespace {
using Ints = std::vector<std::int64_t>;
using Doubles = std::vector<double>;
}  // namespace

TEST_CASE("index_select, gather and scatter_add have PyTorch's values and gradients") {
  const ls::StateDict file = golden("ops");
  for (const std::string dim : {"0", "1", "-1"}) {
    const std::int64_t d = std::stoll(dim);
    check_case(file, "index_select/" + dim + ".f64", {"x", "index"},
               [d](const Inputs& in) { return ls::index_select(in[0], d, in[1]); });
    if (d < 0) continue;
    check_case(file, "gather/" + dim + ".f64", {"x", "index"},
               [d](const Inputs& in) { return ls::gather(in[0], d, in[1]); });
    check_case(file, "scatter_add/" + dim + ".f64", {"x", "index", "src"},
               [d](const Inputs& in) { return ls::scatter_add(in[0], d, in[1], in[2]); });
  }
}

TEST_CASE("sort and topk have PyTorch's values, positions and gradients") {
  const ls::StateDict file = golden("ops");
  for (const std::string dim : {"0", "1"})
    check_case(file, "sort/" + dim + ".f64", {"x"},
               [&](const Inputs& in) { return ls::sort(in[0], std::stoll(dim)).first; });
  check_case(file, "topk/2.f64", {"x"}, [](const Inputs& in) { return ls::topk(in[0], 2, 1).first; });
  const ls::Tensor& x = file.at("topk/2.f64/x");
  check_close(ls::topk(x, 2, 1).second, file.at("topk/2.f64/indices"), "topk");
  check_close(ls::sort(x, 1).second, file.at("sort_of_topk.f64/indices"), "sort");
}

TEST_CASE("sort is stable and NaN counts as the largest value") {
  const ls::StateDict file = golden("ops");
  for (const std::string name : {"ascending", "descending"}) {
    for (const ls::DType dtype : {ls::kFloat64, ls::kFloat32}) {
      const auto [values, indices] = ls::sort(file.at("sort_ties.f64/x").to(dtype), 0, name == "descending");
      check_close(values, file.at("sort_ties.f64/" + name + "/values").to(dtype), name);
      check_close(indices, file.at("sort_ties.f64/" + name + "/indices"), name);
    }
  }
}

TEST_CASE("sort and topk work on every dimension, dtype and stride, on 0-d and empty tensors") {
  const ls::Tensor x = ls::tensor({{3, 1, 2}, {9, 8, 7}});
  CHECK(ls::sort(x).first.to_vector<std::int64_t>() == Ints{1, 2, 3, 7, 8, 9});
  CHECK(ls::sort(x, 0, true).second.to_vector<std::int64_t>() == Ints{1, 1, 1, 0, 0, 0});
  CHECK(ls::sort(x.t(), 0).first.to_vector<std::int64_t>() == Ints{1, 7, 2, 8, 3, 9});
  CHECK(ls::sort(x.to(ls::kUInt8), 1, true).first.to_vector<int>() == std::vector<int>{3, 2, 1, 9, 8, 7});
  CHECK(ls::topk(x, 2, -1, false).first.to_vector<std::int64_t>() == Ints{1, 2, 7, 8});
  CHECK(ls::topk(x, 1, 0).second.to_vector<std::int64_t>() == Ints{1, 1, 1});
  CHECK(ls::topk(x, 0).first.shape() == ls::Shape{2, 0});
  CHECK(ls::topk(x.t(), 2, 0).first.to_vector<std::int64_t>() == Ints{3, 9, 2, 8});
  CHECK(ls::sort(ls::tensor(5.0)).first.item<float>() == 5);
  CHECK(ls::topk(ls::tensor(5.0), 1).second.item<int>() == 0);
  CHECK(ls::sort(ls::zeros({0, 3}), 0).first.shape() == ls::Shape{0, 3});
  CHECK(ls::sort(ls::zeros({3, 0})).second.dtype() == ls::kInt64);
  CHECK(contains(error_of([&] { ls::topk(x, 4); }), "k = 4 of 3 elements along dimension 1 of (2, 3) i64 cpu"));
  CHECK(contains(error_of([&] { ls::sort(x, 2); }), "sort: dimension 2"));
}

TEST_CASE("a long sort puts every element in its place") {
  const ls::Tensor x = numbers({3, 5000});
  const auto [values, indices] = ls::sort(x);
  for (std::int64_t row = 0; row < 3; ++row) {
    std::vector<float> want = x[row].to_vector<float>();
    std::sort(want.begin(), want.end());
    CHECK(values[row].to_vector<float>() == want);
  }
  CHECK(same_bits(ls::gather(x, -1, indices), values));
  CHECK(same_bits(ls::topk(x, 10).first, ls::sort(x, -1, true).first.slice(1, 0, 10)));
}

TEST_CASE("cat of long rows: every part of the result is its input, dense or not") {
  const ls::Tensor x = ls::randn({6, 5, 40, 32});
  const std::vector<ls::Tensor> parts = {
      x,
      x.narrow(1, 0, 0),
      x.narrow(1, 1, 3),
      x.narrow(1, 2, 1).expand({6, 7, 40, 32}),
      ls::randn({3, 5, 40, 32}).narrow(0, 1, 1).expand({6, 5, 40, 32}),
      ls::randn({12, 5, 40, 32}).index({ls::indexing::Slice(0, 12, 2)}),
      ls::randn({5, 6, 40, 32}).transpose(0, 1),
      ls::randn({6, 5, 32, 40}).transpose(2, 3),
      ls::randn({6, 5, 40, 33}).narrow(3, 1, 32),
  };
  for (std::size_t first = 0; first < parts.size(); ++first) {
    for (std::size_t count = 1; first + count <= parts.size(); ++count) {
      const std::vector<ls::Tensor> joined(parts.begin() + std::ptrdiff_t(first),
                                           parts.begin() + std::ptrdiff_t(first + count));
      const ls::Tensor out = ls::cat(joined, 1);
      std::int64_t start = 0;
      for (const ls::Tensor& part : joined) {
        CHECK(ls::equal(out.narrow(1, start, part.size(1)), part));
        start += part.size(1);
      }
      CHECK(out.size(1) == start);
    }
  }
  const ls::Tensor long_row = ls::randn({1, 40, 100}), rows = ls::randn({2, 300, 100});
  CHECK(ls::equal(ls::cat({long_row, rows.narrow(0, 1, 1)}, 1).narrow(1, 40, 300), rows.narrow(0, 1, 1)));
  CHECK(ls::equal(ls::cat({rows, rows.narrow(1, 0, 7)}, 1).narrow(1, 300, 7), rows.narrow(1, 0, 7)));
}

TEST_CASE("cat joins along a dimension and promotes") {
  const ls::Tensor a = ls::tensor({{1, 2}}), b = ls::tensor({{3, 4}, {5, 6}});
  CHECK(ls::cat({a, b}).to_vector<std::int64_t>() == Ints{1, 2, 3, 4, 5, 6});
  CHECK(ls::cat({b, b.t()}, -1).to_vector<std::int64_t>() == Ints{3, 4, 3, 5, 5, 6, 4, 6});
  CHECK(ls::cat({a, a.to(ls::kFloat32)}).dtype() == ls::kFloat32);
  CHECK(ls::cat({ls::zeros({0, 2}, {.dtype = ls::kInt64}), b}).shape() == ls::Shape{2, 2});
  CHECK(ls::cat({a}).raw_data() != a.raw_data());
  CHECK(ls::cat({a.to(ls::kFloat16), a.to(ls::kFloat16)}).dtype() == ls::kFloat16);
  CHECK(contains(error_of([] { ls::cat({}); }), "cat: expected at least one tensor"));
  CHECK(contains(error_of([&] { ls::cat({a, ls::ones({1, 3})}); }), "(1, 2) i64 cpu and (1, 3) f32 cpu"));
  CHECK(contains(error_of([&] { ls::cat({a, ls::ones({2})}); }), "numbers of dimensions differ"));
  CHECK(contains(error_of([] { ls::cat({ls::tensor(1.0)}); }), "use stack"));
}

TEST_CASE("stack joins along a new dimension") {
  const ls::Tensor a = ls::tensor({1, 2}), b = ls::tensor({3, 4});
  CHECK(ls::stack({a, b}).to_vector<std::int64_t>() == Ints{1, 2, 3, 4});
  CHECK(ls::stack({a, b}, 1).to_vector<std::int64_t>() == Ints{1, 3, 2, 4});
  CHECK(ls::stack({a, b}, -1).to_vector<std::int64_t>() == Ints{1, 3, 2, 4});
  CHECK(ls::stack({a, b}, -2).shape() == ls::Shape{2, 2});
  CHECK(ls::stack({ls::tensor(1.0), ls::tensor(2.0)}).shape() == ls::Shape{2});
  CHECK(ls::stack({ls::tensor(1.0), ls::tensor(2.0)}, -1).shape() == ls::Shape{2});
  CHECK(contains(error_of([&] { ls::stack({a, ls::ones({3})}); }), "shapes differ"));
  CHECK(contains(error_of([] { ls::stack({}); }), "stack: no tensors"));
}

TEST_CASE("split and chunk give views of PyTorch's sizes") {
  const ls::Tensor x = ls::arange(7);
  const auto sizes = [](const std::vector<ls::Tensor>& parts) {
    Ints out;
    for (const ls::Tensor& part : parts) out.push_back(part.numel());
    return out;
  };
  CHECK(sizes(ls::split(x, 3)) == Ints{3, 3, 1});
  CHECK(sizes(ls::split(x, 10)) == Ints{7});
  CHECK(sizes(ls::chunk(x, 3)) == Ints{3, 3, 1});
  CHECK(sizes(ls::chunk(x, 4)) == Ints{2, 2, 2, 1});
  CHECK(sizes(ls::chunk(x, 5)) == Ints{2, 2, 2, 1});  // four parts, not five
  CHECK(sizes(ls::chunk(x, 9)) == Ints(7, 1));
  CHECK(sizes(ls::split(ls::zeros({0}), 2)) == Ints{0});
  CHECK(ls::split(x, 3)[1].raw_data() == x[3].raw_data());
  CHECK(ls::split(ls::zeros({4, 6}), 4, 1)[1].shape() == ls::Shape{4, 2});
  CHECK(contains(error_of([&] { ls::split(x, 0); }), "split: size 0"));
  CHECK(contains(error_of([&] { ls::chunk(x, 0); }), "chunk: 0 parts"));
}

TEST_CASE("indexing takes i32 and i64, strided inputs, and empty indices") {
  const ls::Tensor x = ls::arange(12).view({3, 4});
  CHECK(ls::index_select(x, 1, ls::tensor({3, 0}, {.dtype = ls::kInt32})).to_vector<std::int64_t>() ==
        Ints{3, 0, 7, 4, 11, 8});
  CHECK(ls::index_select(x.t(), 0, ls::tensor({2})).to_vector<std::int64_t>() == Ints{2, 6, 10});
  CHECK(ls::index_select(x, 0, ls::zeros({0}, {.dtype = ls::kInt64})).shape() == ls::Shape{0, 4});
  CHECK(ls::index_select(x, 0, ls::tensor(1)).shape() == ls::Shape{1, 4});
  CHECK(ls::gather(x.t(), 1, ls::tensor({{2}, {0}})).to_vector<std::int64_t>() == Ints{8, 1});
  CHECK(ls::gather(x, 0, ls::zeros({0, 4}, {.dtype = ls::kInt64})).shape() == ls::Shape{0, 4});
  CHECK(ls::gather(ls::tensor(5.0), 0, ls::tensor(0)).item<float>() == 5);
  CHECK(ls::index_select(x.to(ls::kFloat16), 0, ls::tensor({1})).to_vector<float>() == std::vector<float>{4, 5, 6, 7});
}

TEST_CASE("scatter_add does not change its input, adds duplicates, and takes indices smaller than input and source") {
  const ls::Tensor x = ls::zeros({3, 3}), src = ls::ones({4, 3});
  const ls::Tensor y = ls::scatter_add(x, 0, ls::tensor({{1, 1}, {1, 2}}), src);
  CHECK(y.to_vector<double>() == Doubles{0, 0, 0, 2, 1, 0, 0, 1, 0});
  CHECK(ls::max(x).item<float>() == 0);
  CHECK(ls::scatter_add(ls::zeros({3}, {.dtype = ls::kInt64}), 0, ls::tensor({2, 2}), ls::tensor({4, 5}))
            .to_vector<std::int64_t>() == Ints{0, 0, 9});
  CHECK(ls::scatter_add(x.t(), 1, ls::tensor({{2}}), src).to_vector<double>() == Doubles{0, 0, 1, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("an index outside its dimension, of the wrong dtype or shape is refused before anything is read") {
  const ls::Tensor x = ls::ones({3, 4});
  const auto outside = [&](std::int64_t i) { return ls::tensor({std::int64_t{0}, i}); };
  CHECK(contains(error_of([&] { ls::index_select(x, 0, outside(3)); }), "index_select: index 3 is outside [0, 3)"));
  CHECK(contains(error_of([&] { ls::index_select(x, 1, outside(-1)); }), "index_select: index -1 is outside [0, 4)"));
  CHECK(contains(error_of([&] { ls::gather(x, 1, outside(4).view({2, 1})); }), "gather: index 4"));
  CHECK(contains(error_of([&] { ls::scatter_add(x, 0, outside(5).view({1, 2}), x); }), "scatter_add: index 5"));
  CHECK(contains(error_of([&] { ls::index_select(x, 0, ls::tensor({0.0})); }), "must be i64 or i32, got (1) f32 cpu"));
  CHECK(contains(error_of([&] { ls::index_select(x, 0, ls::tensor({{0}})); }), "1-D index"));
  CHECK(contains(error_of([&] { ls::gather(x, 0, ls::tensor({0})); }), "as many dimensions"));
  CHECK(contains(error_of([&] {
                   ls::gather(x, 0, ls::zeros({1, 5}, {.dtype = ls::kInt64}));
                 }),
                 "larger than (3, 4) f32 cpu in dimension 1"));
  CHECK(contains(error_of([&] {
                   ls::scatter_add(x, 0, ls::zeros({1, 5}, {.dtype = ls::kInt64}), ls::ones({1, 5}));
                 }),
                 "larger"));
  CHECK(contains(error_of([&] {
                   ls::scatter_add(x, 0, ls::zeros({2, 2}, {.dtype = ls::kInt64}), ls::ones({1, 2}));
                 }),
                 "larger than the source"));
  CHECK(contains(
      error_of([&] {
        ls::scatter_add(x, 0, ls::zeros({1, 1}, {.dtype = ls::kInt64}), ls::ones({1, 1}, {.dtype = ls::kFloat64}));
      }),
      "dtypes"));
  CHECK(contains(error_of([] { ls::index_select(ls::zeros({0}), 0, ls::tensor({0})); }), "outside [0, 0)"));
}
