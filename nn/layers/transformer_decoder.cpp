#include "lockstep/nn/layers/transformer_decoder.h"

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/attention_internal.h"
#include "lockstep/nn/module_runner_internal.h"

namespace lockstep::nn {
namespace {

// Runs the attention as a module, which has its path in errors and runs its hooks, or with masks as a function.
Tensor attend(const MultiheadAttention& attention, const Tensor& x, const Tensor& keys,
              const MultiheadAttentionMasks& masks) {
  return has_masks(masks) ? current_as<MultiheadAttention>(attention).forward(x, keys, keys, masks)
                          : attention({x, keys, keys});
}

void check_inputs(const Module& module, const std::vector<Tensor>& inputs) {
  LOCKSTEP_CHECK(inputs.size() == 2, "{}: called with {} inputs, expected x and memory: module({{x, memory}})",
                 module.type_name(), inputs.size());
}

}  // namespace

TransformerDecoderLayer::TransformerDecoderLayer(std::int64_t width, std::int64_t heads,
                                                 const TransformerDecoderLayerOptions& options)
    : self_attn(add<MultiheadAttention>(
          "self_attn", width, heads,
          MultiheadAttentionOptions{.dropout = options.dropout, .batch_first = options.batch_first})),
      multihead_attn(add<MultiheadAttention>(
          "multihead_attn", width, heads,
          MultiheadAttentionOptions{.dropout = options.dropout, .batch_first = options.batch_first})),
      linear1(add<Linear>("linear1", width, options.dim_feedforward)),
      dropout(add<Dropout>("dropout", options.dropout)),
      linear2(add<Linear>("linear2", options.dim_feedforward, width)),
      norm1(add<LayerNorm>("norm1", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps})),
      norm2(add<LayerNorm>("norm2", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps})),
      norm3(add<LayerNorm>("norm3", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps})),
      dropout1(add<Dropout>("dropout1", options.dropout)), dropout2(add<Dropout>("dropout2", options.dropout)),
      dropout3(add<Dropout>("dropout3", options.dropout)), activation_(options.activation),
      norm_first_(options.norm_first) {}

Tensor TransformerDecoderLayer::feedforward(const Tensor& x) const {
  const Tensor y = linear1(x);
  return dropout3(linear2(dropout(activation_ == TransformerActivation::kGELU ? gelu(y) : relu(y))));
}

Tensor TransformerDecoderLayer::compute(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks,
                                        const MultiheadAttentionMasks& memory_masks) const {
  const auto self = [&](const Tensor& t) { return dropout1(attend(self_attn, t, t, masks)); };
  const auto cross = [&](const Tensor& t) { return dropout2(attend(multihead_attn, t, memory, memory_masks)); };
  if (norm_first_) {
    const Tensor y = x + self(norm1(x)), z = y + cross(norm2(y));
    return z + feedforward(norm3(z));
  }
  const Tensor y = norm1(x + self(x)), z = norm2(y + cross(y));
  return norm3(z + feedforward(z));
}

Tensor TransformerDecoderLayer::forward(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks,
                                        const MultiheadAttentionMasks& memory_masks) const {
  return with_runner(*this, [&] { return compute(x, memory, masks, memory_masks); });
}

Tensor TransformerDecoderLayer::forward_inputs(const std::vector<Tensor>& inputs) const {
  check_inputs(*this, inputs);
  return compute(inputs[0], inputs[1], {}, {});
}

TransformerDecoder::TransformerDecoder(std::int64_t num_layers, std::int64_t width, std::int64_t heads,
                                       const TransformerDecoderLayerOptions& options, bool norm)
    : layers(add<ModuleList>("layers")) {
  LOCKSTEP_CHECK(num_layers >= 1, "TransformerDecoder: num_layers is {}, expected at least 1", num_layers);
  for (std::int64_t i = 0; i < num_layers; ++i) layers.push_back(TransformerDecoderLayer(width, heads, options));
  if (norm) norm_ = &add<LayerNorm>("norm", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps});
}

Tensor TransformerDecoder::compute(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks,
                                   const MultiheadAttentionMasks& memory_masks) const {
  Tensor y = x;
  for (const Module& module : layers) {
    y = has_masks(masks) || has_masks(memory_masks)
            ? current_as<TransformerDecoderLayer>(module).forward(y, memory, masks, memory_masks)
            : module({y, memory});
  }
  return norm_ ? (*norm_)(y) : y;
}

Tensor TransformerDecoder::forward(const Tensor& x, const Tensor& memory, const MultiheadAttentionMasks& masks,
                                   const MultiheadAttentionMasks& memory_masks) const {
  return with_runner(*this, [&] { return compute(x, memory, masks, memory_masks); });
}

Tensor TransformerDecoder::forward_inputs(const std::vector<Tensor>& inputs) const {
  check_inputs(*this, inputs);
  return compute(inputs[0], inputs[1], {}, {});
}

}  // namespace lockstep::nn
