#include "lockstep/parallel/step/micro_batch_loop_internal.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/parallel/step/replica_exchange_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
// While it lives, random numbers and buffers are those of micro-batch s.
struct InTurn::Entered {
  Entered(InTurn& in, int s)
      : micro_batch(in.first_ + s), running({.in_turn = in.running()}),
        view(in.view(s) ? &*in.view(s) : nn::current_replica_view()) {}
  random::MicroBatchGuard micro_batch;
  RunningGuard running;
  nn::ReplicaViewGuard view;
};

void InTurn::begin(int running) {
  buffers_.begin_step(running);
  views_.resize(static_cast<std::size_t>(running));
}

void InTurn::for_each(int running, FunctionRef<void(int s)> body) {
  begin(running);
  for (int s = 0; s < running; ++s) body(s);
}

Tensor InTurn::forward(int s, int chunk, FunctionRef<Tensor()> body) {
  if (!view(s) && (s > 0 ? !buffers_.empty() : buffers_.has_updates())) {
    view(s).emplace();
    if (s > 0) buffers_.enter(*view(s));
    buffers_.enter_updates(s, *view(s));
  }
  const Entered entered(*this, s);
  observer_.begin_forward({s, chunk});
  Tensor result = body();
  observer_.end_forward();
  return result;
}

Tensor InTurn::forward(int s, const Batch& batch, RowRange samples, MicroBatchLoss loss_fn) {
  return forward(s, 0, [&] { return loss_fn(narrow_rows(batch, samples)); });
}

// The part kInput makes no gradients of parameters.
void InTurn::backward(int s, int chunk, BackwardPart part, FunctionRef<void()> body) {
  const Entered entered(*this, s);
  const bool has_gradients = part != BackwardPart::kInput;
  if (has_gradients) sets_.begin(s, running(), chunk);
  observer_.begin_backward({s, chunk}, part);
  body();
  observer_.end_backward();
  if (has_gradients) sets_.end(s, running(), chunk);
}

void InTurn::backward(int s, const Tensor& loss, std::int64_t weight) {
  if (s == running() - 1) before_last_();
  backward(s, 0, BackwardPart::kWhole, [&] { weighted_backward(loss, weight); });
}

void InTurn::skip_forward(int s, int chunk) {
  observer_.begin_forward({s, chunk});
  observer_.end_forward();
}

void InTurn::skip_backward(int s, int chunk, BackwardPart part) {
  observer_.begin_backward({s, chunk}, part);
  observer_.end_backward();
}

int MicroBatchPlan::running() const { return static_cast<int>(std::min<std::int64_t>(samples, micro_batches)); }

StepScale MicroBatchPlan::scale() const {
  LOCKSTEP_CHECK(samples > 0, "{}: the batch has no rows", op);
  return weighted() ? StepScale(samples) : StepScale(micro_batches, running());
}

MicroBatchStep::MicroBatchStep(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                               MicroBatchExecutor& executor, std::vector<Tensor>& losses)
    : plan_(plan), batch_(batch), loss_fn_(loss_fn), executor_(executor), losses_(losses) {
  losses_.resize(static_cast<std::size_t>(plan_.running()));
}

Tensor MicroBatchStep::forward(int s) {
  const Tensor loss = executor_.forward(s, batch_, plan_.rows(s), loss_fn_);
  losses_[static_cast<std::size_t>(s)] = weighted_loss(plan_.op, loss, plan_.weight(s), !plan_.evaluates);
  return loss;
}

void MicroBatchStep::backward(int s, const Tensor& loss) { executor_.backward(s, loss, plan_.weight(s)); }

void MicroBatchStep::run() {
  executor_.for_each(plan_.running(), [&](int s) {
    if (!plan_.evaluates) return backward(s, forward(s));
    const NoGradGuard no_grad;  // on the thread of the micro-batch
    forward(s);
    executor_.skip_backward(s);
  });
}

MicroBatchesInTurn::MicroBatchesInTurn(nn::Module& module)
    : in_training_mode_(module), trained_(module), stages_(stage_runner(module)), sets_(new_sets()), buffers_(module) {}

GradientSets MicroBatchesInTurn::new_sets() {
  if (!stages_) return GradientSets(parameters());
  std::vector<int> chunk_of(parameters().size());
  of_chunks_.assign(static_cast<std::size_t>(stages_->chunks()), {});
  for (std::size_t p = parameters().size(); p-- > 0;) {
    chunk_of[p] = stages_->chunk_of(parameters()[p]);
    if (!stages_->is_shared(parameters()[p])) of_chunks_[static_cast<std::size_t>(chunk_of[p])].push_back(p);
  }
  return GradientSets(parameters(), chunk_of, stages_->chunks());
}

bool MicroBatchesInTurn::update() {
  if (!trained_.changed()) return false;
  sets_ = new_sets();
  return true;
}

void MicroBatchesInTurn::run(const MicroBatchPlan& plan, int first, const Batch& batch, MicroBatchLoss loss_fn,
                             std::vector<Tensor>& losses, MicroBatchObserver& observer, FunctionRef<void()> before_last,
                             FunctionRef<void(int)> after_chunk) {
  if (plan.running() == 0 && !plan.evaluates) sets_.clear();
  InTurn executor(sets_, buffers_, first, observer, before_last, after_chunk);
  MicroBatchStep step(plan, batch, loss_fn, executor, losses);
  if (stages_) {
    stages_->run_micro_batches(
        {.plan = plan, .batch = batch, .loss_fn = loss_fn, .in_turn = executor, .losses = losses});
    return;
  }
  step.run();
  for (int s = plan.running(); s < plan.micro_batches; ++s) {
    executor.skip_forward(s, 0);
    plan.evaluates ? executor.end_evaluation(s, 0) : executor.skip_backward(s, 0, BackwardPart::kWhole);
  }
}

void MicroBatchesInTurn::take_gradients(const StepScale& scale) {
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    const Tensor sum = sets_.finish(p);
    scale_gradient(sum, scale.first);
    scale_gradient(sum, scale.second);
    set_rounded(parameters()[p].master(), sum);
  }
}

}  // namespace lockstep::parallel
