#include "lockstep/parallel/step/gradient_sets_internal.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
namespace {

// True if the dtype of the parameter's gradients is not the dtype of their sums.
bool is_narrow(const Tensor& leaf) { return leaf.dtype() != sum_dtype(leaf.dtype()); }

// A leaf that was frozen after the step began gets no gradient, so it needs no view.
void set_view(const Tensor& leaf, const Tensor& view) {
  autograd::set_gradient_view(leaf, leaf.requires_grad() ? view : Tensor());
}

}  // namespace

GradientSets::GradientSets(std::vector<nn::Parameter> parameters)
    : GradientSets(parameters, std::vector<int>(parameters.size()), 1) {}

GradientSets::GradientSets(std::vector<nn::Parameter> parameters, std::vector<int> chunk_of, int chunks)
    : parameters_(std::move(parameters)), views_(parameters_.size()), chunks_(static_cast<std::size_t>(chunks)),
      chunk_of_(std::move(chunk_of)), half_(parameters_.size()) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) at(chunk_of_[p]).parameters.push_back(p);
}

void GradientSets::set_views(std::vector<Tensor> views) { views_ = std::move(views); }

void GradientSets::clear(Chunk& chunk) {
  chunk.sets.clear();
  for (const std::size_t p : chunk.parameters) {
    half_[p] = Tensor();
    reset(p);
  }
}

void GradientSets::clear() {
  for (Chunk& chunk : chunks_) clear(chunk);
}

// Prepares the parameter for a single backward, which writes to views_[p].
void GradientSets::reset(std::size_t p) {
  const Tensor& leaf = parameters_[p].master();
  autograd::set_separate_contributions(leaf, false);
  set_view(leaf, views_[p]);
}

void GradientSets::begin(int micro_batch, int micro_batches, int chunk) {
  auto& [parameters, sets] = at(chunk);
  if (micro_batch == 0) clear(at(chunk));  // a failed step may have left sets
  if (micro_batches == 1) return;
  const bool new_set = micro_batch % 2 == 0;
  const bool first_set = sets.size() == (new_set ? 0 : 1);
  for (const std::size_t p : parameters) {
    const Tensor& leaf = parameters_[p].master();
    const Tensor before = new_set ? Tensor() : std::move(sets.back()[p]);
    const bool narrow = is_narrow(leaf);  // then grad() holds one micro-batch's gradient only
    set_view(leaf, first_set ? views_[p] : Tensor());
    autograd::set_separate_contributions(leaf, !new_set && !narrow);
    leaf.set_grad(narrow ? Tensor() : before);
    half_[p] = narrow ? before : Tensor();
  }
  if (!new_set) sets.pop_back();
}

// The parameter's gradient in the newest set, to which the last micro-batch was added.
Tensor GradientSets::newest(std::size_t p) {
  const Tensor grad = parameters_[p].master().grad();
  return is_narrow(parameters_[p].master()) ? add_up(std::exchange(half_[p], Tensor()), widened(grad)) : grad;
}

void GradientSets::end(int micro_batch, int micro_batches, int chunk) {
  if (micro_batch == micro_batches - 1) return;
  auto& [parameters, sets] = at(chunk);
  std::vector<Tensor>& set = sets.emplace_back(parameters_.size());
  for (const std::size_t p : parameters) {
    set[p] = newest(p);
    parameters_[p].master().set_grad(Tensor());
  }
  // The number of sets that remain is the number of ones in micro_batch + 1 in binary.
  while (sets.size() > static_cast<std::size_t>(std::popcount(static_cast<unsigned>(micro_batch + 1)))) {
    std::vector<Tensor>& to = sets[sets.size() - 2];
    for (const std::size_t p : parameters) to[p] = add_up(to[p], sets.back()[p]);
    sets.pop_back();
  }
}

Tensor GradientSets::finish(std::size_t p) {
  const Tensor& leaf = parameters_[p].master();
  std::vector<std::vector<Tensor>>& sets = at(chunk_of_[p]).sets;
  reset(p);
  Tensor sum = newest(p);
  for (std::size_t s = sets.size(); s-- > 0;) {
    sum = add_up(std::move(sets[s][p]), sum);
    sets[s][p] = Tensor();
  }
  if (sum.defined() && !sum.is_contiguous()) sum = raw::clone(sum);
  leaf.set_grad(is_narrow(leaf) ? Tensor() : sum);
  return sum;
}

void GradientSets::put(std::size_t p, const Tensor& sum) {
  const Tensor& leaf = parameters_[p].master();
  if (is_narrow(leaf)) {
    half_[p] = sum;
  } else if (!sum.defined() || !leaf.grad().defined()) {
    leaf.set_grad(sum);
  } else if (leaf.grad().raw_data() != sum.raw_data()) {
    raw::copy(sum, leaf.grad());
  }
}

std::size_t GradientSets::position(const nn::Parameter& parameter) const {
  return static_cast<std::size_t>(std::ranges::find(parameters_, parameter) - parameters_.begin());
}

}  // namespace lockstep::parallel
