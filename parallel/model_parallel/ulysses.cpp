#include "lockstep/parallel/model_parallel/ulysses_internal.h"

#include <utility>

#include "lockstep/autograd/attention_context_internal.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/model_parallel/context_blocks_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep::parallel {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// x's dimension `to` becomes `size` times as long, and `from` a part of it: rank r gets part r along `from` of all
// ranks' x, joined along `to`.
Tensor exchanged(const Group& group, const Tensor& x, std::int64_t from, std::int64_t to, Phase phase) {
  const std::int64_t size = group->size(), last = x.dim();
  const auto dim = [last](std::int64_t d) { return d < 0 ? d + last : d; };
  const auto split_off = [&](const Tensor& t, std::int64_t d) {  // dimension d becomes (size, rest), `size` in front
    Shape shape = t.shape();
    shape[static_cast<std::size_t>(d)] /= size;
    shape.insert(d, size);
    return movedim(t.reshape(shape), {d}, {0}).contiguous();
  };
  const Tensor parts = split_off(x, dim(from)), received = raw::empty(parts.shape(), parts.options());
  group->all_to_all(received, parts, {}, {.phase = phase, .name = "heads"})->wait();
  return movedim(received, {0}, {dim(to)}).flatten(dim(to), dim(to) + 1);
}

Tensor exchange(const Group& group, const Tensor& x, std::int64_t from, std::int64_t to,
                Phase phase = Phase::kActivations) {
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = exchanged(group, x, from, to, phase);
  }
  return record("ulysses_exchange", y, {x}, [=](const Tensor& grad, const Needs&) {
    return Gradients{exchange(group, grad, to, from, Phase::kActivationGradients)};
  });
}

constexpr std::int64_t kHeads = -3, kTime = -2;

Tensor by_heads(const Group& group, const Tensor& x) { return exchange(group, x, kHeads, kTime); }

// Keys or values with a multiple of the ranks as their number of heads: each head is repeated as often as needed.
Tensor with_head_for_each(const Tensor& x, std::int64_t ranks, std::int64_t heads) {
  const std::int64_t own = x.size(kHeads);
  if (own % ranks == 0) return x;
  return repeat_interleave(x, (ranks % own == 0 ? ranks : heads) / own, kHeads);
}

// The mask's rows for all positions, and its columns as they are; only this rank's heads, where it has several.
Tensor whole_mask(const Group& group, const Tensor& mask, std::int64_t time_here) {
  if (!mask.defined() || mask.dim() < 2 || (mask.size(kTime) == 1 && time_here > 1)) {
    const bool has_heads = mask.defined() && mask.dim() > 2 && mask.size(kHeads) > 1;
    const std::int64_t each = has_heads ? mask.size(kHeads) / group->size() : 0;
    return has_heads ? mask.narrow(kHeads, group->rank() * each, each) : mask;
  }
  if (mask.dim() > 2 && mask.size(kHeads) > 1) return by_heads(group, mask);
  const Tensor all = of_all_ranks(*group, mask.contiguous(), Phase::kActivations, "mask");
  const std::int64_t time = mask.dim() - 2;
  return movedim(all, {0}, {time}).flatten(time, time + 1);
}

}  // namespace

Tensor ulysses_attention(const Group& group, const Tensor& q, const Tensor& k, const Tensor& v,
                         AttentionOptions options) {
  LOCKSTEP_CHECK(q.dim() >= 3 && k.dim() == q.dim() && v.dim() == q.dim(),
                 "context_parallel: q is {}, k {}, v {}; with kUlysses expected (..., heads, time, dim)", describe(q),
                 describe(k), describe(v));
  // The heads that a rank has then depend on the number of ranks that share the slices.
  const random::SliceContext* const slices = random::slice_context();
  LOCKSTEP_CHECK(
      options.dropout_p == 0 || !slices || !slices->is_open(),
      "context_parallel: attention has dropout and runs after {}, whose outputs tensor parallelism has cut; "
      "with kUlysses the heads of this rank, and so the masks, depend on the mesh: use kRingZigzag or kRing, "
      "or no dropout in attention",
      slices->opened_by);
  const std::int64_t heads = q.size(kHeads), ranks = group->size();
  LOCKSTEP_CHECK(heads % ranks == 0,
                 "context_parallel: {} heads cannot be distributed evenly to {} ranks, as kUlysses needs; use a number "
                 "of ranks that divides the heads, or kRingZigzag",
                 heads, ranks);
  LOCKSTEP_CHECK(k.size(kHeads) == v.size(kHeads) && k.size(kHeads) > 0 && heads % k.size(kHeads) == 0 &&
                     (options.enable_gqa || k.size(kHeads) == heads),
                 "context_parallel: q has {} heads, k {}, v {}; expected equal numbers, or with .enable_gqa a divisor "
                 "in k and v",
                 heads, k.size(kHeads), v.size(kHeads));
  const Tensor all_q = by_heads(group, q), all_k = by_heads(group, with_head_for_each(k, ranks, heads)),
               all_v = by_heads(group, with_head_for_each(v, ranks, heads));
  options.attn_mask = whole_mask(group, options.attn_mask, q.size(kTime));
  options.enable_gqa = all_k.size(kHeads) < all_q.size(kHeads);
  const autograd::AttentionContextGuard without_context(nullptr);
  return exchange(group, scaled_dot_product_attention(all_q, all_k, all_v, options), kTime, kHeads);
}

}  // namespace lockstep::parallel
