// The attention context of a thread: an object that computes scaled_dot_product_attention if the keys are on several
// ranks. Recomputation (checkpoint) restores the context of the forward pass. Not installed.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/tensor/random/random_draws_internal.h"

namespace lockstep::autograd {

class AttentionContext : public std::enable_shared_from_this<AttentionContext> {
 public:
  AttentionContext() = default;
  virtual ~AttentionContext() = default;
  AttentionContext(const AttentionContext&) = delete;
  AttentionContext& operator=(const AttentionContext&) = delete;

  // Computes scaled_dot_product_attention; autocast has converted the operands.
  virtual Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) const = 0;
  // The number of keys on all ranks, if `own` keys are on this rank.
  virtual std::int64_t all_keys(std::int64_t own) const = 0;
  // i64 (own): the positions of this rank's queries in the whole sequence.
  virtual Tensor positions(std::int64_t own) const = 0;
};

// The calling thread's context; null by default: all keys are on this rank.
const AttentionContext* attention_context();

// While the guard exists, the calling thread's context is `context`; null: none.
class AttentionContextGuard {
 public:
  explicit AttentionContextGuard(const AttentionContext* context);
  ~AttentionContextGuard();
  AttentionContextGuard(const AttentionContextGuard&) = delete;
  AttentionContextGuard& operator=(const AttentionContextGuard&) = delete;

 private:
  const AttentionContext* previous_;
};

}  // namespace lockstep::autograd

namespace lockstep {

// Throws InvalidArgument unless dtypes, devices and the last two sizes match, and for a dropout_p outside [0, 1].
void require_attention_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options);
// The shape that the leading dimensions of q, k and v broadcast to. Throws InvalidArgument.
Shape attention_batch(const Tensor& q, const Tensor& k, const Tensor& v);
// Throws InvalidArgument unless the mask's device and dtype fit, and its shape broadcasts to that of the scores.
void require_attention_mask(const Tensor& mask, const Tensor& q, const Shape& scores, bool is_causal);
// Reserves the random numbers of attention's dropout, and returns their position: `weights_of_head`, a multiple of 4,
// for each head of q (..., heads, time, dim). In a region of tensor parallelism, reserves those of the heads of all
// ranks.
random::Position next_attention_dropout(const Tensor& q, std::int64_t weights_of_head);
// Attention with .enable_gqa: calls scaled_dot_product_attention with views in which q's dimension of heads is split
// into (heads of k, heads of q for each head of k).
Tensor grouped_attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options);

}  // namespace lockstep
