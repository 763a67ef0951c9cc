/// \file
/// Transformer decoders. Names are PyTorch's.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/nn/layers/transformer.h"

namespace lockstep::nn {

/// The same options as those of an encoder layer; dropout is the probability of all six dropouts.
using TransformerDecoderLayerOptions = TransformerEncoderLayerOptions;

/// Self-attention, attention to `memory` and two linear layers, each with dropout, residual connection and LayerNorm.
/// (Vaswani et al., 2017)
class TransformerDecoderLayer : public Module {
 public:
  /// Throws InvalidArgument as MultiheadAttention and Dropout.
  TransformerDecoderLayer(std::int64_t width, std::int64_t heads, const TransformerDecoderLayerOptions& options = {});
  using Module::forward;
  /// x (batch, time, width) and memory (batch, time_m, width), or both without batch -> the shape of x. `masks` are those
  /// of the self-attention, `memory_masks` those of the attention to memory.
  Tensor forward(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks = {},
                 const MultiheadAttentionMasks& memory_masks = {}) const;
  Tensor forward_inputs(const std::vector<Tensor>& inputs) const override;  ///< x and memory

  MultiheadAttention& self_attn;       ///< the self-attention
  MultiheadAttention& multihead_attn;  ///< the attention to memory
  Linear& linear1;                     ///< width to dim_feedforward
  Dropout& dropout;                    ///< after the activation
  Linear& linear2;                     ///< dim_feedforward to width
  LayerNorm& norm1;                    ///< of the self-attention
  LayerNorm& norm2;                    ///< of the attention to memory
  LayerNorm& norm3;                    ///< of the linear layers
  Dropout& dropout1;                   ///< after the self-attention
  Dropout& dropout2;                   ///< after the attention to memory
  Dropout& dropout3;                   ///< after the linear layers

 private:
  Tensor feedforward(const Tensor& x) const;
  Tensor compute(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks,
                 const MultiheadAttentionMasks& memory_masks) const;

  TransformerActivation activation_;
  bool norm_first_;
};

/// `num_layers` layers, each on the result of the one before and on memory, and a LayerNorm at the end if `norm`:
/// "layers.0.linear1.weight", "norm.weight". PyTorch's takes a layer, which it copies; here each layer has initial values
/// of its own.
class TransformerDecoder : public Module {
 public:
  /// Throws InvalidArgument for num_layers below 1, and as TransformerDecoderLayer.
  TransformerDecoder(std::int64_t num_layers, std::int64_t width, std::int64_t heads,
                     const TransformerDecoderLayerOptions& options = {}, bool norm = false);
  using Module::forward;
  /// As TransformerDecoderLayer. All layers use the masks.
  Tensor forward(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks = {},
                 const MultiheadAttentionMasks& memory_masks = {}) const;
  Tensor forward_inputs(const std::vector<Tensor>& inputs) const override;  ///< x and memory

  ModuleList& layers;  ///< of TransformerDecoderLayer

 private:
  Tensor compute(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks,
                 const MultiheadAttentionMasks& memory_masks) const;

  LayerNorm* norm_ = nullptr;
};

}  // namespace lockstep::nn
