// Attention: by tiles, or composed of products and softmax if the mask has a gradient.
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/autograd/attention_context_internal.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/tensor/ops/attention_internal.h"
#include "lockstep/tensor/ops/wrappers_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"
#include "lockstep/tensor/random/slice_context_internal.h"

namespace lockstep {

using raw::AttentionSetting;

namespace {

constinit thread_local const autograd::AttentionContext* innermost_context = nullptr;

constexpr const char* kAttention = "scaled_dot_product_attention";

// The operands with all leading dimensions broadcast. The mask is undefined, or (..., time, time_k); it is never f16 or
// bf16.
struct AttentionOperands {
  Tensor q, k, v, mask;
};

AttentionOperands prepare_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  require_attention_operands(q, k, v, options);
  const Shape batch = attention_batch(q, k, v);
  const auto expanded = [&](const Tensor& x) {
    const Shape shape = with_matrix(batch, x.size(-2), x.size(-1));
    return x.shape() == shape ? x : x.expand(shape);
  };
  AttentionOperands out{expanded(q), expanded(k), expanded(v), options.attn_mask};
  if (!out.mask.defined()) return out;
  const Shape scores = with_matrix(batch, q.size(-2), k.size(-2));
  require_attention_mask(out.mask, q, scores, options.is_causal);
  out.mask = in_f32(out.mask).expand(scores);
  return out;
}

// The shape of the dropout mask: rows are padded to a multiple of four, so that each tile of the kernels starts a new
// Philox block.
Shape numbers_of(const AttentionOperands& x) {
  return with_matrix(leading_of(x.q), x.q.size(-2), (x.k.size(-2) + 3) / 4 * 4);
}
// 1 / keep or 0 for each weight; undefined without dropout.
Tensor dropout_factors(const AttentionOperands& x, const AttentionSetting& setting) {
  if (setting.keep == 1) return {};
  return raw::dropout_mask(numbers_of(x), setting.keep, x.q.options(), setting.position).narrow(-1, 0, x.k.size(-2));
}

// softmax(scale q k^T + mask) in public operations; 0 in rows without a finite score.
Tensor attention_weights(const AttentionOperands& x, const AttentionSetting& setting) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Tensor scores = matmul(mul(x.q, setting.scale), x.k.transpose(-1, -2));
  if (scores.numel() == 0) return scores;
  if (setting.causal) {
    const TensorOptions there = {.device = x.q.device()};
    scores = masked_fill(scores, arange(x.q.size(-2), there).unsqueeze(1) < arange(x.k.size(-2), there), -kInfinity);
  }
  if (!x.mask.defined()) return softmax(scores, -1);
  scores = add(scores, x.mask.dtype() == kBool ? where(x.mask, 0.0, -kInfinity) : x.mask);
  const Tensor masked = amax(scores.detach(), {-1}, true) == -kInfinity;
  return masked_fill(softmax(masked_fill(scores, masked, 0), -1), masked, 0);
}

AttentionOperands wide_operands(const AttentionOperands& x) { return {in_f32(x.q), in_f32(x.k), in_f32(x.v), x.mask}; }

Tensor composed_attention(const AttentionOperands& x, const AttentionSetting& setting) {
  const Tensor weights = attention_weights(x, setting), factors = dropout_factors(x, setting);
  return matmul(factors.defined() ? mul(weights, factors) : weights, x.v);
}

// The gradients in public operations, for second derivatives.
Gradients attention_gradients(const Tensor& grad, const AttentionOperands& x, const AttentionSetting& setting,
                              const Needs& needs) {
  const Tensor weights = attention_weights(x, setting), factors = dropout_factors(x, setting);
  Tensor used = weights, by_weights = matmul(grad, x.v.transpose(-1, -2));
  if (factors.defined()) used = mul(weights, factors), by_weights = mul(by_weights, factors);
  const Tensor centered = sub(by_weights, sum(mul(by_weights, weights), {-1}, true));
  const Tensor by_scores = mul(mul(weights, centered), setting.scale);
  return {needs[0] ? matmul(by_scores, x.k) : Tensor(), needs[1] ? matmul(by_scores.transpose(-1, -2), x.q) : Tensor(),
          needs[2] ? matmul(used.transpose(-1, -2), grad) : Tensor()};
}

}  // namespace

namespace autograd {
const AttentionContext* attention_context() { return innermost_context; }
AttentionContextGuard::AttentionContextGuard(const AttentionContext* context)
    : previous_(std::exchange(innermost_context, context)) {}
AttentionContextGuard::~AttentionContextGuard() { innermost_context = previous_; }
}  // namespace autograd

void require_attention_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  if (!is_half(q.dtype())) raw::require_float(kAttention, q);
  raw::require_same(kAttention, q, k);
  raw::require_same(kAttention, q, v);
  LOCKSTEP_CHECK(q.dim() >= 2 && k.dim() >= 2 && v.dim() >= 2,
                 "{}: q is {}, k {}, v {}; expected (..., time, dim) with at least two dimensions each", kAttention,
                 describe(q), describe(k), describe(v));
  LOCKSTEP_CHECK(q.size(-1) == k.size(-1), "{}: q is {}, k is {}; expected equal last sizes", kAttention, describe(q),
                 describe(k));
  LOCKSTEP_CHECK(k.size(-2) == v.size(-2), "{}: k is {}, v is {}; expected as many values as keys", kAttention,
                 describe(k), describe(v));
  LOCKSTEP_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, "{}: dropout_p is {}, expected 0 to 1", kAttention,
                 options.dropout_p);
}

void require_attention_mask(const Tensor& mask, const Tensor& q, const Shape& scores, bool is_causal) {
  LOCKSTEP_CHECK(!is_causal, "{}: attn_mask is {} and is_causal is true; pass one of them", kAttention, describe(mask));
  raw::require_same_device(kAttention, q, mask);
  LOCKSTEP_CHECK(mask.dtype() == kBool || mask.dtype() == q.dtype(),
                 "{}: attn_mask is {}, q is {}; expected bool or q's dtype: convert with to(dtype)", kAttention,
                 describe(mask), describe(q));
  Shape both;
  LOCKSTEP_CHECK(try_broadcast(mask.shape(), scores, &both) && both == scores,
                 "{}: attn_mask is {}, which does not broadcast to the scores' shape {}", kAttention, describe(mask),
                 scores.to_string());
}

Shape attention_batch(const Tensor& q, const Tensor& k, const Tensor& v) {
  Shape batch;
  LOCKSTEP_CHECK(try_broadcast(leading_of(q), leading_of(k), &batch) && try_broadcast(batch, leading_of(v), &batch),
                 "{}: leading dimensions do not broadcast: q is {}, k {}, v {}", kAttention, describe(q), describe(k),
                 describe(v));
  return batch;
}

random::Position next_attention_dropout(const Tensor& q, std::int64_t weights_of_head) {
  random::refuse_in_slice(kAttention);
  const std::int64_t heads = leading_of(q).numel();
  const random::SliceContext* const context = random::slice_context();
  if (!context || !context->is_open()) return raw::next_dropout(heads * weights_of_head, q.device());
  const std::int64_t run = q.dim() >= 3 ? q.size(-3) * (context->has_groups ? q.size(-4) : 1) : 0;
  LOCKSTEP_CHECK(run > 0 && context->run_of(run * q.size(-1)) > 0,
                 "{}: q is {}, and runs after {}, whose outputs tensor parallelism has cut; with dropout expected "
                 "(batch, heads, time, dim) with heads * dim = {}, the columns of this rank",
                 kAttention, describe(q), context->opened_by, context->columns.back().run);
  const auto own = static_cast<std::uint64_t>(run * weights_of_head / 4);
  return raw::next_dropout(heads * weights_of_head * context->ranks, q.device(),
                           {.own = own,
                            .all = own * static_cast<std::uint64_t>(context->ranks),
                            .first = own * static_cast<std::uint64_t>(context->rank)});
}

namespace {

// Tells the region of tensor parallelism, if there is one, that attention has groups of heads.
class GroupsGuard {
 public:
  explicit GroupsGuard(random::SliceContext* context) : context_(context) {
    if (context_) outer_ = std::exchange(context_->has_groups, true);
  }
  ~GroupsGuard() {
    if (context_) context_->has_groups = outer_;
  }
  GroupsGuard(const GroupsGuard&) = delete;
  GroupsGuard& operator=(const GroupsGuard&) = delete;

 private:
  random::SliceContext* context_;
  bool outer_ = false;
};

// If slices share heads of k, each slice must have one of them: with two, its queries would be divided between both,
// although all of them belong to one.
void require_shared_heads(const random::SliceContext& context, const Tensor& k) {
  for (const auto& columns : context.columns) {
    const std::int64_t sharing = columns.sharing;
    LOCKSTEP_CHECK(sharing == 0 || columns.run != k.size(-3) * k.size(-1) || k.size(-3) == sharing,
                   "{}: k has {} heads on the {} slices of this rank, which share them with others (ColwiseParallel's "
                   ".repeat); expected one head on each: set .repeat to the slices divided by the heads of k",
                   kAttention, k.size(-3), sharing);
  }
}

}  // namespace

// k and v broadcast over the heads of a group.
Tensor grouped_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options) {
  LOCKSTEP_CHECK(q.dim() >= 3 && k.dim() >= 3 && v.dim() >= 3,
                 "{}: q is {}, k {}, v {}; with .enable_gqa expected (..., heads, time, dim)", kAttention, describe(q),
                 describe(k), describe(v));
  const std::int64_t heads = q.size(-3), groups = k.size(-3);
  LOCKSTEP_CHECK(groups == v.size(-3) && groups > 0 && heads % groups == 0,
                 "{}: q has {} heads, k {}, v {}; with .enable_gqa expected as many in k as in v, and a multiple in q",
                 kAttention, heads, groups, v.size(-3));
  const auto grouped = [&](const Tensor& x) {
    Shape shape = x.shape();
    shape.insert(x.dim() - 2, heads / groups);
    shape[x.shape().size() - 3] = groups;
    return x.reshape(shape);
  };
  if (const Tensor& mask = options.attn_mask; mask.defined() && mask.dim() >= 3)
    options.attn_mask = mask.size(-3) == heads && heads > 1 ? grouped(mask) : mask.unsqueeze(-3);
  options.enable_gqa = false;
  random::SliceContext* const context = random::slice_context();
  if (context) require_shared_heads(*context, k);
  const GroupsGuard guard(context);
  return scaled_dot_product_attention(grouped(q), k.unsqueeze(-3), v.unsqueeze(-3), options).flatten(-4, -3);
}

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  require_defined(kAttention, q, "q", k, "k", v, "v");
  if (narrows(q, k, v, options.attn_mask)) [[unlikely]] {
    AttentionOptions narrow = options;
    narrow.attn_mask = narrowed(options.attn_mask);
    return scaled_dot_product_attention(narrowed(q), narrowed(k), narrowed(v), narrow);
  }
  if (innermost_context) [[unlikely]]
    return innermost_context->attend(q, k, v, options);
  if (options.enable_gqa) return grouped_attention(q, k, v, options);
  const AttentionOperands x = prepare_attention(q, k, v, options);
  AttentionSetting setting{.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1)))),
                           .causal = options.is_causal,
                           .keep = 1 - options.dropout_p};
  if (setting.keep < 1) setting.position = next_attention_dropout(x.q, q.size(-2) * numbers_of(x).back());
  if (x.mask.defined() && requires_grad(x.mask)) {
    const random::SliceContext* const slices = random::slice_context();
    LOCKSTEP_CHECK(!slices || !slices->is_open(),
                   "{}: attn_mask requires grad, but after {} each rank has a part of the heads, and so of the mask's "
                   "gradient; pass mask.detach()",
                   kAttention, slices->opened_by);
    const AutocastGuard without_autocast(std::nullopt);
    return named(kAttention, [&] { return composed_attention(wide_operands(x), setting).to(q.dtype()); });
  }
  raw::Attended forward = raw::attention(x.q, x.k, x.v, x.mask, setting);
  return record(kAttention, forward.out, {x.q, x.k, x.v},
                [q = Saved(x.q), k = Saved(x.k), v = Saved(x.v), mask = Saved(x.mask), log_sums = forward.log_sums,
                 setting](const Tensor& grad, const Needs& needs, const Tensor& out) {
                  if (autograd::grad_mode())
                    return attention_gradients(in_f32(grad), wide_operands({*q, *k, *v, *mask}), setting, needs);
                  raw::AttentionGradients by = raw::attention_backward(grad, *q, *k, *v, *mask, {out, log_sums},
                                                                       setting, needs[0], needs[1], needs[2]);
                  return Gradients{std::move(by.q), std::move(by.k), std::move(by.v)};
                });
}

}  // namespace lockstep
