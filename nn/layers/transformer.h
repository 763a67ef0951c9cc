/// \file
/// Transformer encoders. Names are PyTorch's.
#pragma once

#include <cstdint>

#include "lockstep/nn/layers/attention.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/layers/norm_layers.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// The activation between both linear layers of a transformer layer.
enum class TransformerActivation : std::uint8_t { kReLU, kGELU };

struct TransformerEncoderLayerOptions {
  std::int64_t dim_feedforward = 2048;                              ///< width between both linear layers
  double dropout = 0.1;                                             ///< probability, of all four dropouts
  TransformerActivation activation = TransformerActivation::kReLU;  ///< kReLU or kGELU
  double layer_norm_eps = 1e-5;                                     ///< added to the variance
  bool batch_first = true;  ///< x is (batch, time, width); false: (time, batch, width), PyTorch's default
  bool norm_first = false;  ///< normalises before attention and feedforward, instead of after
};

/// Self-attention and two linear layers, each with dropout, residual connection and LayerNorm. (Vaswani et al., 2017)
class TransformerEncoderLayer : public Module {
 public:
  /// Throws InvalidArgument as MultiheadAttention and Dropout.
  TransformerEncoderLayer(std::int64_t width, std::int64_t heads, const TransformerEncoderLayerOptions& options = {});
  /// x (batch, time, width), or (time, width) -> the same shape.
  Tensor forward(const Tensor& x) const override { return forward(x, {}); }
  Tensor forward(const Tensor& x, const MultiheadAttentionMasks& masks) const;

  MultiheadAttention& self_attn;  ///< the attention
  Linear& linear1;                ///< width to dim_feedforward
  Dropout& dropout;               ///< after the activation
  Linear& linear2;                ///< dim_feedforward to width
  LayerNorm& norm1;               ///< of the attention
  LayerNorm& norm2;               ///< of the linear layers
  Dropout& dropout1;              ///< after the attention
  Dropout& dropout2;              ///< after the linear layers

 private:
  Tensor attention(const Tensor& x, const MultiheadAttentionMasks& masks) const;
  Tensor feedforward(const Tensor& x) const;

  TransformerActivation activation_;
  bool norm_first_;
};

/// `num_layers` layers, each on the result of the one before, and a LayerNorm at the end if `norm`: "layers.0.linear1.
/// weight", "norm.weight". PyTorch's takes a layer, which it copies; here each layer has initial values of its own.
class TransformerEncoder : public Module {
 public:
  /// Throws InvalidArgument for num_layers below 1, and as TransformerEncoderLayer.
  TransformerEncoder(std::int64_t num_layers, std::int64_t width, std::int64_t heads,
                     const TransformerEncoderLayerOptions& options = {}, bool norm = false);
  /// x (batch, time, width), or (time, width) -> the same shape. All layers use the masks.
  Tensor forward(const Tensor& x) const override { return forward(x, {}); }
  Tensor forward(const Tensor& x, const MultiheadAttentionMasks& masks) const;

  ModuleList& layers;  ///< of TransformerEncoderLayer

 private:
  LayerNorm* norm_ = nullptr;
};

}  // namespace lockstep::nn
