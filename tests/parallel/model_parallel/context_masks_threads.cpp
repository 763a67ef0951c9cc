// Masks of attention over sequence blocks in f16, bf16 and f64, as the operands are. Ranks are threads.
#include "tests/parallel/model_parallel/context_attention.h"

using namespace context_attention;

TEST_CASE("masks that are added, in every dtype of the operands") {
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16, ls::kFloat64}) {
    const std::string name = ls::name(dtype);
    CAPTURE(name);
    for (const Kind kind : kKinds) {
      for (const int ranks : {2, 3}) {
        for (const Masking masking : {Masking::kAdded, Masking::kPerHead, Masking::kInfinite, Masking::kPadding})
          check_case({.ranks = ranks, .kind = kind, .masking = masking, .dtype = dtype});
      }
      check_case({.ranks = 2, .kind = kind, .masking = Masking::kPerHead, .kv_heads = 2, .dtype = dtype});
      check_case({.ranks = 4,
                  .kind = kind,
                  .masking = Masking::kAdded,
                  .heads = 4,
                  .kv_heads = 4,
                  .time = 64,
                  .dtype = dtype});
    }
  }
}

namespace {

struct Masked : ls::nn::Module {
  ls::nn::MultiheadAttention& attention = add<ls::nn::MultiheadAttention>("attention", 12, 6);
  ls::nn::MultiheadAttentionMasks masks;
  ls::Tensor forward(const ls::Tensor& x) const override { return attention.forward(x, x, x, masks); }
};

}  // namespace

TEST_CASE("MultiheadAttention with a mask for its queries and a mask for all keys, which are added") {
  constexpr Case kBase{.ranks = 2, .kind = Kind::kRing, .time = 24};
  for (const ls::DType dtype : {ls::kFloat32, ls::kFloat64}) {
    ls::manual_seed(1);
    Masked whole;
    whole.to(dtype);
    const ls::TensorOptions options{.dtype = dtype};
    const ls::Tensor x = ls::randn({2, kBase.time, 12}, options), rows = ls::randn({kBase.time, kBase.time}, options);
    whole.masks = {.attn_mask = rows, .key_padding_mask = ls::randn({2, kBase.time}, options)};
    whole.masks.key_padding_mask.narrow(1, kBase.time - 5, 5).fill_(-kInf);
    for (const bool causal : {false, true}) {
      whole.masks.is_causal = causal;
      const ls::Tensor want = whole(x).detach();
      for (const Kind kind : kKinds) {
        with_threads("local", kBase.ranks, [&](const Group& group) {
          Case of = kBase;
          of.kind = kind;
          const auto mine = [&](const ls::Tensor& t) { return block(t, of, group->rank()); };
          Masked net;
          net.to(dtype);
          net.load_state_dict(whole.state_dict());
          net.masks = whole.masks;
          net.masks.attn_mask = mine(rows);
          par::context_parallel(net, par::DeviceMesh(group, {{"cp", of.ranks}}), {.attention = kind});
          check_close(net(mine(x)).detach(), mine(want), dtype);
        });
      }
    }
  }
}
