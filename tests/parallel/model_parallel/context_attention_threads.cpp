// Attention over blocks of a sequence, whose ranks are threads: against attention of one rank, for every kind, mask,
// dtype and number of ranks.
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "tests/support/groups.h"

namespace par = ls::parallel;
using Kind = par::ContextAttention;

namespace {

enum class Masking { kNone, kCausal, kBool, kAdded, kPadding, kPerHead };

struct Case {
  int ranks;
  Kind kind;
  Masking masking = Masking::kCausal;
  std::int64_t heads = 6, kv_heads = 6, time = 24;
  ls::DType dtype = ls::kFloat32;
};

std::string describe(const Case& of) {
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

Results run(const Attention& attention, const std::vector<ls::Tensor>& in, const ls::Tensor& grad) {
  std::vector<ls::Tensor> leaves;
  for (std::size_t i = 0; i < 3; ++i) leaves.push_back(in[i].clone().requires_grad_());
  if (in.size() > 3) leaves.push_back(in[3]);
  const ls::Tensor out = attention(leaves);
  out.backward(grad);
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

// The rows of all positions (dimension -2) that belong to rank `own`.
ls::Tensor block(const ls::Tensor& x, const Case& of, int own) {
  const std::int64_t chunks = of.kind == Kind::kRingZigzag ? 2 * of.ranks : of.ranks, each = of.time / chunks;
  const ls::Tensor first = x.narrow(-2, own * each, each);
  return of.kind == Kind::kRingZigzag ? ls::cat({first, x.narrow(-2, (chunks - 1 - own) * each, each)}, -2) : first;
}

ls::Tensor mask_of(const Case& of) {
  const std::int64_t t = of.time;
  switch (of.masking) {
    case Masking::kBool: {  // with rows that have no key, and rows whose keys are all on one rank
      const ls::Tensor mask = ls::rand({2, 1, t, t}) > 0.6;
      mask.narrow(-2, 3, 2).fill_(0);
      mask.narrow(-2, 7, 1).fill_(0);
      mask.narrow(-2, 7, 1).narrow(-1, t - 1, 1).fill_(1);
      return mask;
    }
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
void set(Attention& attention, const Case& of) {
  attention.causal = of.masking == Masking::kCausal;
  attention.gqa = of.kv_heads < of.heads;
}

void check_close(const ls::Tensor& got, const ls::Tensor& want, ls::DType dtype) {
  const double scale = ls::max(ls::abs(want)).item<double>(), worst = ls::max(ls::abs(got - want)).item<double>();
  CHECK(worst <= (dtype == ls::kFloat64 ? 1e-13 : dtype == ls::kFloat32 ? 2e-6 : 2e-2) * std::max(scale, 1e-3));
}

void check_case(const Case& of) {
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
  with_threads("local", of.ranks, [&](const Group& group) {
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
      const auto compare = [&](ls::Tensor Results::*each) {
        check_close(got.*each, block(want.*each, of, own), of.dtype);
        CHECK(!ls::any(ls::isnan(got.*each)).item<bool>());
        if (first) CHECK(same_bits(got.*each, (*first).*each));
      };
      compare(&Results::out), compare(&Results::q), compare(&Results::k), compare(&Results::v);
      if (!first) first = got;
    }
  });
}

constexpr Kind kKinds[] = {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses};

}  // namespace

TEST_CASE("attention over blocks of a sequence equals attention of one rank") {
  for (const Kind kind : kKinds) {
    for (const int ranks : {2, 3}) {
      for (const Masking masking :
           {Masking::kNone, Masking::kCausal, Masking::kBool, Masking::kAdded, Masking::kPadding, Masking::kPerHead})
        check_case({.ranks = ranks, .kind = kind, .masking = masking});
    }
    check_case({.ranks = 4, .kind = kind, .heads = 8, .kv_heads = 8, .time = 32});
    check_case({.ranks = 2, .kind = kind, .dtype = ls::kFloat64});
    check_case({.ranks = 3, .kind = kind, .masking = Masking::kBool, .dtype = ls::kFloat64});
    check_case({.ranks = 2, .kind = kind, .dtype = ls::kBFloat16});
  }
}

TEST_CASE("with fewer heads in keys and values") {
  for (const Kind kind : kKinds) {
    for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
      for (const Masking masking : {Masking::kCausal, Masking::kPerHead, Masking::kPadding})
        check_case({.ranks = 2, .kind = kind, .masking = masking, .kv_heads = kv_heads});
      check_case({.ranks = 3, .kind = kind, .kv_heads = kv_heads});
    }
  }
}

namespace {

struct Padded : ls::nn::Module {
  ls::nn::MultiheadAttention& attention = add<ls::nn::MultiheadAttention>("attention", 12, 6);
  ls::Tensor padding;  // (batch, all positions)
  bool causal = false;
  ls::Tensor forward(const ls::Tensor& x) const override {
    return attention.forward(x, x, x, {.key_padding_mask = padding, .is_causal = causal});
  }
};

// The result, and the gradient of x.
std::pair<ls::Tensor, ls::Tensor> run(const Padded& net, const ls::Tensor& x, const ls::Tensor& grad) {
  const ls::Tensor leaf = x.clone().requires_grad_();
  const ls::Tensor out = net(leaf);
  out.backward(grad);
  return {out.detach(), leaf.grad()};
}

}  // namespace

// It makes masks for this rank's queries and the keys of all ranks.
TEST_CASE("MultiheadAttention with padding, causal or not") {
  const Case base{.ranks = 3, .kind = Kind::kRing, .time = 24};
  ls::manual_seed(1);
  Padded whole;
  whole.padding = ls::arange(base.time) >= ls::tensor({base.time - 5, base.time / 3}).reshape({2, 1});
  const ls::Tensor x = ls::randn({2, base.time, 12}), grad = ls::randn({2, base.time, 12});
  for (const Kind kind : kKinds) {
    for (const bool causal : {false, true}) {
      whole.causal = causal;
      const std::pair<ls::Tensor, ls::Tensor> want = run(whole, x, grad);
      with_threads("local", base.ranks, [&](const Group& group) {
        Case of = base;
        of.kind = kind;
        Padded net;
        net.load_state_dict(whole.state_dict());
        net.padding = whole.padding, net.causal = causal;
        par::context_parallel(net, par::DeviceMesh(group, {{"cp", of.ranks}}), {.attention = kind});
        const auto mine = [&](const ls::Tensor& t) { return block(t, of, group->rank()); };
        const std::pair<ls::Tensor, ls::Tensor> got = run(net, mine(x), mine(grad));
        check_close(got.first, mine(want.first), ls::kFloat32);
        check_close(got.second, mine(want.second), ls::kFloat32);
      });
    }
  }
}
