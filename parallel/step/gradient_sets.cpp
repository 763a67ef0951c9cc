#include "lockstep/parallel/step/gradient_sets_internal.h"

#include <bit>

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
    : parameters_(std::move(parameters)), views_(parameters_.size()), half_(parameters_.size()) {}

void GradientSets::set_views(std::vector<Tensor> views) { views_ = std::move(views); }

void GradientSets::clear() {
  sets_.clear();
  half_.assign(parameters_.size(), Tensor());
  for (std::size_t p = 0; p < parameters_.size(); ++p) reset(p);
}

// Prepares the parameter for a single backward, which writes to views_[p].
void GradientSets::reset(std::size_t p) {
  const Tensor& leaf = parameters_[p].master();
  autograd::set_separate_contributions(leaf, false);
  set_view(leaf, views_[p]);
}

void GradientSets::begin(int micro_batch, int micro_batches) {
  if (micro_batch == 0) clear();  // a failed step may have left sets
  if (micro_batches == 1) return;
  const bool new_set = micro_batch % 2 == 0;
  const bool first_set = sets_.size() == (new_set ? 0 : 1);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& leaf = parameters_[p].master();
    const Tensor before = new_set ? Tensor() : std::move(sets_.back()[p]);
    const bool narrow = is_narrow(leaf);  // then grad() holds one micro-batch's gradient only
    set_view(leaf, first_set ? views_[p] : Tensor());
    autograd::set_separate_contributions(leaf, !new_set && !narrow);
    leaf.set_grad(narrow ? Tensor() : before);
    half_[p] = narrow ? before : Tensor();
  }
  if (!new_set) sets_.pop_back();
}

// The parameter's gradient in the newest set, to which the last micro-batch was added.
Tensor GradientSets::newest(std::size_t p) {
  const Tensor grad = parameters_[p].master().grad();
  return is_narrow(parameters_[p].master()) ? add_up(std::exchange(half_[p], Tensor()), widened(grad)) : grad;
}

void GradientSets::end(int micro_batch, int micro_batches) {
  if (micro_batch == micro_batches - 1) return;
  std::vector<Tensor>& set = sets_.emplace_back();
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    set.push_back(newest(p));
    parameters_[p].master().set_grad(Tensor());
  }
  // The number of sets that remain is the number of ones in micro_batch + 1 in binary.
  while (sets_.size() > static_cast<std::size_t>(std::popcount(static_cast<unsigned>(micro_batch + 1)))) {
    std::vector<Tensor>& to = sets_[sets_.size() - 2];
    for (std::size_t p = 0; p < parameters_.size(); ++p) to[p] = add_up(to[p], sets_.back()[p]);
    sets_.pop_back();
  }
}

Tensor GradientSets::finish(std::size_t p) {
  const Tensor& leaf = parameters_[p].master();
  reset(p);
  Tensor sum = newest(p);
  for (std::size_t s = sets_.size(); s-- > 0;) {
    sum = add_up(std::move(sets_[s][p]), sum);
    sets_[s][p] = Tensor();
  }
  if (sum.defined() && !sum.is_contiguous()) sum = raw::clone(sum);
  leaf.set_grad(is_narrow(leaf) ? Tensor() : sum);
  return sum;
}

}  // namespace lockstep::parallel
