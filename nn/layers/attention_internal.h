// The part of MultiheadAttention that tensor parallelism replaces, and its masks. Not installed.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/layers/attention.h"

namespace lockstep::nn {

// Base of a module's runner (nn/module_runner_internal.h) that has some of the heads of a MultiheadAttention, and their
// rows of in_proj. out_proj then gets the results of these heads alone.
class HeadSlices {
 public:
  virtual ~HeadSlices() = default;
  virtual std::int64_t first_head() const = 0;
  virtual std::int64_t heads() const = 0;  // number of them
  // The positions that `own` of this rank's inputs become by the projection: more, if each rank has a part of the sequence.
  virtual std::int64_t all_positions(std::int64_t own) const = 0;
  // q, k and v (batch, time, heads() * size of a head) of inputs (batch, time, width). Inputs may be one tensor.
  virtual std::vector<Tensor> project(const Tensor& query, const Tensor& key, const Tensor& value) const = 0;
};

inline bool has_masks(const MultiheadAttentionMasks& masks) {
  return masks.attn_mask.defined() || masks.key_padding_mask.defined() || masks.is_causal;
}

// The number of all heads.
std::int64_t heads_of(const MultiheadAttention& module);

}  // namespace lockstep::nn
