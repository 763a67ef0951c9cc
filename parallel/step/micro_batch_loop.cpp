#include "lockstep/parallel/step/micro_batch_loop_internal.h"

#include <algorithm>

#include "lockstep/base/check_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {
namespace {

class InTurn final : public MicroBatchExecutor {
 public:
  InTurn(GradientSets& sets, MicroBatchBuffers& buffers, int first, FunctionRef<void(bool is_last)> before_backward)
      : sets_(sets), buffers_(buffers), first_(first), before_backward_(before_backward) {}

  void for_each(int running, FunctionRef<void(int s)> body) override {
    running_ = running;
    buffers_.begin_step(running > 1);
    for (int s = 0; s < running; ++s) {
      const random::MicroBatchGuard micro_batch(first_ + s);
      nn::ReplicaView view;
      if (s > 0) buffers_.enter(view);
      const nn::ReplicaViewGuard guard(s > 0 && !buffers_.empty() ? &view : nn::current_replica_view());
      sets_.begin(s, running);
      body(s);
      sets_.end(s, running);
    }
  }
  Batch select(const Batch& batch, RowRange samples, int) override { return narrow_rows(batch, samples); }
  void backward(int s, const Tensor& loss, std::int64_t weight) override {
    before_backward_(s == running_ - 1);
    weighted_backward(loss, weight);
  }

 private:
  GradientSets& sets_;
  MicroBatchBuffers& buffers_;
  int first_, running_ = 0;
  FunctionRef<void(bool is_last)> before_backward_;
};

}  // namespace

int MicroBatchPlan::running() const { return static_cast<int>(std::min<std::int64_t>(samples, micro_batches)); }

StepScale MicroBatchPlan::scale() const {
  LOCKSTEP_CHECK(samples > 0, "{}: the batch has no rows", op);
  return weighted() ? StepScale(samples) : StepScale(micro_batches, running());
}

void run_micro_batches(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                       MicroBatchExecutor& executor, std::vector<Tensor>& losses) {
  losses.resize(static_cast<std::size_t>(plan.running()));
  executor.for_each(plan.running(), [&](int s) {
    const RowRange samples = micro_batch_rows(plan.samples, s, plan.micro_batches);
    const std::int64_t weight = plan.weighted() ? samples.count : 1;
    const Tensor loss = loss_fn(executor.select(batch, samples, s));
    losses[static_cast<std::size_t>(s)] = weighted_loss(plan.op, loss, weight);
    executor.backward(s, loss, weight);
  });
}

bool MicroBatchesInTurn::update() {
  if (!trained_.changed()) return false;
  sets_ = GradientSets(trained_.list());
  return true;
}

void MicroBatchesInTurn::run(const MicroBatchPlan& plan, int first, const Batch& batch, MicroBatchLoss loss_fn,
                             std::vector<Tensor>& losses, FunctionRef<void(bool is_last)> before_backward) {
  InTurn executor(sets_, buffers_, first, before_backward);
  run_micro_batches(plan, batch, loss_fn, executor, losses);
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
