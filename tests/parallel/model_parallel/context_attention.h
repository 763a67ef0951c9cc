// Attention over sequence blocks against attention of one rank: a case, with its kind, mask, dtype and number of ranks.
#pragma once

#include <limits>
#include <optional>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace context_attention {

namespace par = ls::parallel;
using Kind = par::ContextAttention;

enum class Masking { kNone, kCausal, kBool, kAdded, kPadding, kPerHead, kInfinite };

struct Case {
  int ranks;
  Kind kind;
  Masking masking = Masking::kCausal;
  std::int64_t heads = 6, kv_heads = 6, time = 24;
  ls::DType dtype = ls::kFloat32;
};

inline std::string describe(const Case& of) {
  return fmt::format("{} ranks, kind {}, masking {}, {} heads, {} of keys, {} positions", of.ranks,
                     static_cast<int>(of.kind), static_cast<int>(of.masking), of.heads, of.kv_heads, of.time);
}

// forward_inputs({q, k, v}) or ({q, k, v, mask})
struct Attention : ls::nn::Module {
  bool causal = false, gqa = false;
  double dropout = 0;
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return ls::scaled_dot_product_attention(in[0], in[1], in[2],
                                            {.attn_mask = in.size() > 3 ? in[3] : ls::Tensor(),
                                             .dropout_p = dropout,
                                             .is_causal = causal,
                                             .enable_gqa = gqa});
  }
};

struct Results {
  ls::Tensor out, q, k, v;
};

inline Results run(const Attention& attention, const std::vector<ls::Tensor>& in, const ls::Tensor& grad) {
  std::vector<ls::Tensor> leaves;
  for (std::size_t i = 0; i < 3; ++i) leaves.push_back(in[i].clone().requires_grad_());
  if (in.size() > 3) leaves.push_back(in[3]);
  const ls::Tensor out = attention(leaves);
  out.backward(grad);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

// The rows of all positions (dimension -2) that belong to rank `own`.
inline ls::Tensor block(const ls::Tensor& x, const Case& of, int own) {
  const std::int64_t chunks = of.kind == Kind::kRingZigzag ? 2 * of.ranks : of.ranks, each = of.time / chunks;
  const ls::Tensor first = x.narrow(-2, own * each, each);
  return of.kind == Kind::kRingZigzag ? ls::cat({first, x.narrow(-2, (chunks - 1 - own) * each, each)}, -2) : first;
}

inline ls::Tensor mask_of(const Case& of) {
  const std::int64_t t = of.time;
  switch (of.masking) {
    case Masking::kBool: {  // with rows that have no key, and rows whose keys are all on one rank
      const ls::Tensor mask = ls::rand({2, 1, t, t}) > 0.6;
      mask.narrow(-2, 3, 2).fill_(0);
      mask.narrow(-2, 7, 1).fill_(0);
      mask.narrow(-2, 7, 1).narrow(-1, t - 1, 1).fill_(1);
      return mask;
    }
    case Masking::kInfinite:
      return ls::where(mask_of({.ranks = of.ranks, .kind = of.kind, .masking = Masking::kBool, .time = t}), 0.0, -kInf)
          .to(of.dtype);
    case Masking::kAdded:
      return ls::randn({t, t}, {.dtype = of.dtype});
    case Masking::kPadding:
      return ls::arange(t).reshape({1, 1, 1, t}) < ls::tensor({t - 5, t / 3}).reshape({2, 1, 1, 1});
    case Masking::kPerHead:
      return ls::randn({of.heads, t, t}, {.dtype = of.dtype});
    default:
      return {};
  }
}

// Sets up an attention as the case says, with dropout off.
inline void set(Attention& attention, const Case& of) {
  attention.causal = of.masking == Masking::kCausal;
  attention.gqa = of.kv_heads < of.heads;
}

// Compares the largest difference with the largest value. Results in f16 and bf16 are computed in f32 and rounded once.
// `units`: by how many units in the last place they may differ: 1, or 2 if a rounded value is one of their operands.
inline void check_close(const ls::Tensor& got, const ls::Tensor& want, ls::DType dtype, int units = 2) {
  const double scale = ls::max(ls::abs(want)).item<double>(), worst = ls::max(ls::abs(got - want)).item<double>();
  const double tolerance = dtype == ls::kFloat64   ? 1e-13
                           : dtype == ls::kFloat32 ? 2e-6
                           : dtype == ls::kFloat16 ? units * 0x1p-10
                                                   : units * 0x1p-7;
  CHECK(worst <= tolerance * std::max(scale, 1e-3));
}

// `backend`: of the ranks.
inline void check_case(const Case& of, const std::string& backend = "local") {
  CAPTURE(describe(of));
  ls::manual_seed(static_cast<std::uint64_t>(of.ranks * 100 + static_cast<int>(of.masking)));
  const ls::TensorOptions options{.dtype = of.dtype};
  // Queries as models make them: (batch, time, heads, dim), transposed.
  const ls::Tensor q = ls::randn({2, of.time, of.heads, 8}, options).transpose(1, 2),
                   k = ls::randn({2, of.kv_heads, of.time, 8}, options),
                   v = ls::randn({2, of.kv_heads, of.time, 12}, options),
                   grad = ls::randn({2, of.heads, of.time, 12}, options), mask = mask_of(of);
  Attention whole;
  set(whole, of);
  const Results want = run(whole, mask.defined() ? std::vector{q, k, v, mask} : std::vector{q, k, v}, grad);
  with_group(backend, of.ranks, [&](const Group& group) {
    const int own = group->rank();
    const par::DeviceMesh mesh(group, {{"cp", of.ranks}});
    std::vector<ls::Tensor> mine{block(q, of, own), block(k, of, own), block(v, of, own)};
    if (mask.defined()) mine.push_back(mask.size(-2) == 1 ? mask : block(mask, of, own));
    std::optional<Results> first;
    for (const bool gather : {false, true}) {
      Attention attention;
      set(attention, of);
      par::context_parallel(attention, mesh, {.attention = of.kind, .gather_keys = gather});
      const Results got = run(attention, mine, block(grad, of, own));
      const auto compare = [&](ls::Tensor Results::*each) {  // the gradients depend on the rounded result
        check_close(got.*each, block(want.*each, of, own), of.dtype, each == &Results::out ? 1 : 2);
        CHECK(!ls::any(ls::isnan(got.*each)).item<bool>());
        if (first) CHECK(same_bits(got.*each, (*first).*each));
      };
      compare(&Results::out), compare(&Results::q), compare(&Results::k), compare(&Results::v);
      if (!first) first = got;
    }
  });
}

inline constexpr Kind kKinds[] = {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses};

}  // namespace context_attention
