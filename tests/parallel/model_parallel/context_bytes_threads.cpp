// Ranks send exactly the bytes of the formulas for attention over sequence blocks.
#include "tests/support/groups.h"

namespace par = ls::parallel;
using Kind = par::ContextAttention;
using par::Phase;

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kTime = 32, kDim = 8;

struct Attention : ls::nn::Module {
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return ls::scaled_dot_product_attention(in[0], in[1], in[2], {.is_causal = true, .enable_gqa = true});
  }
};

struct Sent {
  std::int64_t forward, backward, gradients;  // keys, values and activations; the same; their gradients
};

void check(int ranks, Kind kind, bool gather, std::int64_t kv_heads, ls::DType dtype, const Sent& want) {
  CAPTURE(ranks);
  CAPTURE(static_cast<int>(kind));
  CAPTURE(gather);
  with_threads("local", ranks, [&](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", ranks}});
    Attention attention;
    par::context_parallel(attention, mesh, {.attention = kind, .gather_keys = gather});
    const auto leaf = [&](std::int64_t heads) {
      return ls::randn({kBatch, heads, kTime / ranks, kDim}).to(dtype).requires_grad_();
    };
    const std::vector<ls::Tensor> in{leaf(kHeads), leaf(kv_heads), leaf(kv_heads)};
    par::TrafficStats& traffic = mesh.group()->traffic();
    const auto sent = [&](bool of_gradients) {
      std::int64_t bytes = 0;
      for (const par::LinkTraffic& link : traffic.links()) {
        const bool is_gradient = link.phase == Phase::kActivationGradients;
        CHECK((is_gradient || link.phase == (kind == Kind::kUlysses ? Phase::kActivations : Phase::kKeysValues)));
        bytes += link.from == group->rank() && is_gradient == of_gradients ? link.bytes : 0;
      }
      return bytes;
    };
    traffic.clear();
    const ls::Tensor out = attention(in);
    CHECK(sent(false) == want.forward);
    CHECK(sent(true) == 0);
    traffic.clear();
    out.backward(ls::ones(out.shape(), {.dtype = dtype}));
    CHECK(sent(false) == want.backward);
    CHECK(sent(true) == want.gradients);
  });
}

}  // namespace

TEST_CASE("a ring sends each block of keys and values to all other ranks") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kBFloat16}) {
    for (const int c : {2, 4}) {
      for (const std::int64_t kv_heads : {4, 2}) {
        const std::int64_t elements = kBatch * kv_heads * kTime / c * kDim,
                           block = elements * static_cast<std::int64_t>(ls::item_size(dtype)), of_sums = elements * 4;
        for (const Kind kind : {Kind::kRingZigzag, Kind::kRing}) {
          // Keys and values, again in backward; gradients go all the way round, to their block's own rank.
          check(c, kind, false, kv_heads, dtype, {2 * (c - 1) * block, 2 * (c - 1) * block, 2 * c * of_sums});
          check(c, kind, true, kv_heads, dtype, {2 * (c - 1) * block, 0, 2 * (c - 1) * of_sums});
        }
      }
    }
  }
}

TEST_CASE("Ulysses exchanges queries, keys, values and results, and their gradients") {
  for (const ls::DType dtype : {ls::kFloat32, ls::kBFloat16}) {
    for (const int c : {2, 4}) {
      const std::int64_t each = kBatch * kHeads * kTime / c * kDim * static_cast<std::int64_t>(ls::item_size(dtype)),
                         moved = 4 * (c - 1) * each / c;
      check(c, Kind::kUlysses, false, kHeads, dtype, {moved, 0, moved});
    }
  }
}
