#include "lockstep/parallel/step/squared_norm_internal.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

SquaredNorm::SquaredNorm(nn::Module& module) : slices_(nullptr), stages_(stage_runner(module)) {
  const std::vector<ProcessGroup*> groups = runner_groups(module, SharedRunner::Part::kModel);
  if (!groups.empty()) slices_ = groups[0];
}

void SquaredNorm::add(const nn::ParameterSlice* slice, double sum) {
  const Entry* const last = entries_.empty() ? nullptr : &entries_.back();
  const bool is_next = slice && last && last->first && last->first->name == slice->name &&
                       last->first->index + static_cast<std::int64_t>(last->of_slices.size()) == slice->index;
  if (!is_next) entries_.push_back({.first = slice, .sum = {}, .of_slices = {}});
  if (slice) entries_.back().of_slices.push_back(sum);
  entries_.back().sum.add({.first = slice ? slice->index : 0, .level = 0, .sum = sum});
}

namespace {

// The slices [begin, end) that a rank has of a parameter with `of` slices, if these are distributed evenly. Several ranks
// share a slice if there are fewer slices than ranks (ColwiseParallel::repeat).
struct Held {
  std::int64_t begin, end;
};
Held held_by(int rank, int ranks, int of) {
  const std::int64_t r = rank, n = ranks;
  return {.begin = r * of / n, .end = ((r + 1) * of + n - 1) / n};
}

// Numbers that each rank sends. If no slice is on several ranks, the slices of a rank are a node of the tree over all
// slices, and the rank sends its sum. Otherwise it sends those of its slices.
std::size_t numbers_of(const nn::ParameterSlice& slice, int ranks) {
  if (slice.of % ranks == 0) return 1;
  std::int64_t most = 0;
  for (int r = 0; r < ranks; ++r) {
    const Held held = held_by(r, ranks, slice.of);
    most = std::max(most, held.end - held.begin);
  }
  return static_cast<std::size_t>(most);
}

}  // namespace

void SquaredNorm::exchange() {
  const int ranks = slices_->size();
  std::vector<double> own;
  for (const Entry& entry : entries_) {
    if (!entry.first) continue;
    const std::size_t count = numbers_of(*entry.first, ranks), end = own.size() + count;
    if (count == 1)
      own.push_back(entry.sum.nodes()[0].sum);
    else
      own.insert(own.end(), entry.of_slices.begin(), entry.of_slices.end());
    own.resize(end);
  }
  const auto count = static_cast<std::int64_t>(own.size());
  const Tensor all = raw::empty({slices_->size(), count}, {.dtype = kFloat64});
  slices_->all_gather(all, raw::from_bytes(own.data(), {count}, kFloat64), {.phase = Phase::kGradients, .name = "norm"})
      ->wait();
  const std::span<const double> sums = all.span<double>();
  std::size_t next = 0;
  for (Entry& entry : entries_) {
    if (!entry.first) continue;
    entry.sum = {};
    const bool is_node = entry.first->of % ranks == 0;
    std::int64_t added = 0;
    for (int r = 0; r < ranks; ++r) {
      const Held held = is_node ? Held{r, r + 1} : held_by(r, ranks, entry.first->of);
      const double* const of_rank = &sums[static_cast<std::size_t>(r) * own.size() + next];
      for (; added < held.end; ++added)  // without those that an earlier rank has, too
        entry.sum.add({.first = added, .level = 0, .sum = of_rank[added - held.begin]});
    }
    next += numbers_of(*entry.first, ranks);
  }
}

// The sums of all parameters of the model, those of other stages included: a number plus zeros is itself.
std::vector<double> SquaredNorm::of_parameters() const {
  std::vector<double> sums;
  for (const Entry& entry : entries_) sums.push_back(entry.sum.total());
  if (!stages_ || !stages_->group) return sums;
  std::vector<double> all;
  std::size_t next = 0;
  for (const StageRunner::Place place : stages_->places()) {
    const double listed = place == StageRunner::Place::kElsewhere ? 0 : sums[next++];
    all.push_back(place == StageRunner::Place::kHere ? listed : 0);
  }
  const Tensor total = raw::from_bytes(all.data(), {static_cast<std::int64_t>(all.size())}, kFloat64);
  stages_->group->all_reduce(total, ReduceOp::kSum, {.phase = Phase::kGradients, .name = "norm"})->wait();
  const std::span<const double> of_all = total.span<double>();
  return {of_all.begin(), of_all.end()};
}

double SquaredNorm::norm() {
  if (slices_) exchange();
  nn::TreeSum total;
  std::int64_t position = 0;
  for (const double sum : of_parameters()) total.add({.first = position++, .level = 0, .sum = sum});
  return std::sqrt(total.total());
}

void scale_to_norm(const std::vector<Tensor>& gradients, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return;  // a NaN factor is applied, and makes every gradient NaN
  for (const Tensor& gradient : gradients) {
    if (gradient.defined()) gradient.mul_(factor);
  }
}

double clip_gradients(nn::Module& module, double max_norm) {
  const std::vector<nn::Parameter> parameters = module.parameters();
  if (!stage_runner(module) && std::ranges::none_of(parameters, [](const auto& each) { return each.slice(); }))
    return nn::clip_grad_norm_(parameters, max_norm);
  LOCKSTEP_CHECK(max_norm >= 0, "clip_grad_norm_: max_norm is {}, expected 0 or more", max_norm);
  const NoGradGuard no_grad;
  SquaredNorm sum(module);
  std::vector<Tensor> gradients;
  for (const nn::Parameter& each : parameters) {
    gradients.push_back(each.master().grad());
    sum.add(each.slice(), gradients.back().defined() ? nn::sum_of_squares(gradients.back()).total() : 0);
  }
  const double norm = sum.norm();
  scale_to_norm(gradients, norm, max_norm);
  return norm;
}

}  // namespace lockstep::parallel
