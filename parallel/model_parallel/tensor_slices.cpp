#include "lockstep/parallel/model_parallel/tensor_slices_internal.h"

#include <algorithm>
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

// A slice in its parameter.
struct Place {
  TensorPart part;
  Shape shape;  // of the slice
};

Place slice_at(const Tensor& whole, const Cut& cut, std::int64_t index, std::int64_t count) {
  Place place{TensorPart::slice(whole.shape(), static_cast<int>(cut.dim), index, count, cut.parts), whole.shape()};
  place.shape[static_cast<std::size_t>(cut.dim)] /= count;
  return place;
}

Place rows_at(const Tensor& whole, std::int64_t index, std::int64_t count) {
  const SliceRows rows = rows_of_slice(whole.size(0), index, count);
  const std::int64_t each = whole.size(0) > 0 ? whole.numel() / whole.size(0) : 0, elements = rows.count * each;
  Place place{{.first = rows.first * each, .run = elements, .stride = elements, .begin = 0, .numel = elements},
              whole.shape()};
  place.shape[0] = rows.count;
  return place;
}

// The elements of a slice, in memory of its own.
Tensor elements_at(const Tensor& whole, const Cut& cut, std::int64_t index, std::int64_t count) {
  if (cut.is_uneven) {
    const SliceRows rows = rows_of_slice(whole.size(0), index, count);
    return whole.narrow(0, rows.first, rows.count).clone();
  }
  const std::int64_t part = whole.size(cut.dim) / cut.parts, size = part / count;
  std::vector<Tensor> parts;
  for (std::int64_t p = 0; p < cut.parts; ++p) parts.push_back(whole.narrow(cut.dim, p * part + index * size, size));
  return parts.size() == 1 ? parts[0].clone() : cat(parts, cut.dim);
}

}  // namespace

namespace {

// The sum of this rank's terms, contiguous, in f32 for f16 and bf16.
Tensor sum_of_own(std::vector<Tensor> terms) {
  Tensor like;
  for (const Tensor& term : terms) like = like.defined() ? like : term;
  for (Tensor& term : terms) term = widened(term.defined() ? term : zeros_like(like));
  for (bool is_fresh = false; terms.size() > 1; is_fresh = true) terms = sums_of_pairs(std::move(terms), is_fresh);
  return terms[0].contiguous();
}

DType dtype_of(const std::vector<Tensor>& terms) {
  const auto defined = std::ranges::find_if(terms, [](const Tensor& term) { return term.defined(); });
  return defined->dtype();
}

}  // namespace

Tensor sum_over_slices(const TensorSlices& slices, std::vector<Tensor> terms, Phase phase, std::string_view name) {
  const NoGradGuard no_grad;
  const DType dtype = dtype_of(terms);
  const Tensor sum = sum_of_own(std::move(terms));
  if (slices.ranks() > 1) slices.group->all_reduce(sum, ReduceOp::kSum, {.phase = phase, .name = name})->wait();
  return raw::to(sum, dtype);
}

Tensor scatter_over_slices(const TensorSlices& slices, std::vector<Tensor> terms, Phase phase, std::string_view name) {
  const NoGradGuard no_grad;
  const DType dtype = dtype_of(terms);
  const Tensor sum = sum_of_own(std::move(terms));
  if (slices.ranks() == 1) return raw::to(sum, dtype);
  Shape shape = sum.shape();
  const auto time = static_cast<std::size_t>(sum.dim() - 2);
  shape[time] /= slices.ranks();
  Shape parts = shape;
  parts.insert(sum.dim() - 2, slices.ranks());
  const Tensor own = raw::empty(shape, sum.options());
  slices.group
      ->reduce_scatter(own, movedim(sum.reshape(parts), {sum.dim() - 2}, {0}).contiguous(), ReduceOp::kSum,
                       {.phase = phase, .name = name})
      ->wait();
  return raw::to(own, dtype);
}

Tensor gather_positions(const TensorSlices& slices, const Tensor& own, Phase phase, std::string_view name) {
  const NoGradGuard no_grad;
  if (slices.ranks() == 1) return own.contiguous();
  const Tensor all = of_all_ranks(*slices.group, own.contiguous(), phase, name);  // (ranks, ..., time / ranks, width)
  return movedim(all, {0}, {own.dim() - 2}).flatten(own.dim() - 2, own.dim() - 1).contiguous();
}

Tensor gather_columns(const TensorSlices& slices, const Tensor& own, std::string_view name) {
  if (slices.ranks() == 1) return own;
  const Tensor all = of_all_ranks(*slices.group, own.contiguous(), Phase::kActivations, name);  // (ranks, ..., columns)
  return movedim(all, {0}, {own.dim() - 1}).flatten(own.dim() - 1, own.dim());
}

SliceRows rows_of_slice(std::int64_t rows, std::int64_t index, std::int64_t slices) {
  const std::int64_t each = (rows + slices - 1) / slices, first = std::min(index * each, rows);
  return {first, std::min(each, rows - first)};
}

std::vector<nn::Parameter> cut_parameter(const nn::Parameter& whole, const std::string& path, const Cut& cut,
                                         const TensorSlices& slices) {
  const NoGradGuard no_grad;
  const Tensor& tensor = whole.master();
  const auto repeat = static_cast<int>(cut.repeat), count = slices.count / repeat;
  std::vector<nn::Parameter> own;
  for (int j = slices.first() / repeat; j * repeat < slices.first() + slices.local(); ++j) {
    const Place place = cut.is_uneven ? rows_at(tensor, j, count) : slice_at(tensor, cut, j, count);
    own.emplace_back(nn::is_deferred(tensor) ? nn::initial_values(tensor, place.part).view(place.shape)
                                             : elements_at(tensor.detach(), cut, j, count));
    own.back().master().requires_grad_(tensor.requires_grad());
    own.back().set_slice({.name = path,
                          .shape = tensor.shape(),
                          .part = place.part,
                          .index = j,
                          .of = count,
                          .is_copy = j * repeat < slices.first()});
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
