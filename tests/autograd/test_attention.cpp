// scaled_dot_product_attention compared with PyTorch, with its composition of products and softmax, and with closed
// forms.
#include "lockstep/tensor/ops/attention_internal.h"
#include "tests/support/golden_case.h"

namespace {

using ls::AttentionOptions;
using ls::Shape;
using ls::Tensor;

// The formula in public operations; `factors` are those of dropout.
Tensor composition(const Inputs& in, const Tensor& added, bool causal, double scale, const Tensor& factors = {}) {
  Tensor scores = ls::matmul(in[0], in[1].transpose(-1, -2)) * scale;
  if (added.defined()) scores = scores + added;
  if (causal) scores = ls::masked_fill(scores, ls::triu(ls::ones({in[0].size(-2), in[1].size(-2)}), 1) > 0, -kInf);
  Tensor weights = ls::softmax(scores, -1);
  if (factors.defined()) weights = weights * factors;
  return ls::matmul(weights, in[2]);
}

Inputs leaves(const Shape& leading, std::int64_t time, std::int64_t time_k, std::int64_t dim, std::int64_t dim_v,
              ls::DType dtype) {
  Inputs out;
  for (const auto& [rows, columns] : {std::pair{time, dim}, {time_k, dim}, {time_k, dim_v}}) {
    Shape shape = leading;
    shape.push_back(rows), shape.push_back(columns);
    const auto salt = static_cast<std::uint32_t>(out.size()) + 1;
    out.push_back(numbers(shape, {.dtype = dtype, .requires_grad = true}, salt));
  }
  return out;
}

// Compares value and gradients with `expected` of the same leaves.
template <class Expected>
void check_like(const Inputs& in, const AttentionOptions& options, const Expected& expected, const std::string& what) {
  INFO(what);
  const Tolerance allowed = in[0].dtype() == ls::kFloat32 ? Tolerance{1e-5, 2e-5} : Tolerance{1e-12, 1e-13};
  const Tensor y = ls::scaled_dot_product_attention(in[0], in[1], in[2], options), want = expected(in);
  check_close(y, want, "y", allowed);
  const Tensor grad = numbers(y.shape(), {.dtype = y.dtype()}, 9);
  const auto have = ls::autograd::grad({y}, in, {.grad_outputs = {grad}});
  const auto wanted = ls::autograd::grad({want}, in, {.grad_outputs = {grad}});
  for (std::size_t i = 0; i < in.size(); ++i) check_close(have[i], wanted[i], "gradient " + std::to_string(i), allowed);
}

std::string error_with(const Shape& q, const Shape& k, const Shape& v, const AttentionOptions& options = {}) {
  return error_of([&] { (void)ls::scaled_dot_product_attention(ls::ones(q), ls::ones(k), ls::ones(v), options); });
}

}  // namespace

TEST_CASE("attention has PyTorch's values and gradients") {
  const ls::StateDict file = golden("attention");
  const std::vector<std::pair<std::string, AttentionOptions>> cases = {{"plain", {}},
                                                                       {"matrix", {}},
                                                                       {"broadcast", {}},
                                                                       {"one", {}},
                                                                       {"no_keys", {}},
                                                                       {"no_dim", {}},
                                                                       {"scale", {.scale = 0.3}},
                                                                       {"causal", {.is_causal = true}},
                                                                       {"causal_more_keys", {.is_causal = true}},
                                                                       {"causal_more_queries", {.is_causal = true}}};
  for (const std::string& tag : float_tags()) {
    for (const auto& [name, options] : cases) {
      const AttentionOptions& with = options;
      check_case(file, name + "." + tag, {"q", "k", "v"},
                 [&](const Inputs& in) { return ls::scaled_dot_product_attention(in[0], in[1], in[2], with); });
    }
    const auto masked = [&](const std::string& name, bool mask_has_gradient) {
      std::vector<std::string> names = {"q", "k", "v"};
      if (mask_has_gradient) names.emplace_back("mask");
      const Tensor& mask = file.at(name + "." + tag + "/mask");
      check_case(file, name + "." + tag, names, [&](const Inputs& in) {
        return ls::scaled_dot_product_attention(in[0], in[1], in[2], {.attn_mask = mask_has_gradient ? in[3] : mask});
      });
    };
    masked("bool_mask", false), masked("bool_mask_of_keys", false);
    masked("added_mask", false), masked("added_mask", true);
  }
}

TEST_CASE("attention treats numbers that are not finite as PyTorch does") {
  const ls::StateDict file = golden("attention");
  const std::vector<std::pair<std::string, AttentionOptions>> cases = {
      {"nan_key", {}},
      {"nan_value", {}},
      {"inf_key", {}},
      {"minus_inf_value", {}},
      {"nan_key_causal", {.is_causal = true}},
      {"nan_key_masked", {.attn_mask = ls::tensor({true, false, true})}}};
  for (const std::string& tag : float_tags()) {
    for (const auto& [name, options] : cases) {
      const std::string key = name + "." + tag + "/";
      check_close(ls::scaled_dot_product_attention(file.at(key + "q"), file.at(key + "k"), file.at(key + "v"), options),
                  file.at(key + "y"), key);
    }
  }
  // PyTorch's CPU kernel returns 0 for such a query; its composition returns NaN, like ours.
  const Tensor q = ls::tensor({{1.0}, {kNan}}), one = ls::ones({2, 1});
  const Tensor y = ls::scaled_dot_product_attention(q, one, one);
  CHECK(y[0].item<double>() == 1);
  CHECK(std::isnan(y[1].item<double>()));
}

TEST_CASE("tiles of every size agree with the composition") {
  const std::vector<std::pair<std::int64_t, std::int64_t>> times = {{1, 1},   {1, 70},  {5, 3},    {63, 64},
                                                                    {64, 65}, {65, 64}, {130, 200}};
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    for (const auto& [time, time_k] : times) {
      for (const bool causal : {false, true}) {
        const Inputs in = leaves({2}, time, time_k, 8, 5, dtype);
        check_like(
            in, {.is_causal = causal, .scale = 0.7}, [&](const Inputs& x) { return composition(x, {}, causal, 0.7); },
            std::to_string(time) + " queries, " + std::to_string(time_k) + " keys");
      }
    }
    for (const std::int64_t dim : {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 128, 256}) {
      const Inputs in = leaves({1}, 33, 70, dim, dim, dtype);
      check_like(
          in, {.scale = 0.2}, [&](const Inputs& x) { return composition(x, {}, false, 0.2); },
          "head dimension " + std::to_string(dim));
    }
  }
}

TEST_CASE("masks broadcast, and a query that attends to no key has result and gradients 0") {
  const Shape leading{2, 3};
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    const Inputs in = leaves(leading, 70, 90, 4, 4, dtype);
    for (const Shape& shape : {Shape{70, 90}, Shape{90}, Shape{70, 1}, Shape{1, 1}, Shape{2, 1, 1, 90}, Shape{3, 70, 1},
                               Shape{2, 3, 70, 90}}) {
      const Tensor allowed = numbers(shape, {}, 5) > -0.3, added = ls::where(allowed, 0.0, -1e9).to(dtype);
      check_like(
          in, {.attn_mask = allowed, .scale = 0.5},
          [&](const Inputs& x) {
            const Tensor none = ls::all(~allowed, {-1}, true);  // softmax of equal scores, where ours is 0
            return ls::masked_fill(composition(x, added, false, 0.5), none, 0);
          },
          "bool mask " + shape.to_string());
      const Tensor bias = numbers(shape, {.dtype = dtype}, 6);
      check_like(
          in, {.attn_mask = bias, .scale = 0.5}, [&](const Inputs& x) { return composition(x, bias, false, 0.5); },
          "added mask " + shape.to_string());
      check_like(
          in, {.attn_mask = bias.clone().requires_grad_(), .scale = 0.5},
          [&](const Inputs& x) { return composition(x, bias, false, 0.5); }, "mask with gradient " + shape.to_string());
    }
    const Tensor transposed = numbers({90, 70}, {.dtype = dtype}, 7).t();
    check_like(
        in, {.attn_mask = transposed, .scale = 0.5},
        [&](const Inputs& x) { return composition(x, transposed, false, 0.5); }, "mask with strides");
  }
}

TEST_CASE("operands of any strides give the same bits; heads inside time stay there") {
  const Inputs in = leaves({2, 3}, 70, 90, 6, 6, ls::kFloat32);
  const auto run = [](const Inputs& x) {
    return ls::scaled_dot_product_attention(x[0], x[1], x[2], {.attn_mask = ls::tensor({true}).expand({70, 90})});
  };
  const Tensor want = run(in), grad = numbers(want.shape(), {}, 4);
  const auto wanted = ls::autograd::grad({want}, in, {.grad_outputs = {grad}});
  for (const Shape& order : {Shape{0, 2, 1, 3}, Shape{3, 1, 0, 2}, Shape{2, 3, 0, 1}}) {
    Inputs turned;
    for (const Tensor& x : in) {  // the same values, stored in another order
      Shape back = order;
      for (int i = 0; i < 4; ++i) back[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = i;
      turned.push_back(x.detach().permute(order).contiguous().permute(back).requires_grad_());
    }
    const Tensor have = run(turned);
    CHECK(same_bits(have, want));
    const auto gradients = ls::autograd::grad(
        {have}, turned, {.grad_outputs = {grad.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0})}});
    for (std::size_t i = 0; i < 3; ++i) CHECK(same_bits(gradients[i], wanted[i]));
    if (order == Shape{0, 2, 1, 3}) {
      CHECK(have.transpose(1, 2).is_contiguous());
      CHECK(gradients[0].transpose(1, 2).is_contiguous());
    }
  }
  CHECK(want.is_contiguous());
}

TEST_CASE("attention of no elements") {
  CHECK(ls::scaled_dot_product_attention(ls::ones({2, 0, 4}), ls::ones({2, 3, 4}), ls::ones({2, 3, 5})).shape() ==
        Shape{2, 0, 5});
  CHECK(ls::scaled_dot_product_attention(ls::ones({0, 2, 4}), ls::ones({0, 3, 4}), ls::ones({0, 3, 5})).shape() ==
        Shape{0, 2, 5});
  const Inputs in = leaves({2}, 0, 3, 4, 4, ls::kFloat32);
  ls::sum(ls::scaled_dot_product_attention(in[0], in[1], in[2])).backward();
  CHECK(in[0].grad().shape() == Shape{2, 0, 4});
  CHECK(ls::equal(in[1].grad(), ls::zeros({2, 3, 4})));
  const Inputs no_values = leaves({2}, 3, 3, 4, 0, ls::kFloat32);
  ls::sum(ls::scaled_dot_product_attention(no_values[0], no_values[1], no_values[2])).backward();
  CHECK(ls::equal(no_values[0].grad(), ls::zeros({2, 3, 4})));
  CHECK(ls::equal(no_values[1].grad(), ls::zeros({2, 3, 4})));
}

TEST_CASE("dropout draws its factors again in backward, from a position that the draws before it determine") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    for (const std::int64_t time_k : {1, 66, 70, 72}) {
      const Inputs in = leaves({2, 2}, 70, time_k, 4, 4, dtype);
      ls::manual_seed(5);
      const std::int64_t room = (time_k + 3) / 4 * 4;
      const Tensor factors = ls::dropout(ls::ones({2, 2, 70, room}, {.dtype = dtype}), 0.25).narrow(-1, 0, time_k);
      for (const bool causal : {false, true}) {
        ls::manual_seed(5);
        check_like(
            in, {.dropout_p = 0.25, .is_causal = causal, .scale = 0.5},
            [&](const Inputs& x) { return composition(x, {}, causal, 0.5, factors); }, "dropout");
      }
    }
  }
  const Inputs in = leaves({1}, 3, 4, 2, 2, ls::kFloat32);
  CHECK(ls::equal(ls::scaled_dot_product_attention(in[0], in[1], in[2], {.dropout_p = 1}), ls::zeros({1, 3, 2})));
  ls::manual_seed(5);
  (void)ls::scaled_dot_product_attention(in[0], in[1], in[2]);
  CHECK(ls::random::state() ==
        std::vector<std::uint64_t>{ls::random::kStateFormat, 5});  // without dropout nothing is drawn
}

TEST_CASE("attention with dropout, computed again by checkpoint, has the same bits") {
  const Inputs in = leaves({2}, 70, 66, 8, 8, ls::kFloat32);
  const auto attention = [](const Tensor& q, const Tensor& k, const Tensor& v) {
    return ls::scaled_dot_product_attention(q, k, v, {.dropout_p = 0.3, .is_causal = true});
  };
  const auto gradients = [&](const auto& run) {
    ls::manual_seed(4);
    const Tensor y = ls::scaled_dot_product_attention(run(), in[1], in[2], {.dropout_p = 0.3});
    return ls::autograd::grad({y}, in, {.grad_outputs = {numbers(y.shape(), {}, 9)}});
  };
  const auto plain = gradients([&] { return attention(in[0], in[1], in[2]); });
  const auto repeated = gradients([&] { return ls::autograd::checkpoint(attention, in[0], in[1], in[2]); });
  for (std::size_t i = 0; i < in.size(); ++i) CHECK(same_bits(repeated[i], plain[i]));
}

TEST_CASE("attention's memory is proportional to the time") {
  const ls::NoGradGuard no_grad;
  const std::int64_t heads = 2, time = 2048, dim = 16;
  Inputs in = leaves({heads}, time, time, dim, dim, ls::kFloat32);
  const std::int64_t threads = ls::num_threads(), floats = heads * time * dim;
  ls::raw::Attention shape{};
  shape.time = shape.time_k = time, shape.dim = shape.dim_v = dim;
  const auto peak_of = [](const auto& run) {
    const std::int64_t before = ls::allocator_stats().allocated_bytes;
    ls::reset_peak_bytes();
    run();
    return ls::allocator_stats().peak_bytes - before;
  };
  const auto within = [](std::int64_t bytes, std::int64_t formula) {
    CHECK(bytes <= formula * 105 / 100);
    CHECK(bytes >= formula * 95 / 100);
  };
  const std::int64_t forward = floats + heads * time;
  const std::int64_t room = ls::raw::attention_room(shape, false), room_back = ls::raw::attention_room(shape, true);
  within(peak_of([&] { (void)ls::scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true}); }),
         4 * (forward + threads * room));
  const ls::EnableGradGuard grad;
  const Tensor seed = ls::ones({heads, time, dim});
  within(peak_of([&] {
           const Tensor y = ls::scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true});
           (void)ls::autograd::grad({y}, in, {.grad_outputs = {seed}});
         }),
         4 * (forward + 3 * floats + std::min(threads, heads) * room_back));
}

TEST_CASE("grouped queries: neighbouring heads of q share a head of k and v") {
  for (const std::int64_t groups : {1, 2, 3, 6}) {
    CAPTURE(groups);
    const Shape q{2, 6, 5, 4}, kv{2, groups, 7, 4};
    const Inputs in = {numbers(q, {.dtype = ls::kFloat64, .requires_grad = true}, 1),
                       numbers(kv, {.dtype = ls::kFloat64, .requires_grad = true}, 2),
                       numbers(kv, {.dtype = ls::kFloat64, .requires_grad = true}, 3)};
    const auto repeated = [&](const AttentionOptions& options) {
      return [&in, groups, options](const Inputs&) {
        return ls::scaled_dot_product_attention(in[0], in[1].repeat_interleave(6 / groups, 1),
                                                in[2].repeat_interleave(6 / groups, 1), options);
      };
    };
    const Tensor mask = numbers({2, 6, 5, 7}, {.dtype = ls::kFloat64}, 4);
    for (const Tensor& each : {Tensor(), mask, mask.narrow(1, 0, 1), mask[0], mask[0][0], mask.narrow(0, 1, 1)}) {
      AttentionOptions options{.attn_mask = each};
      const auto expected = repeated(options);
      options.enable_gqa = true;
      check_like(in, options, expected, each.defined() ? ls::describe(each) : "no mask");
      CHECK(same_bits(ls::scaled_dot_product_attention(in[0], in[1], in[2], options), expected(in)));
    }
    check_like(in, {.is_causal = true, .enable_gqa = true}, repeated({.is_causal = true}), "causal");
    ls::manual_seed(5);
    const Tensor dropped =
        ls::scaled_dot_product_attention(in[0], in[1], in[2], {.dropout_p = 0.3, .enable_gqa = true});
    ls::manual_seed(5);
    CHECK(same_bits(dropped, repeated({.dropout_p = 0.3})(in)));
  }
}

TEST_CASE("attention's errors name the operands and what to do") {
  const Tensor mask = ls::ones({3, 4}) > 0;
  const Shape q{2, 3, 5}, k{2, 4, 5}, v{2, 4, 6};
  CHECK(
      error_with({5}, k, v) ==
      "scaled_dot_product_attention: q is (5) f32 cpu, k (2, 4, 5) f32 cpu, v (2, 4, 6) f32 cpu; expected (..., time, "
      "dim) with at least two dimensions each");
  CHECK(error_with(q, {2, 4, 6}, v) ==
        "scaled_dot_product_attention: q is (2, 3, 5) f32 cpu, k is (2, 4, 6) f32 cpu; expected equal last sizes");
  CHECK(
      error_with(q, k, {2, 5, 6}) ==
      "scaled_dot_product_attention: k is (2, 4, 5) f32 cpu, v is (2, 5, 6) f32 cpu; expected as many values as keys");
  CHECK(contains(error_with(q, {3, 4, 5}, v), "leading dimensions do not broadcast: q is (2, 3, 5)"));
  CHECK(contains(error_with(q, k, {3, 4, 6}), "leading dimensions do not broadcast: q is (2, 3, 5)"));
  CHECK(error_with(q, k, v, {.attn_mask = mask, .is_causal = true}) ==
        "scaled_dot_product_attention: attn_mask is (3, 4) bool cpu and is_causal is true; pass one of them");
  CHECK(contains(error_with(q, k, v, {.attn_mask = mask.to(ls::kInt64)}), "expected bool or q's dtype"));
  CHECK(contains(error_with(q, k, v, {.attn_mask = mask.to(ls::kFloat64)}), "expected bool or q's dtype"));
  CHECK(contains(error_with(q, k, v, {.attn_mask = mask.t()}), "does not broadcast to the scores' shape (2, 3, 4)"));
  CHECK(contains(error_with(q, k, v, {.attn_mask = mask.unsqueeze(0).unsqueeze(0)}), "does not broadcast"));
  CHECK(contains(error_with(q, k, v, {.dropout_p = 1.5}), "dropout_p is 1.5, expected 0 to 1"));
  CHECK(error_with(q, k, {4, 6}, {.enable_gqa = true}) ==
        "scaled_dot_product_attention: q is (2, 3, 5) f32 cpu, k (2, 4, 5) f32 cpu, v (4, 6) f32 cpu; with .enable_gqa "
        "expected (..., heads, time, dim)");
  CHECK(error_with({6, 3, 5}, {4, 4, 5}, {4, 4, 5}, {.enable_gqa = true}) ==
        "scaled_dot_product_attention: q has 6 heads, k 4, v 4; with .enable_gqa expected as many in k as in v, and a "
        "multiple in q");
  CHECK(contains(error_with({6, 3, 5}, {2, 4, 5}, {3, 4, 5}, {.enable_gqa = true}), "q has 6 heads, k 2, v 3"));
  const Tensor x = ls::ones({3, 4});
  const auto with = [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return error_of([&] { (void)ls::scaled_dot_product_attention(a, b, c); });
  };
  CHECK(contains(with(x, x.to(ls::kFloat64), x), "scaled_dot_product_attention: operands of different dtypes"));
  CHECK(contains(with(x, x, x.to("cpu:1")), "scaled_dot_product_attention: operands on different devices"));
  CHECK(contains(with(x.to(ls::kInt64), x, x), "scaled_dot_product_attention: needs f32 or f64"));
  const Tensor there = x.to("cpu:1");
  CHECK(contains(error_of([&] {
                   (void)ls::scaled_dot_product_attention(there, there, there, {.attn_mask = ls::ones({3, 3}) > 0});
                 }),
                 "different devices"));
}
