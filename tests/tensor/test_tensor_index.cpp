// Tensor::index, index_put and index_put_ compared with Python's x[...] of PyTorch.
#include <map>

#include "tests/support/golden_case.h"

namespace {

using ls::indexing::Ellipsis;
using ls::indexing::None;
using ls::indexing::Slice;
using Indices = std::vector<ls::TensorIndex>;
using Ints = std::vector<std::int64_t>;

// The same names and indices as in golden_tensor_ops.py.
std::map<std::string, Indices> all_indices() {
  const auto t = [](std::initializer_list<std::int64_t> values) {
    return ls::tensor(std::vector<std::int64_t>(values));
  };
  const ls::Tensor mask =
      ls::tensor({{true, false, false, true}, {false, false, false, false}, {false, true, false, false}});
  return {{"integer", {1}},
          {"slice", {Slice(1, 3), Slice(None, None, 2)}},
          {"negative", {-1, Slice(-3, -1)}},
          {"ellipsis", {"...", 0}},
          {"none", {None, Slice(), None, 1}},
          {"rows", {t({2, 0, 2})}},
          {"columns", {Slice(), t({3, -1})}},
          {"pairs", {t({0, 2}), t({1, -4})}},
          {"grid", {ls::tensor({{0}, {2}}), t({1, 3, 3})}},
          {"apart", {t({0, 2}), Slice(), t({1, 4})}},
          {"apart_first", {Slice(1, 3), t({1, -1}), 2}},
          {"last_two", {Slice(), ls::tensor({{0, 1}}), ls::tensor({{3}, {2}})}},
          {"mask", {ls::tensor({true, false, true})}},
          {"mask_2d", {mask}},
          {"mask_columns", {0, Slice(), ls::tensor({true, false, false, true, true})}},
          {"ellipsis_rows", {Ellipsis, t({4, 0})}},
          {"none_rows", {None, t({1, 1}), None}},
          {"empty", {ls::zeros({0}, {.dtype = ls::kInt64})}},
          {"scalar", {ls::tensor(1), Slice(), t({0, 2})}}};
}

}  // namespace

TEST_CASE("index has the values and gradients of Python's x[...]") {
  const ls::StateDict file = golden("tensor_ops");
  for (const auto& [name, indices] : all_indices()) {
    const Indices& own = indices;
    check_case(
        file, "index/" + name, {"x"}, [&](const Inputs& in) { return in[0].index(own); }, "index");
    const ls::Tensor strided = file.at("index/x").permute({2, 0, 1}).contiguous().permute({1, 2, 0});
    check_close(strided.index(own), file.at("index/" + name + "/y"), name);
  }
}

TEST_CASE("index_put and index_put_ have the values and gradients of x[...] = values and x[...] += values") {
  const ls::StateDict file = golden("tensor_ops");
  const ls::Tensor weights = ls::exp(ls::arange(5.0, {.dtype = ls::kFloat64}));
  int cases = 0;
  for (const auto& [name, indices] : all_indices()) {
    for (const bool accumulate : {false, true}) {
      const std::string key = "index_put/" + name + (accumulate ? "/True" : "/False");
      if (!file.contains(key + "/sum")) continue;
      ++cases;
      const ls::Tensor x = file.at("index/x").clone().requires_grad_(),
                       values = file.at(key + "/values").clone().requires_grad_();
      const ls::Tensor out = ls::index_put(x, indices, values, accumulate);
      check_close(ls::matmul(out, weights), file.at(key + "/sum"), key);
      out.backward(file.at(key + "/grad_y"));
      check_close(x.grad(), file.at(key + "/grad_x"), key + "/grad_x");
      check_close(values.grad(), file.at(key + "/grad_values"), key + "/grad_values");
      // In place, in contiguous and in strided memory.
      for (const bool strided : {false, true}) {
        const ls::Tensor own = strided ? x.detach().permute({2, 0, 1}).clone().permute({1, 2, 0}) : x.detach().clone();
        own.index_put_(indices, values.detach(), accumulate);
        CHECK_MESSAGE(same_bits(own, out.detach()), key);
      }
    }
  }
  CHECK(cases == 34);
}

TEST_CASE("integers, slices and None give views; tensors give copies") {
  const ls::Tensor x = ls::arange(6).view({2, 3});
  x.index({Slice(), 1}).fill_(9);
  CHECK(x.to_vector<std::int64_t>() == Ints{0, 9, 2, 3, 9, 5});
  x.index({ls::tensor({0})}).fill_(1);
  CHECK(x.to_vector<std::int64_t>() == Ints{0, 9, 2, 3, 9, 5});
  x.index_put_({ls::tensor({1, 0}), 2}, ls::tensor({7, 8}));
  CHECK(x.to_vector<std::int64_t>() == Ints{0, 9, 8, 3, 9, 7});
  x.index_put_({x == 9}, -1);
  CHECK(x.to_vector<std::int64_t>() == Ints{0, -1, 8, 3, -1, 7});
  x.index_put_({"...", Slice(None, 2)}, 0);
  CHECK(x.to_vector<std::int64_t>() == Ints{0, 0, 8, 0, 0, 7});
  const ls::Tensor all = ls::arange(4);
  all.index_put_({ls::tensor({3, 2, 1, 0})}, all);  // the values share memory with the elements
  CHECK(all.to_vector<std::int64_t>() == Ints{3, 2, 1, 0});
  all.index_put_({ls::tensor({0, 0, 0})}, ls::tensor({1, 2, 3}), true);
  CHECK(all[0].item<int>() == 9);
  all.index_put_({ls::tensor({0, 0})}, ls::tensor({1, 2}));
  CHECK(all[0].item<int>() == 2);
}

TEST_CASE("a mask of no dimensions adds a dimension of size 1 or 0, as in PyTorch") {
  const ls::Tensor x = ls::tensor(3.0, {.requires_grad = true});
  CHECK(x.index({x > 0}).shape() == ls::Shape{1});
  CHECK(x.index({x < 0}).shape() == ls::Shape{0});
  ls::sum(x.index({x > 0}) * 2 + ls::sum(x.index({x < 0}))).backward();
  CHECK(x.grad().item<double>() == 2);
  const ls::Tensor y = ls::tensor(3);
  y.index_put_({y > 0}, 5);
  y.index_put_({y < 0}, 7);
  CHECK(y.item<int>() == 5);
  const ls::Tensor m = ls::arange(6).view({2, 3}), yes = ls::tensor(true), no = ls::tensor(false);
  CHECK(m.index({yes}).shape() == ls::Shape{1, 2, 3});
  CHECK(m.index({no}).shape() == ls::Shape{0, 2, 3});
  CHECK(m.index({yes, 1}).to_vector<std::int64_t>() == Ints{3, 4, 5});
  CHECK(m.index({1, yes}).shape() == ls::Shape{1, 3});
  CHECK(m.index({ls::tensor({1, 0}), yes}).to_vector<std::int64_t>() == Ints{3, 4, 5, 0, 1, 2});
  CHECK(m.index({"...", None, yes}).shape() == ls::Shape{2, 3, 1, 1});
}

TEST_CASE("errors of index name the index and the tensor") {
  const ls::Tensor x = ls::zeros({3, 4}), leaf = ls::zeros({3}, {.requires_grad = true});
  CHECK(contains(error_of([&] {
                   x.index({0, 0, 0});
                 }),
                 "index: indices for 3 dimensions, 0 of them \"...\", of (3, 4)"));
  CHECK(contains(error_of([&] { x.index({"...", Ellipsis}); }), "2 of them \"...\""));
  CHECK(contains(error_of([&] { x.index({"..", 0}); }), "the only text that is an index is \"...\""));
  CHECK(contains(error_of([&] { x.index({3}); }), "index: index 3 is outside [-3, 3)"));
  CHECK(contains(error_of([&] {
                   x.index({Slice(), ls::tensor({4})});
                 }),
                 "index: a position of (1) i64 cpu is outside [-4, 4) of dimension 1 of (3, 4) f32 cpu"));
  CHECK(contains(error_of([&] { x.index({ls::tensor({true, false})}); }), "index: the mask (2) bool cpu does not fit"));
  CHECK(contains(error_of([&] { x.index({ls::tensor({1.0})}); }), "index: an index tensor must be i64, i32 or bool"));
  CHECK(contains(error_of([&] { x.index({ls::tensor({0, 1}), ls::tensor({0, 1, 2})}); }), "index: shapes do not"));
  CHECK(contains(error_of([&] { x.index({Slice(None, None, -1)}); }), "index: step -1"));
  CHECK(contains(error_of([&] {
                   x.index_put_({ls::tensor({0})}, ls::zeros({2, 4}));
                 }),
                 "index_put_: values (2, 4) f32 cpu do not broadcast to the selected elements (1, 4)"));
  CHECK(contains(error_of([&] {
                   x.index_put_({ls::tensor({0})}, ls::tensor({1, 2, 3, 4}));
                 }),
                 "index_put_: operands of different dtypes"));
  CHECK(contains(error_of([&] { leaf.index_put_({0}, 1); }), "index_put_: (3) f32 cpu requires grad"));
}
