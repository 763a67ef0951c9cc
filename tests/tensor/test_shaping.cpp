// Rearranging, repeating, padding and products by other names: PyTorch's values and gradients, and errors.
#include "tests/support/golden_case.h"

namespace {

using Ints = std::vector<std::int64_t>;
using Function = std::function<ls::Tensor(const ls::Tensor&)>;

Ints ints(const ls::Tensor& x) { return x.to_vector<std::int64_t>(); }

}  // namespace

TEST_CASE("rearranging, repeating and padding have PyTorch's values and gradients") {
  const ls::StateDict file = golden("tensor_ops");
  const auto one = [&](const std::string& name, const Function& f) {
    check_case(file, name, {"x"}, [&](const Inputs& in) { return f(in[0]); });
  };
  one("flip", [](const ls::Tensor& x) { return ls::flip(x, {0, 2}); });
  one("roll", [](const ls::Tensor& x) { return ls::roll(x, {1, -2}, {0, 1}); });
  one("roll_flat", [](const ls::Tensor& x) { return x.roll(5); });
  one("tile", [](const ls::Tensor& x) { return ls::tile(x, {2, 1, 3}); });
  one("repeat_interleave", [](const ls::Tensor& x) { return x.repeat_interleave(2, 1); });
  one("repeat_interleave_flat", [](const ls::Tensor& x) { return ls::repeat_interleave(x, 3); });
  one("repeat_interleave_counts", [](const ls::Tensor& x) {
    return ls::repeat_interleave(x, ls::tensor({2, 0, 3}), 1);
  });
  one("movedim", [](const ls::Tensor& x) { return ls::movedim(x, {0, 1}, {2, 0}); });
  one("diagonal", [](const ls::Tensor& x) { return ls::diagonal(x, 1, 0, 2); });
  one("diagonal_below", [](const ls::Tensor& x) { return x.diagonal(-1); });
  one("diag", [](const ls::Tensor& x) { return ls::diag(x, -1); });
  one("diag_of_matrix", [](const ls::Tensor& x) { return ls::diag(x, 1); });
  one("pad", [](const ls::Tensor& x) { return ls::pad(x, {1, 2, 0, 1}, {.value = 1.5}); });
  one("pad_negative", [](const ls::Tensor& x) { return ls::pad(x, {-1, 2}); });
  const std::vector<std::pair<std::string, ls::PadMode>> modes = {{"pad_reflect", ls::PadMode::kReflect},
                                                                  {"pad_replicate", ls::PadMode::kReplicate},
                                                                  {"pad_circular", ls::PadMode::kCircular}};
  for (const auto& each : modes)
    one(each.first, [&](const ls::Tensor& x) { return ls::pad(x, {2, 1, 1, 2}, {.mode = each.second}); });
  for (const std::string indexing : {"ij", "xy"})
    check_case(file, "meshgrid_" + indexing, {"a", "b", "c"}, [&](const Inputs& in) {
      return ls::stack(ls::meshgrid({in[0], in[1], in[2]}, indexing));
    });
}

TEST_CASE("addmm, baddbmm and outer have PyTorch's values and gradients; mm, bmm and dot are matmul") {
  const ls::StateDict file = golden("tensor_ops");
  check_case(file, "addmm", {"x", "a", "b"}, [](const Inputs& in) { return ls::addmm(in[0], in[1], in[2], 0.5, 2); });
  check_case(file, "baddbmm", {"x", "a", "b"}, [](const Inputs& in) { return ls::baddbmm(in[0], in[1], in[2], 2); });
  check_case(file, "outer", {"a", "b"}, [](const Inputs& in) { return ls::outer(in[0], in[1]); });
  const ls::Tensor a = numbers({2, 3}), b = numbers({3, 2}), c = numbers({2, 3, 2});
  CHECK(same_bits(a.mm(b), ls::matmul(a, b)));
  CHECK(same_bits(ls::bmm(c, c.transpose(1, 2)), ls::matmul(c, c.transpose(1, 2))));
  CHECK(same_bits(a[0].dot(a[1]), ls::matmul(a[0], a[1])));
  CHECK(ls::equal(ls::addmm(ls::full({2}, kNan), a, b, 0), a.mm(b)));  // beta 0: x is ignored, NaN included
  CHECK(contains(error_of([&] { ls::mm(c, b); }), "mm: needs operands of 2 dimensions, got (2, 3, 2) f32 cpu"));
  CHECK(contains(error_of([&] { ls::bmm(c, numbers({1, 2, 3})); }), "bmm: batch sizes differ"));
  CHECK(contains(error_of([&] { ls::dot(a[0], b); }), "dot: needs operands of 1 dimensions"));
}

TEST_CASE("shapes without elements, whole dimensions, 0-d tensors") {
  const ls::Tensor x = ls::arange(6).view({2, 3}), none = ls::zeros({0, 3});
  CHECK(ls::flip(none, {0, 1}).shape() == ls::Shape{0, 3});
  CHECK(ls::roll(none, 1, 0).shape() == ls::Shape{0, 3});
  CHECK(ints(ls::roll(x, {7}, {1})) == Ints{2, 0, 1, 5, 3, 4});
  CHECK(ints(ls::flip(x.t(), 0)) == Ints{2, 5, 1, 4, 0, 3});
  CHECK(ls::flip(ls::tensor(3), ls::Shape()).item<int>() == 3);
  CHECK(ls::repeat_interleave(x, 0, 1).shape() == ls::Shape{2, 0});
  CHECK(ints(ls::repeat_interleave(ls::tensor({4, 5}), ls::tensor({2}))) == Ints{4, 4, 5, 5});
  CHECK(ls::diagonal(x, 5).shape() == ls::Shape{0});
  CHECK(ints(ls::diag(ls::tensor({1, 2}), 1)) == Ints{0, 1, 0, 0, 0, 2, 0, 0, 0});
  CHECK(ls::movedim(x, -1, 0).shape() == ls::Shape{3, 2});
  CHECK(ints(ls::tile(x[0], 2)) == Ints{0, 1, 2, 0, 1, 2});
  CHECK(ints(ls::pad(x, {1, 0}, {.value = 1.5})) == Ints{1, 0, 1, 2, 1, 3, 4, 5});
  CHECK(ints(ls::pad(ls::arange(3), {-2, 3})) == Ints{2, 0, 0, 0});
  const ls::Tensor once = x.repeat_interleave(1, 0);  // a copy in every case
  once.fill_(9);
  CHECK(x[0][0].item<int>() == 0);
}

TEST_CASE("split by sizes and unbind give views") {
  const ls::Tensor x = ls::arange(10).view({5, 2});
  const auto parts = ls::split(x, {1, 0, 4});
  REQUIRE(parts.size() == 3);
  CHECK(parts[1].shape() == ls::Shape{0, 2});
  CHECK(ints(parts[0]) == Ints{0, 1});
  CHECK(parts[2].shape() == ls::Shape{4, 2});
  const auto columns = x.unbind(1);
  REQUIRE(columns.size() == 2);
  columns[1].fill_(7);
  CHECK(ints(x[0]) == Ints{0, 7});
  CHECK(contains(error_of([&] { ls::split(x, {1, 2}); }), "split: sizes of 3 in total for dimension 0 of (5, 2) i64"));
  CHECK(contains(error_of([&] { x.split({6, -1}); }), "expected sizes of at least 0"));
}

TEST_CASE("errors of shaping operations name the operation and the operand") {
  const ls::Tensor x = ls::zeros({2, 3});
  CHECK(contains(error_of([&] { ls::flip(x, {0, 0}); }), "flip: a dimension appears twice"));
  CHECK(contains(error_of([&] { ls::flip(x, 2); }), "flip: dimension 2 is outside"));
  CHECK(contains(error_of([&] { ls::roll(x, {1, 2}, {0}); }), "roll: 2 shifts for 1 dimensions"));
  CHECK(contains(error_of([&] { ls::pad(x, {1}); }), "pad: 1 widths for (2, 3) f32 cpu"));
  CHECK(contains(error_of([&] { ls::pad(x, {-2, -2}); }), "pad: widths -2 and -2 remove more than dimension 1"));
  CHECK(contains(error_of([&] { ls::pad(x, {3, 0}, {.mode = ls::PadMode::kReflect}); }), "reflect allows at most 2"));
  CHECK(contains(error_of([&] { ls::meshgrid({x}); }), "meshgrid: (2, 3) f32 cpu has more than one dimension"));
  CHECK(contains(error_of([&] { ls::meshgrid({x[0]}, "yx"); }), "meshgrid: indexing \"yx\""));
  CHECK(contains(error_of([&] { ls::movedim(x, {0, 0}, {0, 1}); }), "movedim: a dimension appears twice"));
  CHECK(contains(error_of([&] { ls::diagonal(x, 0, 1, -1); }), "diagonal: dimensions 1 and -1"));
  CHECK(contains(error_of([&] { ls::diag(ls::zeros({1, 1, 1})); }), "diag: needs one or two dimensions"));
  CHECK(contains(error_of([&] { ls::repeat_interleave(x, ls::tensor({1, 2}), 1); }), "expected one integer, or 3 for"));
  CHECK(contains(error_of([&] { ls::repeat_interleave(x, -1, 1); }), "repeat_interleave: -1 repeats"));
}
