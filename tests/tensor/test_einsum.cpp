// einsum compared with PyTorch: the equations are in the golden file's metadata. Errors name operand and subscript.
#include "tests/support/golden_case.h"

TEST_CASE("einsum has PyTorch's values and gradients for the equations of the golden file") {
  ls::Metadata equations;
  const ls::StateDict file = ls::load(LOCKSTEP_GOLDEN_DIR "/tensor_ops.safetensors", &equations);
  int cases = 0;
  for (const auto& [key, equation] : equations) {
    if (!key.starts_with("einsum/")) continue;
    ++cases;
    std::vector<std::string> names;
    for (int i = 0; file.contains(key + "/x" + std::to_string(i)); ++i) names.push_back("x" + std::to_string(i));
    const std::string& text = equation;
    check_case(file, key, names, [&](const Inputs& in) { return ls::einsum(text, in); });
  }
  CHECK(cases == 21);
}

TEST_CASE("einsum multiplies integers, and follows the promotion of its products") {
  const ls::Tensor a = ls::tensor({{1, 2}, {3, 4}});
  CHECK(ls::equal(ls::einsum("ij,jk", {a, a}), ls::matmul(a, a)));
  CHECK(ls::einsum("ij,ij", {a, a}).item<int>() == 30);
  CHECK(ls::equal(ls::einsum(" i j -> j i ", {a}), a.t()));
}

TEST_CASE("errors of einsum name the operand and the subscript") {
  const ls::Tensor a = ls::zeros({2, 3}), b = ls::zeros({4, 3});
  const auto error = [&](const std::string& equation, const std::vector<ls::Tensor>& operands) {
    return error_of([&] { ls::einsum(equation, operands); });
  };
  CHECK(contains(error("ij,jk", {a, b}),
                 "einsum: subscript j is 3 in operand 0, (2, 3) f32 cpu, and 4 in operand 1, (4, 3) f32 cpu"));
  CHECK(contains(error("ijk,jk", {a, b}), "einsum: \"ijk,jk\" has 3 subscripts for operand 0, (2, 3) f32 cpu"));
  CHECK(contains(error("i...jk", {a}), "has 3 subscripts for operand 0"));
  CHECK(contains(error("ij,jk", {a}), "einsum: \"ij,jk\" has 2 operands, but 1 tensors are given"));
  CHECK(contains(error("ij->ik", {a}), "einsum: output subscript k of \"ij->ik\" must occur once"));
  CHECK(contains(error("ij->ii", {a}), "einsum: output subscript i"));
  CHECK(contains(error("i1", {a}), "einsum: \"1\" in \"i1\" is no subscript"));
  CHECK(contains(error("......", {a}), "has two ellipses"));
  CHECK(contains(error("ii", {a}), "einsum: subscript i has sizes 2 and 3 in (2, 3) f32 cpu"));
  CHECK(contains(error("...i,...i", {a, b}), "einsum: subscript ... is 2 in operand 0"));
}
