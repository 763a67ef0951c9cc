#include "lockstep/nn/layers/transformer.h"

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/attention_internal.h"
#include "lockstep/nn/module_runner_internal.h"

namespace lockstep::nn {
namespace {

// Runs a layer as a module, which has its path in errors and runs its hooks, or with masks as a function.
template <class Layer, class WithMasks>
Tensor masked_call(const Layer& layer, const Tensor& x, const MultiheadAttentionMasks& masks, WithMasks with_masks) {
  return has_masks(masks) ? with_masks() : layer(x);
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t width, std::int64_t heads,
                                                 const TransformerEncoderLayerOptions& options)
    : self_attn(add<MultiheadAttention>(
          "self_attn", width, heads,
          MultiheadAttentionOptions{.dropout = options.dropout, .batch_first = options.batch_first})),
      linear1(add<Linear>("linear1", width, options.dim_feedforward)),
      dropout(add<Dropout>("dropout", options.dropout)),
      linear2(add<Linear>("linear2", options.dim_feedforward, width)),
      norm1(add<LayerNorm>("norm1", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps})),
      norm2(add<LayerNorm>("norm2", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps})),
      dropout1(add<Dropout>("dropout1", options.dropout)), dropout2(add<Dropout>("dropout2", options.dropout)),
      activation_(options.activation), norm_first_(options.norm_first) {}

Tensor TransformerEncoderLayer::attention(const Tensor& x, const MultiheadAttentionMasks& masks) const {
  return dropout1(masked_call(self_attn, x, masks,
                              [&] { return current_as<MultiheadAttention>(self_attn).forward(x, x, x, masks); }));
}

Tensor TransformerEncoderLayer::feedforward(const Tensor& x) const {
  const Tensor y = linear1(x);
  return dropout2(linear2(dropout(activation_ == TransformerActivation::kGELU ? gelu(y) : relu(y))));
}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const MultiheadAttentionMasks& masks) const {
  return with_runner(*this, [&] {
    if (norm_first_) {
      const Tensor y = x + attention(norm1(x), masks);
      return y + feedforward(norm2(y));
    }
    const Tensor y = norm1(x + attention(x, masks));
    return norm2(y + feedforward(y));
  });
}

TransformerEncoder::TransformerEncoder(std::int64_t num_layers, std::int64_t width, std::int64_t heads,
                                       const TransformerEncoderLayerOptions& options, bool norm)
    : layers(add<ModuleList>("layers")) {
  LOCKSTEP_CHECK(num_layers >= 1, "TransformerEncoder: num_layers is {}, expected at least 1", num_layers);
  for (std::int64_t i = 0; i < num_layers; ++i) layers.push_back(TransformerEncoderLayer(width, heads, options));
  if (norm) norm_ = &add<LayerNorm>("norm", Shape{width}, LayerNormOptions{.eps = options.layer_norm_eps});
}

Tensor TransformerEncoder::forward(const Tensor& x, const MultiheadAttentionMasks& masks) const {
  return with_runner(*this, [&] {
    Tensor y = x;
    for (const Module& module : layers) {
      y = masked_call(module, y, masks, [&] { return current_as<TransformerEncoderLayer>(module).forward(y, masks); });
    }
    return norm_ ? (*norm_)(y) : y;
  });
}

}  // namespace lockstep::nn
