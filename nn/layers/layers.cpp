#include "lockstep/nn/layers/layers.h"

#include <algorithm>
#include <vector>

#include "lockstep/autograd/ops/functions.h"
#include "lockstep/base/byte_reader_internal.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layer_parts_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::nn {
namespace {

Shape check_linear(std::int64_t in, std::int64_t out) {
  LOCKSTEP_CHECK(in >= 0 && out >= 0, "Linear: sizes are in {}, out {}; neither may be negative", in, out);
  return {out, in};
}

}  // namespace

// Members are initialised in order of declaration, so each layer's weight is drawn before its bias.
Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight(add_parameter("weight", uniform_by_fan_in(check_linear(in, out), in))),
      bias(add_parameter("bias", options.bias ? uniform_by_fan_in({out}, in) : Tensor())) {}

Tensor Linear::forward(const Tensor& x) const { return linear(x, weight, bias); }

Module& Container::operator[](std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "{}: index {} is outside [0, {})", type_name(), index, size());
  return *owned_children()[static_cast<std::size_t>(index)];
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const Module& module : *this) y = module(y);
  return y;
}

bool ModuleDict::contains(const std::string& name) const {
  return std::ranges::any_of(owned_children(), [&](const auto& child) { return child->name() == name; });
}

std::vector<std::string> ModuleDict::keys() const {
  std::vector<std::string> names;
  for (const auto& child : owned_children()) names.push_back(child->name());
  return names;
}

Module& ModuleDict::operator[](const std::string& name) const {
  const auto found = std::ranges::find_if(owned_children(), [&](const auto& child) { return child->name() == name; });
  LOCKSTEP_CHECK(found != owned_children().end(), "ModuleDict: there is no module {} among {}",
                 lockstep::in_quotes(name), size());
  return **found;
}

Dropout::Dropout(double p) : p_(p) { LOCKSTEP_CHECK(p >= 0 && p <= 1, "Dropout: p is {}, expected 0 to 1", p); }

Tensor Dropout::forward(const Tensor& x) const { return dropout(x, p_, is_training()); }

Tensor Dropout2d::forward(const Tensor& x) const {
  LOCKSTEP_CHECK(x.dim() >= 3, "Dropout2d: x is {}, expected (n, channels, ...)", describe(x));
  if (!is_training()) return x;
  return x * dropout(raw::full(channel_shape(x, x.size(1), x.size(0)), 1.0, x.options()), p_);
}

std::optional<std::int64_t> padding_row(const char* layer, std::int64_t n, std::optional<std::int64_t> padding_idx) {
  if (!padding_idx) return padding_idx;
  LOCKSTEP_CHECK(*padding_idx >= -n && *padding_idx < n, "{}: padding_idx is {}, expected {} to {}", layer,
                 *padding_idx, -n, n - 1);
  return *padding_idx < 0 ? *padding_idx + n : *padding_idx;
}

Tensor embedding_weight(std::int64_t n, std::int64_t dim, std::optional<std::int64_t> padding) {
  Initial rule{.kind = Initial::kNormal, .b = 1};
  if (padding) rule.zero_begin = *padding * dim, rule.zero_end = rule.zero_begin + dim;
  return initial({n, dim}, rule);
}

Embedding::Embedding(std::int64_t n, std::int64_t dim, const EmbeddingOptions& options)
    : weight(add_parameter("weight", embedding_weight(n, dim, padding_row("Embedding", n, options.padding_idx)))),
      padding_idx_(padding_row("Embedding", n, options.padding_idx)) {}

Tensor embedding_rows(const char* layer, const Parameter& weight, const Tensor& index,
                      std::optional<std::int64_t> padding) {
  LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32, "{}: the index is {}, expected i64 or i32", layer,
                 describe(index));
  const Tensor flat = index.reshape({-1});
  Tensor rows;  // (count, dim)
  try {
    rows = index_select(weight, 0, flat);
  } catch (const InvalidArgument&) {
    const std::vector<std::int64_t> all = index.to_vector<std::int64_t>();
    const std::int64_t n = weight->size(0);
    const auto wrong = std::ranges::find_if(all, [n](std::int64_t i) { return i < 0 || i >= n; });
    LOCKSTEP_CHECK(wrong == all.end(), "{}({}, {}): index {} is outside [0, {}): element {} of the index, {}", layer, n,
                   weight->size(1), *wrong, n, wrong - all.begin(), describe(index));
    throw;
  }
  if (!padding || !rows.requires_grad()) return rows;
  return where((flat == *padding).unsqueeze(1), rows.detach(), rows);
}

Tensor Embedding::forward(const Tensor& index) const {
  const Tensor rows = embedding_rows("Embedding", weight, index, padding_idx_);
  Shape shape = index.shape();
  shape.push_back(weight->size(1));
  return index.dim() == 1 ? rows : rows.reshape(shape);
}

}  // namespace lockstep::nn
