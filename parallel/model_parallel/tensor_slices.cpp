#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/model_parallel/context_blocks_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// a + b, in a's memory if `a` is a result of this function.
std::vector<Tensor> sums_of_pairs(std::vector<Tensor> terms, bool is_fresh) {
  std::vector<Tensor> sums;
  for (std::size_t i = 0; i < terms.size(); i += 2) {
    if (i + 1 == terms.size())
      sums.push_back(terms[i]);
    else
      sums.push_back(is_fresh ? terms[i].add_(terms[i + 1]) : terms[i] + terms[i + 1]);
  }
  return sums;
}

std::int64_t positive(std::int64_t dim, const Shape& shape) { return dim < 0 ? dim + shape.size() : dim; }

// Slice number `index`, in memory of its own.
Tensor slice_of(const Tensor& whole, const Cut& cut, std::int64_t index, std::int64_t count) {
  const std::int64_t part = whole.size(cut.dim) / cut.parts, size = part / count;
  std::vector<Tensor> parts;
  for (std::int64_t p = 0; p < cut.parts; ++p) parts.push_back(whole.narrow(cut.dim, p * part + index * size, size));
  return parts.size() == 1 ? parts[0].clone() : cat(parts, cut.dim);
}

}  // namespace

Tensor sum_over_slices(const TensorSlices& slices, std::vector<Tensor> terms, Phase phase, std::string_view name) {
  const NoGradGuard no_grad;
  Tensor like;
  for (const Tensor& term : terms) like = like.defined() ? like : term;
  for (Tensor& term : terms) term = widened(term.defined() ? term : zeros_like(like));
  for (bool is_fresh = false; terms.size() > 1; is_fresh = true) terms = sums_of_pairs(std::move(terms), is_fresh);
  Tensor sum = terms[0].contiguous();
  if (slices.ranks() > 1) slices.group->all_reduce(sum, ReduceOp::kSum, {.phase = phase, .name = name})->wait();
  return raw::to(sum, like.dtype());
}

Tensor gather_columns(const TensorSlices& slices, const Tensor& own, std::string_view name) {
  if (slices.ranks() == 1) return own;
  const Tensor all = of_all_ranks(*slices.group, own.contiguous(), Phase::kActivations, name);  // (ranks, ..., columns)
  return movedim(all, {0}, {own.dim() - 1}).flatten(own.dim() - 1, own.dim());
}

std::vector<nn::Parameter> cut_parameter(const nn::Parameter& whole, const std::string& path, const Cut& cut,
                                         const TensorSlices& slices) {
  const NoGradGuard no_grad;
  const Tensor& tensor = whole.master();
  const auto repeat = static_cast<int>(cut.repeat), count = slices.count / repeat;
  Shape shape = tensor.shape();
  shape[static_cast<std::size_t>(positive(cut.dim, shape))] /= count;
  std::vector<nn::Parameter> own;
  for (int j = slices.first() / repeat; j * repeat < slices.first() + slices.local(); ++j) {
    const TensorPart part = TensorPart::slice(tensor.shape(), static_cast<int>(cut.dim), j, count, cut.parts);
    own.emplace_back(nn::is_deferred(tensor) ? nn::initial_values(tensor, part).view(shape)
                                             : slice_of(tensor.detach(), cut, j, count));
    own.back().master().requires_grad_(tensor.requires_grad());
    own.back().set_slice({.name = path, .shape = tensor.shape(), .part = part, .index = j, .of = count});
  }
  return own;
}

std::vector<nn::Parameter> cut_own_parameter(nn::Module& module, const std::string& path, const std::string& name,
                                             const Cut& cut, const TensorSlices& slices) {
  for (const auto& [own, parameter] : module.named_parameters()) {
    if (own != name) continue;
    std::vector<nn::Parameter> own_slices = cut_parameter(parameter, nn::join(path, name), cut, slices);
    nn::replace_parameter(module, name, own_slices);
    return own_slices;
  }
  return {};
}

}  // namespace lockstep::parallel
