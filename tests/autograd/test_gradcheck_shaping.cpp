// Gradient checks of first and second order for rearranging, padding, indexing by tensors, products of elements and
// einsum; part of the tables of test_gradcheck_ops.cpp.
#include "tests/support/gradcheck_table.h"

namespace gradcheck_table {

namespace {

using Function = std::function<ls::Tensor(const ls::Tensor&)>;

void one(const std::string& op, const Shape& shape, const Function& f) {
  check(op, {shape}, [&](const Inputs& in) { return curved(f(in[0])); });
}

void check_writing() {
  const ls::Tensor rows = ls::tensor({{0, 2, 2}, {2, 2, 0}, {2, 1, 0}});
  check("scatter", {{3, 4}, {3, 3}},
        [&](const Inputs& in) { return curved(ls::scatter(curved(in[0]), 0, rows, curved(in[1]))); });
  one("scatter", {3, 4}, [&](const ls::Tensor& x) { return ls::scatter(x, 1, rows, 0.5); });
  for (const std::string reduce : {"sum", "mean", "prod", "amax", "amin"}) {
    for (const bool own : {true, false})
      check("scatter_reduce", {{3, 4}, {3, 3}}, [&](const Inputs& in) {
        return curved(ls::scatter_reduce(curved(in[0]), 0, rows, curved(in[1]), reduce, own));
      });
  }
  check("index_add", {{2, 4}, {2, 3}}, [](const Inputs& in) {
    return curved(ls::index_add(in[0], 1, ls::tensor({2, 0, 2}), in[1], 0.5));
  });
  one("masked_select", {2, 3}, [](const ls::Tensor& x) { return ls::masked_select(x, x.detach() > 0); });
  const std::vector<ls::TensorIndex> pairs = {ls::tensor({0, 2, 0}), ls::indexing::Slice(), ls::tensor({1, 0, 1})};
  one("index", {3, 2, 2}, [&](const ls::Tensor& x) { return x.index(pairs); });
  one("index", {3, 2, 2}, [&](const ls::Tensor& x) { return x.index({"...", ls::indexing::None, -1}); });
  for (const bool accumulate : {false, true})
    check("index_put", {{3, 2, 2}, {1, 2}},
          [&](const Inputs& in) { return curved(ls::index_put(curved(in[0]), pairs, curved(in[1]), accumulate)); });
}

void check_products_of_elements() {
  for (const std::int64_t dim : {0, 1}) {
    one("prod", {4, 5}, [=](const ls::Tensor& x) { return ls::prod(x, dim); });
    one("prod", {4, 5},
        [=](const ls::Tensor& x) { return ls::prod(x * (x.detach() > 0).to(ls::kFloat64), dim, true); });
    one("normalize", {2, 3}, [=](const ls::Tensor& x) { return ls::normalize(x, 2, dim); });
    check("cosine_similarity", {{2, 3}, {3}},
          [=](const Inputs& in) { return curved(ls::cosine_similarity(in[0], in[1], dim)); });
  }
  one("prod", {2, 3}, [](const ls::Tensor& x) { return ls::prod(x); });
  one("var_mean", {2, 3}, [](const ls::Tensor& x) { return ls::var_mean(x, 1).first * ls::var_mean(x, 1).second; });
  one("std_mean", {2, 3}, [](const ls::Tensor& x) { return ls::std_mean(x).first * ls::std_mean(x).second; });
}

}  // namespace

void check_shaping() {
  one("flip", {2, 3, 2}, [](const ls::Tensor& x) { return ls::flip(x, {0, -1}); });
  one("roll", {3, 4}, [](const ls::Tensor& x) { return ls::roll(x, {1, -2}, {0, 1}) + ls::roll(x, 3); });
  one("tile", {2, 3}, [](const ls::Tensor& x) { return ls::tile(x, {2, 1, 2}); });
  one("repeat_interleave", {2, 3}, [](const ls::Tensor& x) {
    return x.repeat_interleave(2, 1) * ls::repeat_interleave(x, ls::tensor({3, 0, 3}), 1);
  });
  one("movedim", {2, 3, 4}, [](const ls::Tensor& x) { return ls::movedim(x, {0, 1}, {-1, 0}); });
  one("unbind", {3, 2}, [](const ls::Tensor& x) { return ls::unbind(x)[0] * x.unbind(0)[2]; });
  one("split", {3, 2}, [](const ls::Tensor& x) { return ls::split(x, {1, 2})[1]; });
  check("meshgrid", {{2}, {3}}, [](const Inputs& in) {
    const auto grids = ls::meshgrid({in[0], in[1]}, "xy");
    return curved(grids[0]) * grids[1];
  });
  one("diagonal", {3, 2, 4}, [](const ls::Tensor& x) { return ls::diagonal(x, -1, 2, 0); });
  one("diag", {3, 4}, [](const ls::Tensor& x) { return ls::diag(ls::diag(x, 1), -1); });
  for (const auto mode :
       {ls::PadMode::kConstant, ls::PadMode::kReflect, ls::PadMode::kReplicate, ls::PadMode::kCircular})
    one("pad", {3, 4}, [=](const ls::Tensor& x) { return ls::pad(x, {2, -1, 1, 2}, {.mode = mode, .value = 0.5}); });
  one("reshape", {2, 6}, [](const ls::Tensor& x) { return ls::reshape(x, {3, -1}); });
  one("flatten", {2, 3, 2}, [](const ls::Tensor& x) { return ls::flatten(x, 1); });
  one("transpose", {2, 3}, [](const ls::Tensor& x) { return ls::transpose(x, 0, -1); });
  one("permute", {2, 3, 2}, [](const ls::Tensor& x) { return ls::permute(x, {2, 0, 1}); });
  one("squeeze", {1, 3, 1}, [](const ls::Tensor& x) { return ls::squeeze(ls::squeeze(x, 0)); });
  one("unsqueeze", {2, 3}, [](const ls::Tensor& x) { return ls::unsqueeze(x, 1); });
  check_writing(), check_products_of_elements();
}

void check_contractions() {
  const auto two = [](const std::string& op, const Shape& a, const Shape& b, auto f) {
    check(op, {a, b}, [&](const Inputs& in) { return curved(f(in[0], in[1])); });
  };
  two("mm", {2, 3}, {3, 2}, [](const ls::Tensor& a, const ls::Tensor& b) { return a.mm(b); });
  two("bmm", {2, 2, 3}, {2, 3, 1}, [](const ls::Tensor& a, const ls::Tensor& b) { return ls::bmm(a, b); });
  two("dot", {3}, {3}, [](const ls::Tensor& a, const ls::Tensor& b) { return a.dot(b); });
  two("outer", {2}, {3}, [](const ls::Tensor& a, const ls::Tensor& b) { return ls::outer(a, b); });
  check("addmm", {{3}, {2, 2}, {2, 3}}, [](const Inputs& in) {
    return curved(ls::addmm(in[0], in[1], in[2], 0.5, 2)) + ls::addmm(in[0], in[1], in[2], 0);
  });
  check("baddbmm", {{2, 1, 3}, {2, 2, 2}, {2, 2, 3}},
        [](const Inputs& in) { return curved(ls::baddbmm(in[0], in[1], in[2])); });
  two("einsum", {2, 3, 2}, {2, 2, 4}, [](const ls::Tensor& a, const ls::Tensor& b) {
    return ls::einsum("bij,bjk->kbi", {a, b});
  });
  two("einsum", {2, 2, 3}, {1, 3}, [](const ls::Tensor& a, const ls::Tensor& b) {
    return ls::einsum("ii...,...->i", {a, b});
  });
  check("einsum", {{2, 3}, {2, 3, 2}, {2}}, [](const Inputs& in) { return curved(ls::einsum("ab,abc,c", in)); });
}

}  // namespace gradcheck_table

TEST_CASE("rearranging, writing by index and products of elements have correct first and second derivatives") {
  gradcheck_table::check_shaping();
}
TEST_CASE("contractions have correct first and second derivatives") { gradcheck_table::check_contractions(); }
