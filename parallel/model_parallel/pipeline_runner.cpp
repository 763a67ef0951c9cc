#include "lockstep/parallel/model_parallel/pipeline_runner_internal.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/base/finally_internal.h"
#include "lockstep/parallel/comm/progress_internal.h"
#include "lockstep/parallel/model_parallel/chain_check_internal.h"
#include "lockstep/parallel/model_parallel/pipeline_step_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {
PipelineRunner::PipelineRunner(const char* op, nn::Module& root, std::shared_ptr<ProcessGroup> group,
                               std::shared_ptr<ProcessGroup> mesh, Stages stages, const ScheduleTable& table)
    : StageRunner(Part::kStages, std::move(group), std::move(mesh)), op_(op), root_(root), stages_(std::move(stages)),
      table_(table), rows_(with_messages(table)[static_cast<std::size_t>(stages_.rank)]), tensors_(op, root, stages_),
      ties_(stages_), messages_(this->group, stages_.count()) {
  if (stages_.ranks > 1) tensors_.leave_to_others();
}

Tensor PipelineRunner::run(const std::vector<Tensor>& inputs, Forward forward) const {
  if (step_) return step_->run_root(inputs);
  LOCKSTEP_CHECK(stages_.ranks == 1 || is_whole_,
                 "{}: the module was called outside of a step, but this rank has some of its stages only; call "
                 "run.backward or run.evaluate, or call it inside run.gathered",
                 op_);
  return forward(inputs);
}

int PipelineRunner::split_backwards(int chunk) const {
  return static_cast<int>(std::ranges::count_if(rows_, [&](const ScheduleAction& action) {
    return stages_.chunk_of(action.stage) == chunk && part_of(action) == BackwardPart::kInput;
  }));
}

void PipelineRunner::run_micro_batches(const StagedStep& step) const {
  LOCKSTEP_CHECK(step.plan.micro_batches == table_.micro_batches(),
                 "{}: {} micro-batches on this rank, but the schedule has {}", op_, step.plan.micro_batches,
                 table_.micro_batches());
  LOCKSTEP_CHECK(!step_, "{}: a step was begun inside a step, by its loss function; call run.backward after it", op_);
  LOCKSTEP_CHECK(!is_whole_,
                 "{}: a step was begun inside gathered, where each rank has all stages; call it after gathered", op_);
  bool& is_checked = is_checked_[root_.is_training() ? 1 : 0];
  if (!is_checked) check_chain_forward(op_, root_, stages_.chain, {step.batch.begin(), step.batch.end() - 1});
  is_checked = true;
  const ProgressGuard progress(group.get());
  messages_.begin_step();
  PipelineStep own(*this, messages_, step);
  const Finally end([this] { step_ = nullptr; });
  step_ = &own;
  if (step.plan.evaluates) {
    const NoGradGuard no_grad;
    own.run();
  } else {
    ties_.begin_step();
    own.run();
    ties_.add_up_sums(step.in_turn.sets(), group.get(), step.plan.reduced_over);
  }
  share_losses(step.losses);
}

// The last stage has the losses. Their bits are summed as integers, to which the other ranks add zeros; so are the bytes
// that each rank wants for its outboxes.
void PipelineRunner::share_losses(std::vector<Tensor>& losses) const {
  if (!group || group->size() == 1) return;
  std::vector<std::int64_t> numbers;
  for (const Tensor& loss : losses)
    numbers.push_back(loss.defined() ? std::bit_cast<std::int64_t>(loss.item<double>()) : 0);
  const bool has_losses = !losses.empty() && losses[0].defined();
  numbers.push_back(has_losses ? static_cast<std::int64_t>(losses[0].dtype()) : 0);
  for (int r = 0; r < group->size(); ++r) numbers.push_back(r == group->rank() ? messages_.wanted_bytes() : 0);
  const Tensor all = raw::from_bytes(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, kInt64);
  group->all_reduce(all, ReduceOp::kSum, {.name = "losses"})->wait();
  const std::span<const std::int64_t> sums = all.span<std::int64_t>();
  const auto dtype = static_cast<DType>(sums[losses.size()]);
  for (std::size_t m = 0; m < losses.size(); ++m) {
    if (!losses[m].defined()) losses[m] = raw::full(Shape(), std::bit_cast<double>(sums[m]), {.dtype = dtype});
  }
  messages_.grow_outboxes(std::ranges::max(sums.subspan(losses.size() + 1)));
}

void PipelineRunner::with_all_stages(FunctionRef<void()> body) const {
  if (!group || group->size() == 1) return body();
  LOCKSTEP_CHECK(!step_,
                 "{}: gathered was called inside a step, in which other ranks run other stages; call it between "
                 "steps",
                 op_);
  if (is_whole_) return body();
  const Finally end([this] { is_whole_ = false; });
  tensors_.with_all(*group, [&] {
    is_whole_ = true;
    body();
  });
}

}  // namespace lockstep::parallel
