#include "lockstep/parallel/gradient_sets.h"

#include <bit>

#include "lockstep/autograd/history.h"
#include "lockstep/tensor/ops.h"

namespace lockstep::inline LOCKSTEP_ABI::parallel {
namespace {

// a + b in a's place; an undefined one counts for nothing.
Tensor merge(Tensor a, const Tensor& b) {
  if (!a.defined()) return b;
  if (b.defined()) raw::add_(a, b);
  return a;
}

}  // namespace

GradientSets::GradientSets(std::vector<nn::Parameter> parameters)
    : parameters_(std::move(parameters)), homes_(parameters_.size()) {}

void GradientSets::set_homes(std::vector<Tensor> homes) { homes_ = std::move(homes); }

void GradientSets::clear() {
  sets_.clear();
  for (std::size_t p = 0; p < parameters_.size(); ++p) reset(p);
}

// Back to one backward that writes at home.
void GradientSets::reset(std::size_t p) {
  const Tensor& leaf = parameters_[p].master();
  if (!leaf.requires_grad()) return;
  autograd::set_whole_contributions(leaf, false);
  autograd::set_gradient_home(leaf, homes_[p]);
}

void GradientSets::begin(int shard, int shards) {
  if (shard == 0) clear();  // also what a step that failed has left
  if (shards == 1) return;
  const bool new_set = shard % 2 == 0;
  const bool first_set = sets_.size() == (new_set ? 0 : 1);
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& leaf = parameters_[p].master();
    if (!leaf.requires_grad()) continue;
    autograd::set_gradient_home(leaf, first_set ? homes_[p] : Tensor());
    autograd::set_whole_contributions(leaf, !new_set);
    leaf.set_grad(new_set ? Tensor() : sets_.back()[p]);
  }
  if (!new_set) sets_.pop_back();
}

void GradientSets::end(int shard, int shards) {
  if (shard == shards - 1) return;
  std::vector<Tensor>& set = sets_.emplace_back();
  for (const nn::Parameter& parameter : parameters_) {
    set.push_back(parameter.master().grad());
    parameter.master().set_grad(Tensor());
  }
  // As many sets remain as shard + 1 has ones in binary.
  while (sets_.size() > static_cast<std::size_t>(std::popcount(static_cast<unsigned>(shard + 1)))) {
    std::vector<Tensor>& to = sets_[sets_.size() - 2];
    for (std::size_t p = 0; p < parameters_.size(); ++p) to[p] = merge(to[p], sets_.back()[p]);
    sets_.pop_back();
  }
}

void GradientSets::finish(std::size_t p) {
  const Tensor& leaf = parameters_[p].master();
  reset(p);
  Tensor sum = leaf.grad();
  if (sets_.empty() && (!sum.defined() || sum.is_contiguous())) return;
  for (std::size_t s = sets_.size(); s-- > 0;) {
    sum = merge(std::move(sets_[s][p]), sum);
    sets_[s][p] = Tensor();
  }
  if (sum.defined() && !sum.is_contiguous()) sum = raw::clone(sum);
  leaf.set_grad(sum);
}

}  // namespace lockstep::inline LOCKSTEP_ABI::parallel
