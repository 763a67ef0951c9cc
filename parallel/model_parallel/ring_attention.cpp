// Ring attention: the merge of attention to one sequence block after another, and its backward.
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/autograd/attention_context_internal.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/autocast_internal.h"
#include "lockstep/autograd/ops/operations_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/model_parallel/ring_internal.h"
#include "lockstep/tensor/ops/attention_internal.h"
#include "lockstep/tensor/random/random_ops_internal.h"

namespace lockstep::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One attention of this rank's queries to the keys of all ranks: what forward and backward share. Tensors have no history.
class RingCall {
 public:
  RingCall(Ring ring, const Tensor& q, const AttentionOptions& options);

  // The operands of scaled_dot_product_attention: q with all leading dimensions, a mask of shape (..., time, time of all
  // ranks), or undefined.
  struct Operands {
    Tensor q, k, v, mask;
  };
  // Sets log_sums_.
  Tensor forward(const Operands& x);
  Gradients backward(const Tensor& grad, const Operands& x, const Tensor& out, const Needs& needs);

 private:
  BlockPair pair(int step) const {
    return ring_.blocks.pair(ring_.blocks.own, ring_.blocks.reached(step), time_, causal_);
  }
  raw::AttentionSetting setting(const BlockPair& pair, random::Position dropout) const {
    return {.scale = scale_, .causal = pair.causal, .keep = keep_, .position = dropout};
  }
  // The first rows of keys or values as the pair's kernel takes them.
  Tensor operand(const Tensor& block, const BlockPair& pair) const;
  Tensor mask_of(const Tensor& mask, int step) const;
  void merge(const BlockPair& pair, raw::Attended block, bool is_masked, Tensor& out);

  Ring ring_;
  bool causal_;
  double scale_, keep_;
  Shape batch_;  // the leading dimensions of q
  std::int64_t time_;
  Tensor all_k_, all_v_;
  Tensor log_sums_;                         // (batch..., time, 1): log-sum-exp of each query's scores
  std::vector<random::Position> dropouts_;  // by step that has weights
};

// The kernels of CPUs have no f16 and bf16.
Tensor for_kernels(const Tensor& x) { return x.device().is_cpu() ? in_f32(x) : x; }

Tensor rows_of(const Tensor& x, const BlockPair& pair) { return x.narrow(-2, pair.first_query, pair.queries); }

RingCall::RingCall(Ring ring, const Tensor& q, const AttentionOptions& options)
    : ring_(std::move(ring)), causal_(options.is_causal),
      scale_(options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))))), keep_(1 - options.dropout_p),
      batch_(leading_of(q)), time_(q.size(-2)) {}

Tensor RingCall::operand(const Tensor& block, const BlockPair& pair) const {
  return for_kernels(block.narrow(-2, 0, pair.keys)).expand(with_matrix(batch_, pair.keys, block.size(-1)));
}

// Pairs with a mask are whole: a mask excludes .is_causal.
Tensor RingCall::mask_of(const Tensor& mask, int step) const {
  if (!mask.defined()) return {};
  const bool is_wide = mask.size(-1) > 1;
  const Tensor own = is_wide ? ring_.blocks.part(mask, -1, ring_.blocks.reached(step)) : mask;
  return in_f32(own).expand(with_matrix(batch_, time_, is_wide ? own.size(-1) : time_));
}

// Merges the results for one sequence block with those before: with s the log-sum-exp so far and b the new one, it
// becomes s + softplus(b - s), and out += sigmoid(b - s) (block.out - out). A query without a key so far has s = -inf.
void RingCall::merge(const BlockPair& pair, raw::Attended block, bool is_masked, Tensor& out) {
  Tensor sums = block.log_sums.reshape(with_matrix(batch_, pair.queries, 1));
  if (is_masked) sums = where(sums == kInfinity, -kInfinity, sums);  // the kernels' mark of a row without a key
  block.out = in_f32(block.out);
  if (!out.defined()) {  // this rank's own keys, to which all its queries attend
    out = block.out, log_sums_ = sums;
    return;
  }
  const Tensor out_rows = rows_of(out, pair), sum_rows = rows_of(log_sums_, pair);
  const Tensor above = sub(sums, sum_rows);
  Tensor weight = sigmoid(above), next = add(sum_rows, softplus(above, 1, kInfinity));
  if (is_masked) {
    const Tensor is_empty = sums == -kInfinity;
    weight = masked_fill(weight, is_empty, 0);
    next = where(is_empty, sum_rows, where(sum_rows == -kInfinity, sums, next));
  }
  raw::copy(add(out_rows, mul(weight, sub(block.out, out_rows))), out_rows);
  raw::copy(next, sum_rows);
}

Tensor RingCall::forward(const Operands& x) {
  const Tensor own_k = x.k.contiguous(), own_v = x.v.contiguous(), queries = for_kernels(x.q);
  const bool is_masked = x.mask.defined();
  if (ring_.gathers) {
    all_k_ = of_all_ranks(*ring_.group, own_k, Phase::kKeysValues, "keys");
    all_v_ = of_all_ranks(*ring_.group, own_v, Phase::kKeysValues, "values");
  }
  const int tags = next_tags(ring_);
  BlocksInTurn keys(ring_, own_k, all_k_, {tags, "keys", Phase::kKeysValues});
  BlocksInTurn values(ring_, own_v, all_v_, {tags + 1, "values", Phase::kKeysValues});
  Tensor out;
  for (int step = 0; step < ring_.blocks.count; ++step) {
    const Tensor block_k = keys.at(step), block_v = values.at(step);
    const BlockPair weights = pair(step);
    if (weights.queries == 0) continue;
    const std::int64_t padded = (weights.keys + 3) / 4 * 4;  // as the kernels number the factors of dropout
    if (keep_ < 1) dropouts_.push_back(next_attention_dropout(x.q, weights.queries * padded));
    merge(weights,
          raw::attention(rows_of(queries, weights), operand(block_k, weights), operand(block_v, weights),
                         mask_of(x.mask, step), setting(weights, keep_ < 1 ? dropouts_.back() : random::Position{})),
          is_masked, out);
  }
  if (is_masked) log_sums_ = where(log_sums_ == -kInfinity, kInfinity, log_sums_);
  return out.to(x.q.dtype());
}

Gradients RingCall::backward(const Tensor& grad, const Operands& x, const Tensor& out, const Needs& needs) {
  const Tensor queries = for_kernels(x.q), grads = for_kernels(grad), outs = for_kernels(out);
  const int tags = next_tags(ring_);
  BlocksInTurn keys(ring_, x.k.contiguous(), all_k_, {tags, "keys", Phase::kKeysValues});
  BlocksInTurn values(ring_, x.v.contiguous(), all_v_, {tags + 1, "values", Phase::kKeysValues});
  BlockGradients grad_k(ring_, causal_, {tags + 2, "key gradients", Phase::kActivationGradients});
  BlockGradients grad_v(ring_, causal_, {tags + 3, "value gradients", Phase::kActivationGradients});
  const auto contribution = [](const Tensor& by, const Tensor& block) {  // summed over what broadcasting repeated
    if (!by.defined()) return Tensor();
    return sum_to(in_f32(by), with_matrix(leading_of(block), by.size(-2), by.size(-1))).contiguous();
  };
  Tensor grad_q;
  std::size_t drawn = 0;
  for (int step = 0; step < ring_.blocks.count; ++step) {
    const Tensor block_k = keys.at(step), block_v = values.at(step);
    const BlockPair weights = pair(step);
    raw::AttentionGradients by;
    if (weights.queries > 0) {
      const raw::Attended forward{rows_of(outs, weights), rows_of(log_sums_, weights).contiguous()};
      by = raw::attention_backward(rows_of(grads, weights), rows_of(queries, weights), operand(block_k, weights),
                                   operand(block_v, weights), mask_of(x.mask, step), forward,
                                   setting(weights, keep_ < 1 ? dropouts_[drawn++] : random::Position{}), needs[0],
                                   needs[1], needs[2]);
    }
    if (by.q.defined() && !grad_q.defined())
      grad_q = in_f32(by.q);
    else if (by.q.defined())
      raw::copy(add(rows_of(grad_q, weights), in_f32(by.q)), rows_of(grad_q, weights));
    if (needs[1]) grad_k.add(step, contribution(by.k, block_k));
    if (needs[2]) grad_v.add(step, contribution(by.v, block_v));
  }
  const auto rounded = [&](const Tensor& gradient) { return gradient.defined() ? gradient.to(x.q.dtype()) : gradient; };
  return {rounded(grad_q), needs[1] ? rounded(grad_k.finish()) : Tensor(),
          needs[2] ? rounded(grad_v.finish()) : Tensor()};
}

}  // namespace

Tensor ring_attention(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options) {
  if (options.enable_gqa) return grouped_attention(q, k, v, options);
  const Tensor queries = q.expand(with_matrix(attention_batch(q, k, v), q.size(-2), q.size(-1)));
  const auto call = std::make_shared<RingCall>(ring, queries, options);
  Tensor out;
  {
    const NoGradGuard no_grad;
    out = call->forward({queries, k, v, options.attn_mask});
  }
  return record("scaled_dot_product_attention", out, {queries, k, v},
                [call, q = Saved(queries), k = Saved(k), v = Saved(v), mask = Saved(options.attn_mask)](
                    const Tensor& grad, const Needs& needs, const Tensor& out) {
                  LOCKSTEP_CHECK(!autograd::grad_mode(),
                                 "context_parallel: second derivatives are not supported; call backward without "
                                 "create_graph");
                  return call->backward(grad, {*q, *k, *v, *mask}, out, needs);
                });
}

}  // namespace lockstep::parallel
