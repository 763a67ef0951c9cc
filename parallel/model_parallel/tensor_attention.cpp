#include "lockstep/parallel/model_parallel/tensor_attention_internal.h"

#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/layers.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/model_parallel/tensor_linear_internal.h"

namespace lockstep::parallel {
namespace {

constexpr std::int64_t kParts = 3;  // of in_proj: q, k and v

}  // namespace

AttentionRunner::AttentionRunner(std::shared_ptr<const TensorSlices> slices, const std::string& path,
                                 std::int64_t heads, std::vector<nn::Parameter> weights,
                                 std::vector<nn::Parameter> biases)
    : SharedRunner(Part::kModel, slices->group, slices->mesh), slices_(std::move(slices)), path_(path), heads_(heads),
      weights_(std::move(weights)), biases_(std::move(biases)) {}

// `parts` of x's projections, from number `first` on, by one product for each slice.
std::vector<Tensor> AttentionRunner::outputs(const Tensor& x, std::int64_t first, std::int64_t parts) const {
  const std::int64_t rows = weights_[0]->size(0) / kParts;
  const auto narrowed = [&](const Tensor& whole) {
    return parts == kParts ? whole : whole.narrow(0, first * rows, parts * rows);
  };
  const std::vector<Tensor>& entered = TensorRegion::current()->enter(x);
  std::vector<Tensor> of_slices;
  for (std::size_t j = 0; j < weights_.size(); ++j)
    of_slices.push_back(linear(entered[j], narrowed(weights_[j]), biases_.empty() ? Tensor() : narrowed(biases_[j])));
  return chunk(join_columns(of_slices, parts), static_cast<int>(parts), -1);
}

std::vector<Tensor> AttentionRunner::project(const Tensor& query, const Tensor& key, const Tensor& value) const {
  std::vector<Tensor> projected;
  if (&query.impl() == &key.impl() && &key.impl() == &value.impl()) {
    projected = outputs(query, 0, kParts);
  } else {
    const Tensor* const inputs[] = {&query, &key, &value};
    for (std::int64_t i = 0; i < kParts; ++i) projected.push_back(outputs(*inputs[i], i, 1)[0]);
  }
  TensorRegion::current()->open(path_, {.run = projected[0].size(-1), .parts = kParts});
  return projected;
}

void check_attention(const char* op, const StyledModule& each, const std::vector<StyledModule>& styled, int slices) {
  const std::int64_t heads = nn::heads_of(dynamic_cast<const nn::MultiheadAttention&>(*each.module));
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 1; n <= heads; ++n) {
    if (heads % n == 0) possible.push_back(n);
  }
  LOCKSTEP_CHECK(heads % slices == 0, "{}: {}: {} heads cannot be cut into {} slices; use {} slices", op, each.path,
                 heads, slices, choice_of(possible));
  for (const StyledModule& other : styled)
    LOCKSTEP_CHECK(other.parent != each.module,
                   "{}: {} has the style {}, but {} is AttentionParallel, which cuts it; remove it from .plan", op,
                   other.path, name_of(other.style), each.path);
}

void cut_attention(const StyledModule& each, const std::shared_ptr<const TensorSlices>& slices) {
  auto& module = dynamic_cast<nn::MultiheadAttention&>(*each.module);
  const Cut rows{.dim = 0, .parts = kParts};
  auto weights = cut_own_parameter(module, each.path, "in_proj_weight", rows, *slices),
       biases = cut_own_parameter(module, each.path, "in_proj_bias", rows, *slices);
  nn::add_runner(module, std::make_shared<const AttentionRunner>(slices, each.path, nn::heads_of(module),
                                                                 std::move(weights), std::move(biases)));
  nn::Linear& out = module.out_proj;
  auto columns = cut_own_parameter(out, nn::join(each.path, "out_proj"), "weight", {.dim = 1}, *slices);
  nn::add_runner(out, std::make_shared<const RowwiseRunner>(slices, std::move(columns), out.bias));
}

}  // namespace lockstep::parallel
