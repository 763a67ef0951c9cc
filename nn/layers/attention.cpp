#include "lockstep/nn/layers/attention.h"

#include <cmath>
#include <limits>

#include "lockstep/autograd/attention_context_internal.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/initial_internal.h"
#include "lockstep/nn/layers/attention_internal.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

std::int64_t check_heads(std::int64_t width, std::int64_t heads) {
  LOCKSTEP_CHECK(width >= 1 && heads >= 1 && width % heads == 0,
                 "MultiheadAttention: width {} and {} heads; expected a width divisible by the number of heads", width,
                 heads);
  return width;
}

// xavier_uniform_ of a weight (3 width, width).
Tensor projection_weight(std::int64_t width) {
  const double bound = std::sqrt(6.0 / static_cast<double>(4 * width));
  return initial_uniform({3 * width, width}, -bound, bound);
}

void check_inputs(const Tensor& query, const Tensor& key, const Tensor& value, std::int64_t width, int batch) {
  const int dims = query.dim();
  LOCKSTEP_CHECK((dims == 2 || dims == 3) && key.dim() == dims && value.dim() == dims && query.size(-1) == width &&
                     key.shape() == value.shape() && key.size(-1) == width &&
                     (dims == 2 || query.size(batch) == key.size(batch)),
                 "MultiheadAttention: query is {}, key {}, value {}; expected key and value of equal shape, equal "
                 "batch sizes, and "
                 "width {}",
                 describe(query), describe(key), describe(value), width);
}

void require_mask_dtype(const char* name, const Tensor& mask) {
  LOCKSTEP_CHECK(mask.dtype() == kBool || mask.is_floating_point(),
                 "MultiheadAttention: {} is {}, expected bool or floating point; convert it with to(kBool)", name,
                 describe(mask));
}

// A mask as scaled_dot_product_attention takes it.
Tensor inverted(const Tensor& mask) { return mask.dtype() == kBool ? ~mask : mask; }

bool is_same(const Tensor& a, const Tensor& b) { return &a.impl() == &b.impl(); }

// q, k and v of all heads. Without a bias, `bias` is undefined.
std::vector<Tensor> project(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& weight,
                            const Tensor& bias) {
  if (is_same(query, key) && is_same(key, value)) return chunk(linear(query, weight, bias), 3, -1);
  const std::int64_t width = weight.size(1);
  const Tensor* const inputs[] = {&query, &key, &value};
  std::vector<Tensor> projected;
  for (std::int64_t i = 0; i < 3; ++i)
    projected.push_back(linear(*inputs[i], weight.narrow(0, i * width, width),
                               bias.defined() ? bias.narrow(0, i * width, width) : Tensor()));
  return projected;
}

// The runner that has some of the heads; null: all are here.
std::shared_ptr<const HeadSlices> head_slices_of(const MultiheadAttention& module) {
  if (!ModuleRunner::exists()) return nullptr;
  for (const auto& runner : runners_of(module)) {
    if (auto slices = std::dynamic_pointer_cast<const HeadSlices>(runner)) return slices;
  }
  return nullptr;
}

void check_cut_mask(const char* name, const Tensor& mask) {
  LOCKSTEP_CHECK(!mask.defined() || !autograd::requires_grad(mask),
                 "MultiheadAttention: {} requires grad, and tensor parallelism has cut the heads: each rank would have "
                 "a part of its gradient; pass mask.detach()",
                 name);
}

// Both masks, undefined if there is none; `scores` is (batch, heads, time, time_k), of all heads.
Tensor attn_mask_for(const Tensor& mask, const Shape& scores, const HeadSlices* slices) {
  if (!mask.defined()) return {};
  const Shape matrix{scores[2], scores[3]}, all{scores[0] * scores[1], scores[2], scores[3]};
  LOCKSTEP_CHECK(mask.shape() == matrix || mask.shape() == all,
                 "MultiheadAttention: attn_mask is {}, expected shape {} or, for every head, {}", describe(mask),
                 matrix.to_string(), all.to_string());
  require_mask_dtype("attn_mask", mask);
  if (mask.dim() == 2) return inverted(mask);
  const Tensor of_heads = mask.reshape(scores);
  return inverted(slices ? of_heads.narrow(1, slices->first_head(), slices->heads()) : of_heads);
}
Tensor key_padding_mask_for(const Tensor& mask, const Shape& scores) {
  if (!mask.defined()) return {};
  const Shape samples{scores[0], scores[3]};
  LOCKSTEP_CHECK(mask.shape() == samples || (scores[0] == 1 && mask.shape() == Shape{scores[3]}),
                 "MultiheadAttention: key_padding_mask is {}, expected shape {}", describe(mask), samples.to_string());
  require_mask_dtype("key_padding_mask", mask);
  return inverted(mask.reshape({scores[0], 1, 1, scores[3]}));
}

// The mask that permits what both permit.
Tensor both(const Tensor& a, const Tensor& b, DType dtype) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  if (a.dtype() == kBool && b.dtype() == kBool) return a & b;
  const auto added = [dtype](const Tensor& mask) {
    if (mask.dtype() != kBool) return mask;
    return where(mask, 0.0, -std::numeric_limits<double>::infinity()).to(dtype);
  };
  return added(a) + added(b);
}

}  // namespace

std::int64_t heads_of(const MultiheadAttention& module) { return module.heads_; }

MultiheadAttention::MultiheadAttention(std::int64_t width, std::int64_t heads, const MultiheadAttentionOptions& options)
    : in_proj_weight(add_parameter("in_proj_weight", projection_weight(check_heads(width, heads)))),
      in_proj_bias(add_parameter("in_proj_bias", options.bias ? initial_zeros({3 * width}) : Tensor())),
      out_proj(add<Linear>("out_proj", width, width, LinearOptions{.bias = options.bias})), width_(width),
      heads_(heads), options_(options) {
  LOCKSTEP_CHECK(options.dropout >= 0 && options.dropout <= 1, "MultiheadAttention: dropout is {}, expected 0 to 1",
                 options.dropout);
  if (options.bias) init::zeros_(out_proj.bias);
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const MultiheadAttentionMasks& masks) const {
  return with_runner(*this, [&] { return attend(query, key, value, masks); });
}

Tensor MultiheadAttention::attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const MultiheadAttentionMasks& masks) const {
  check_inputs(query, key, value, width_, options_.batch_first ? 0 : 1);
  const std::shared_ptr<const HeadSlices> slices = head_slices_of(*this);
  const std::int64_t heads = slices ? slices->heads() : heads_, columns = width_ / heads_ * heads;  // on this rank
  const bool has_batch = query.dim() == 3, turned = has_batch && !options_.batch_first;
  const auto batch_first = [&](const Tensor& x) { return turned ? x.transpose(0, 1) : has_batch ? x : x.unsqueeze(0); };
  // Slices share what enters them if it is the same tensor.
  const bool shares = slices || (is_same(key, query) && is_same(value, query));
  const Tensor q_input = batch_first(query), k_input = shares && is_same(key, query) ? q_input : batch_first(key),
               v_input = shares && is_same(value, query) ? q_input
                         : shares && is_same(value, key) ? k_input
                                                         : batch_first(value);

  const autograd::AttentionContext* const context = autograd::attention_context();
  const auto time_of = [&](const Tensor& x) { return slices ? slices->all_positions(x.size(1)) : x.size(1); };
  const std::int64_t batch = q_input.size(0), time = time_of(q_input), own_k = time_of(k_input),
                     time_k = context ? context->all_keys(own_k) : own_k;
  const Shape scores{batch, heads_, time, time_k};
  if (slices) check_cut_mask("attn_mask", masks.attn_mask), check_cut_mask("key_padding_mask", masks.key_padding_mask);
  Tensor mask = both(attn_mask_for(masks.attn_mask, scores, slices.get()),
                     key_padding_mask_for(masks.key_padding_mask, scores), query.dtype());
  const bool masked = mask.defined();
  if (masks.is_causal && masked) {
    const TensorOptions there = {.device = query.device()};
    const Tensor positions = context ? context->positions(time).to(query.device()) : arange(time, there);
    mask = both(mask, positions.unsqueeze(1) >= arange(time_k, there), query.dtype());
  }

  // Split into heads: (batch, heads, time, width / heads).
  std::vector<Tensor> projected = slices ? slices->project(q_input, k_input, v_input)
                                         : project(q_input, k_input, v_input, in_proj_weight, in_proj_bias);
  for (Tensor& x : projected) x = x.reshape({x.size(0), x.size(1), heads, width_ / heads_}).transpose(1, 2);
  const Tensor y = scaled_dot_product_attention(
      projected[0], projected[1], projected[2],
      {.attn_mask = mask, .dropout_p = is_training() ? options_.dropout : 0, .is_causal = masks.is_causal && !masked});
  const Tensor out = out_proj(y.transpose(1, 2).reshape({batch, time, columns}));
  return turned ? out.transpose(0, 1) : has_batch ? out : out.squeeze(0);
}

Tensor MultiheadAttention::forward_inputs(const std::vector<Tensor>& inputs) const {
  LOCKSTEP_CHECK(inputs.size() == 1 || inputs.size() == 3,
                 "MultiheadAttention: called with {} inputs, expected one, or query, key and value", inputs.size());
  return inputs.size() == 1 ? forward(inputs[0]) : forward(inputs[0], inputs[1], inputs[2]);
}

}  // namespace lockstep::nn
