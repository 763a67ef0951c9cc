/// \file
/// Multi-head attention. Names and initialisation are PyTorch's.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

class Linear;  // layers.h

struct MultiheadAttentionOptions {
  double dropout = 0;       ///< probability that a weight of the softmax is set to 0 while training
  bool bias = true;         ///< false: no bias in the projections
  bool batch_first = true;  ///< x is (batch, time, width); false: (time, batch, width), PyTorch's default
};

/// Which keys a query attends to. In bool masks true means that it does not, as in PyTorch's module, and unlike in
/// scaled_dot_product_attention. Masks of another dtype are added to the scores.
struct MultiheadAttentionMasks {
  Tensor attn_mask = {};         ///< (time, time_k) or (batch * heads, time, time_k)
  Tensor key_padding_mask = {};  ///< (batch, time_k), or (time_k) for inputs without batch
  bool is_causal = false;        ///< query i attends to keys 0 to i; the masks, if any, apply as well
};

/// Multi-head attention: projects query, key and value, applies `heads` attention heads in parallel, each on
/// width / heads features, and projects the result. in_proj_weight is initialised as by xavier_uniform_, out_proj.weight
/// as in Linear, biases with 0. (Vaswani et al., 2017)
class MultiheadAttention : public Module {
 public:
  /// Throws InvalidArgument unless `heads` divides `width`, and for a dropout outside [0, 1].
  MultiheadAttention(std::int64_t width, std::int64_t heads, const MultiheadAttentionOptions& options = {});

  /// query (batch, time, width), key and value (batch, time_k, width) -> (batch, time, width); without batch, all three
  /// have two dimensions. With `.batch_first` false, batch and time are exchanged. Unlike PyTorch's, it returns no weights.
  /// Throws InvalidArgument for other shapes.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const MultiheadAttentionMasks& masks = {}) const;
  Tensor forward(const Tensor& x) const override { return forward(x, x, x); }
  /// One input, or query, key and value.
  Tensor forward_inputs(const std::vector<Tensor>& inputs) const override;

  Parameter& in_proj_weight;  ///< (3 width, width): of query, key and value
  Parameter& in_proj_bias;    ///< (3 width); an undefined tensor if `.bias` is false
  Linear& out_proj;           ///< the projection of the result

 private:
  friend std::int64_t heads_of(const MultiheadAttention& module);
  Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value,
                const MultiheadAttentionMasks& masks) const;

  std::int64_t width_, heads_;
  MultiheadAttentionOptions options_;
};

}  // namespace lockstep::nn
