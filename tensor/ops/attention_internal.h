// Attention: what its kernels receive, and the raw operations.
#pragma once

#include <cstdint>

#include "lockstep/tensor/random/random_draws_internal.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::raw {

// A tensor (batch..., rows, columns): strides in elements. Without data: the operand is absent.
struct AttentionOperand {
  void* data = nullptr;
  std::int64_t row = 0, column = 1;  // every operand but the mask has column stride 1
  Strides batch;
};

inline constexpr std::int64_t kAttentionTile = 64;  // queries of a tile on a CPU, and keys

// out (time, dim_v) = dropout(softmax(scale q k^T + mask)) v for each of `count` problems, which the batch dimensions
// number; q (time, dim), k (time_k, dim), v (time_k, dim_v).
struct Attention {
  std::int64_t time, time_k, dim, dim_v;
  Shape batch;
  std::int64_t count;
  double scale;
  bool causal;     // query i attends to keys 0 to i only
  bool bool_mask;  // true: the query attends to the key; otherwise the mask is added to the scores
  AttentionOperand q, k, v, mask, out;
  // (count, time), f32 for f16 and bf16: log-sum-exp of each row's scores; infinity for a fully masked row.
  void* log_sums;
  AttentionOperand grad, grad_q, grad_k, grad_v;  // of backward; gradients without data are not computed
  double keep;                                    // probability to keep a weight; 1: no dropout
  random::Position position;  // of the dropout mask (count, time, 4 ceil(time_k / 4)), whose rows start new blocks
  void* workspace;            // on a CPU: attention_room elements for each share
  std::int64_t shares;        // on a CPU: parts of the work, each for one thread
};

// Elements of a row in the workspace: whole vectors of any instruction set, and no power of two, whose lines would
// compete for the same sets of a cache.
inline std::int64_t attention_row(std::int64_t columns) { return (columns + 31) / 32 * 32 + 16; }

// Elements of workspace for one share. In forward: tiles of packed queries, keys, values, results, scores and dropout
// factors. In backward also tiles of the gradients of results and queries, and the gradients of all keys and values.
inline std::int64_t attention_room(const Attention& a, bool backward) {
  const std::int64_t row = attention_row(a.dim), row_v = attention_row(a.dim_v), tile = kAttentionTile;
  if (!backward) return tile * (a.dim + row + 2 * row_v + 2 * tile);
  return tile * (a.dim + a.dim_v + 3 * row + 2 * row_v + 3 * tile) + a.time_k * (row + row_v);
}

struct AttentionSetting {
  double scale = 1;
  bool causal = false;
  double keep = 1;
  random::Position position{};  // used if keep < 1
};

struct Attended {
  Tensor out;       // (batch..., time, dim_v), strides in the order of q's
  Tensor log_sums;  // (count, time)
};
// q, k, v and mask (undefined: none) have the same batch dimensions; the caller has checked their shapes.
Attended attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                   const AttentionSetting& setting);

struct AttentionGradients {
  Tensor q, k, v;
};
// The gradients that are asked for; the others are undefined.
AttentionGradients attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& mask, const Attended& forward, const AttentionSetting& setting,
                                      bool needs_q, bool needs_k, bool needs_v);

}  // namespace lockstep::raw
