// MultiheadAttention compared with PyTorch's module with the same weights.
#include "support.h"

namespace {

struct Case {
  std::string name;
  nn::MultiheadAttentionOptions options = {};
  std::vector<std::string> masks = {};  // tensors of the golden file
  bool is_causal = false;
  int inputs = 1;
};

// Values and gradients of one case; with batch_first = false on transposed inputs.
void check_case(const Case& c, bool batch_first) {
  const ls::StateDict dict = golden("attention");
  for (const std::string& tag : float_tags()) {
    const std::string prefix = c.name + "." + tag + "/";
    INFO(prefix);
    nn::MultiheadAttentionOptions options = c.options;
    options.batch_first = batch_first;
    nn::MultiheadAttention module(6, 3, options);
    load_case(module, dict, prefix, tag);
    const Tolerance allowed = tag == "f32" ? Tolerance{1e-5, 2e-6} : Tolerance{1e-12, 1e-13};
    const auto turned = [&](const ls::Tensor& x) { return batch_first ? x : x.transpose(0, 1); };
    std::vector<ls::Tensor> leaves;
    for (int i = 0; i < c.inputs; ++i) {
      const char* const names[] = {"query", "key", "value"};
      leaves.push_back(turned(dict.at(prefix + names[i])).clone().requires_grad_());
    }
    nn::MultiheadAttentionMasks masks{.is_causal = c.is_causal};
    for (const std::string& name : c.masks)
      (name == "attn_mask" ? masks.attn_mask : masks.key_padding_mask) = dict.at(prefix + name);
    const bool self = c.inputs == 1;
    const ls::Tensor y = module.forward(leaves[0], self ? leaves[0] : leaves[1], self ? leaves[0] : leaves[2], masks);
    check_close(turned(y), dict.at(prefix + "y"), "y", allowed);
    y.backward(turned(dict.at(prefix + "grad_y")));
    for (const auto& [key, p] : module.named_parameters())
      check_close(p->grad(), dict.at(prefix + "grad_" + key), key, allowed);
    check_close(turned(leaves[0].grad()), dict.at(prefix + "grad_query"), "query", allowed);
    if (!self) check_close(turned(leaves[1].grad()), dict.at(prefix + "grad_key"), "key", allowed);
    if (!self) check_close(turned(leaves[2].grad()), dict.at(prefix + "grad_value"), "value", allowed);
  }
}

}  // namespace

TEST_CASE("MultiheadAttention has PyTorch's values and gradients with PyTorch's weights") {
  check_case({.name = "mha_unbatched"}, true);
  for (const bool batch_first : {true, false}) {
    check_case({.name = "mha_self"}, batch_first);
    check_case({.name = "mha_cross", .inputs = 3}, batch_first);
    check_case({.name = "mha_no_bias", .options = {.bias = false}}, batch_first);
    check_case({.name = "mha_causal", .is_causal = true}, batch_first);
    check_case({.name = "mha_causal", .masks = {"attn_mask"}, .is_causal = true}, batch_first);
    check_case({.name = "mha_padding", .masks = {"key_padding_mask"}}, batch_first);
    check_case({.name = "mha_padding_and_mask", .masks = {"key_padding_mask", "attn_mask"}}, batch_first);
    check_case({.name = "mha_padding_and_mask", .masks = {"key_padding_mask"}, .is_causal = true}, batch_first);
    check_case({.name = "mha_added_mask", .masks = {"attn_mask"}}, batch_first);
    check_case({.name = "mha_mask_of_heads", .masks = {"attn_mask"}}, batch_first);
  }
}

TEST_CASE("MultiheadAttention's parameters have PyTorch's names, shapes and initial values") {
  ls::manual_seed(3);
  nn::MultiheadAttention module(64, 4);
  std::vector<std::string> names;
  for (const auto& [name, p] : module.named_parameters()) names.push_back(name + " " + p->shape().to_string());
  CHECK(names == std::vector<std::string>{"in_proj_weight (192, 64)", "in_proj_bias (192)", "out_proj.weight (64, 64)",
                                          "out_proj.bias (64)"});
  const double bound = std::sqrt(6.0 / 256), bound_out = 1 / 8.0;
  const auto largest = [](const ls::Tensor& x) { return ls::abs(x.detach()).max().item<double>(); };
  CHECK(largest(module.in_proj_weight) <= bound);
  CHECK(largest(module.in_proj_weight) > 0.99 * bound);
  CHECK(largest(module.out_proj.weight) <= bound_out);
  CHECK(largest(module.out_proj.weight) > 0.99 * bound_out);
  CHECK(largest(module.in_proj_bias) == 0);
  CHECK(largest(module.out_proj.bias) == 0);
  CHECK(nn::MultiheadAttention(4, 2, {.bias = false}).named_parameters().size() == 2);
}

TEST_CASE("MultiheadAttention applies dropout while training only, and runs as a module of one or three inputs") {
  ls::manual_seed(3);
  nn::MultiheadAttention module(8, 2, {.dropout = 0.5});
  const ls::Tensor x = numbers({2, 5, 8});
  CHECK_FALSE(ls::equal(module(x), module(x)));
  module.eval();
  CHECK(ls::equal(module(x), module(x)));
  CHECK(ls::equal(module(x), module({x, x, x})));
  CHECK_FALSE(ls::equal(module(x), module({x, x, x * 2})));
}

TEST_CASE("MultiheadAttention's errors name the operands") {
  CHECK(error_of([] { nn::MultiheadAttention(6, 4); }) ==
        "MultiheadAttention: width 6 and 4 heads; expected a width divisible by the number of heads");
  CHECK(contains(error_of([] { nn::MultiheadAttention(6, 2, {.dropout = 2}); }), "dropout is 2, expected 0 to 1"));
  const nn::MultiheadAttention module(6, 2);
  const ls::Tensor x = ls::ones({2, 4, 6});
  CHECK(contains(error_of([&] { module(ls::ones({2, 4, 5})); }), "query is (2, 4, 5) f32 cpu"));
  CHECK(contains(error_of([&] { module({x, x, ls::ones({2, 3, 6})}); }), "expected key and value of equal shape"));
  const ls::Tensor one = ls::ones({1, 4, 6});
  CHECK(contains(error_of([&] { module({x, one, one}); }), "equal batch sizes"));
  CHECK(contains(error_of([&] { module({x, x}); }), "called with 2 inputs, expected one, or query, key and value"));
  CHECK(contains(error_of([&] {
                   (void)module.forward(x, x, x, {.attn_mask = ls::ones({4, 3})});
                 }),
                 "attn_mask is (4, 3) f32 cpu, expected shape (4, 4) or, for every head, (4, 4, 4)"));
  CHECK(contains(error_of([&] {
                   (void)module.forward(x, x, x, {.key_padding_mask = ls::ones({4, 4})});
                 }),
                 "key_padding_mask is (4, 4) f32 cpu, expected shape (2, 4)"));
  CHECK(contains(error_of([&] {
                   (void)module.forward(x, x, x, {.key_padding_mask = ls::ones({2, 4}, {.dtype = ls::kInt64})});
                 }),
                 "expected bool or floating point"));
}
