#include "lockstep/parallel/model_parallel/vocab_cross_entropy.h"

#include <utility>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/creation.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/layers/losses.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/model_parallel/tensor_vocab_internal.h"
#include "lockstep/tensor/half_dtypes_internal.h"

namespace lockstep::parallel {

using autograd::Gradients;
using autograd::Needs;

namespace {

const VocabLinearRunner* runner_of(const nn::Module& layer) {
  for (const auto& runner : nn::runners_of(layer)) {
    if (const auto* const found = dynamic_cast<const VocabLinearRunner*>(runner.get())) return found;
  }
  return nullptr;
}

}  // namespace

struct VocabCrossEntropyLoss::State {
  VocabCrossEntropyLossOptions options;
  std::string head;
  const nn::Module* layer = nullptr;                     // the head
  std::shared_ptr<const TensorSlices> slices = nullptr;  // null: nothing is cut
  std::int64_t vocabulary = 0;

  // Inside run.gathered, and before parallelize, the model is whole, and so are its logits.
  void update() {
    const VocabLinearRunner* const runner = runner_of(*layer);
    slices = runner ? runner->slices() : nullptr;
    vocabulary = runner ? runner->vocabulary() : 0;
    LOCKSTEP_CHECK(!runner || !runner->gathers(),
                   "VocabCrossEntropyLoss: {} gathers its logits; use nn::CrossEntropyLoss, or set .gather_output to "
                   "false in its VocabParallel",
                   head);
  }
  std::int64_t first_of(std::size_t j) const { return rows_at(j).first; }
  SliceRows rows_at(std::size_t j) const {
    return rows_of_slice(vocabulary, slices->first() + static_cast<std::int64_t>(j), slices->count);
  }
  std::int64_t columns() const {
    std::int64_t sum = 0;
    for (int j = 0; j < slices->local(); ++j) sum += rows_at(static_cast<std::size_t>(j)).count;
    return sum;
  }
  void check(const Tensor& logits, const Tensor& target) const;
  Tensor losses(const Tensor& logits, const Tensor& target) const;
};

namespace {

const nn::Module* find(const nn::Module& module, const std::string& path, const std::string& wanted) {
  if (path == wanted && !path.empty()) return &module;
  for (const nn::Module* child : module.children()) {
    if (const nn::Module* const found = find(*child, nn::join(path, child->name()), wanted)) return found;
  }
  return nullptr;
}

// 1 at (i, target_i - first), where that is a column.
Tensor one_hot(const Tensor& target, std::int64_t first, std::int64_t count) {
  return arange(first, first + count) == target.unsqueeze(1);
}

}  // namespace

VocabCrossEntropyLoss::VocabCrossEntropyLoss(const nn::Module& model, const std::string& head,
                                             const VocabCrossEntropyLossOptions& options)
    : state_(std::make_unique<State>(State{.options = options, .head = head})) {
  const nn::Module* const layer = find(model, "", head);
  LOCKSTEP_CHECK(layer, "VocabCrossEntropyLoss: \"{}\" names no module of the model", head);
  state_->layer = layer;
  state_->update();
}
VocabCrossEntropyLoss::~VocabCrossEntropyLoss() = default;

void VocabCrossEntropyLoss::State::check(const Tensor& logits, const Tensor& target) const {
  LOCKSTEP_CHECK(logits.dim() == 2 && target.dim() == 1 && logits.size(0) == target.size(0) &&
                     logits.size(1) == columns() && (target.dtype() == kInt64 || target.dtype() == kInt32),
                 "VocabCrossEntropyLoss: logits are {}, target is {}; expected (n, {}), this rank's columns of {}, and "
                 "(n) of i64 or "
                 "i32",
                 describe(logits), describe(target), columns(), head);
  if (target.numel() == 0) return;
  const Tensor wrong = logical_and(logical_or(target < 0, target >= vocabulary), target != options.ignore_index);
  if (!wrong.any().item<bool>()) return;
  const auto at = nonzero(wrong).reshape({-1})[0].item<std::int64_t>();
  throw InvalidArgument(fmt::format("VocabCrossEntropyLoss: class {} at index {} of target is outside [0, {})",
                                    target[at].to(kInt64).item<std::int64_t>(), at, vocabulary));
}

// log(sum_c e^(x_c - m)) + m - x_y for each position, with m the largest x_c. The sum over the columns of a slice is that
// of a row; slices are summed in canonical order.
Tensor VocabCrossEntropyLoss::State::losses(const Tensor& logits, const Tensor& target) const {
  Tensor largest, sum, losses;
  {
    const NoGradGuard no_grad;
    const Tensor x = logits.detach();
    largest = amax(x, {1}, /*keepdim=*/true);
    if (slices->group)
      slices->group->all_reduce(largest, ReduceOp::kMax, {.phase = Phase::kActivations, .name = "largest logit"})
          ->wait();
    std::vector<Tensor> terms;
    std::int64_t at = 0;
    for (int j = 0; j < slices->local(); ++j) {
      const auto [first, count] = rows_at(static_cast<std::size_t>(j));
      const Tensor own = x.narrow(1, std::exchange(at, at + count), count).contiguous();
      const Tensor of_target = where(one_hot(target, first, count), own, -0.0).sum({1});
      const Tensor is_here = logical_and(target >= first, target < first + count);
      terms.push_back(stack({exp(own - largest).sum({1}), where(is_here, of_target, -0.0)}));
    }
    const Tensor both = sum_over_slices(*slices, std::move(terms), Phase::kActivations, "sum of exponentials");
    sum = both[0];
    losses = largest.squeeze(1) + log(sum) - both[1];
  }
  return autograd::record(
      "vocab_cross_entropy", losses, {logits},
      [state = *this, x = autograd::Saved(logits), largest, sum, target](const Tensor& grad, const Needs&) {
        const Tensor probabilities = exp(*x - largest) / sum.unsqueeze(1);
        const std::int64_t first = state.first_of(0);
        return Gradients{(probabilities - one_hot(target, first, state.columns()).to(x->dtype())) * grad.unsqueeze(1)};
      });
}

Tensor VocabCrossEntropyLoss::operator()(const Tensor& logits, const Tensor& target) const {
  State state = *state_;
  state.update();
  if (!state.slices) return nn::cross_entropy(logits, target, {.ignore_index = state.options.ignore_index});
  state.check(logits, target);
  if (is_half(logits.dtype())) return (*this)(logits.to(kFloat32), target);
  const Tensor counts = target != state.options.ignore_index;
  const Tensor losses = state.losses(logits, where(counts, target, 0).to(kInt64));
  return where(counts, losses, 0.0).sum() / counts.to(losses.dtype()).sum();
}

}  // namespace lockstep::parallel
