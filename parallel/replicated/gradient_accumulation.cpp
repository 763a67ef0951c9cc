#include "lockstep/parallel/replicated/gradient_accumulation.h"

#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/backward_hooks_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/parallel/step/recorder.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/parallel/step/step_watchers_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

struct GradientAccumulation::State {
  State(nn::Module& module, const GradientAccumulationOptions& options)
      : module(module), options(options), micro_batches(module),
        backwards([this](autograd::Run& run) { begin_backward(run); }) {}
  MicroBatchPlan plan(const Batch& batch) const;
  void begin_step(bool is_of_user) {
    RunnerTraffic::open_step(module, nullptr);
    watchers.begin_step({.is_of_user = is_of_user});
  }
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor evaluate(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor forward(FunctionRef<Tensor()> run_module) {  // of operator()
    return run_or_end(*this, [&] {
      if (autograd::grad_mode()) begin_step(/*is_of_user=*/true);
      return backwards.add(run_module());
    });
  }
  // The user's own.
  void begin_backward(autograd::Run& run) {
    run.at_error([this](const std::exception& error) { end_failed_step(error); });
    if (!run.accumulates()) return;
    RunnerTraffic::open_step(module, nullptr);
    run.at_end([this] { end_step(); });
  }
  void end_step() {
    if (local_depth == 0) RunnerTraffic::close_step(module, nullptr);
  }
  void end_failed_step(const std::exception& error) {
    RunnerTraffic::close_step(module, nullptr);
    failures.tell(runner_groups(module), "GradientAccumulation", error);
  }

  nn::Module& module;
  GradientAccumulationOptions options;
  MicroBatchesInTurn micro_batches;
  StepWatchers watchers;
  StepFailures failures;
  RunnerTraffic traffic;
  BackwardHooks backwards;
  int local_depth = 0;  // > 0: in no_sync
  bool has_checked_gradients = false;
};

GradientAccumulation::GradientAccumulation(nn::Module& module, const GradientAccumulationOptions& options) {
  LOCKSTEP_CHECK(options.micro_batches >= 1 && options.micro_batches <= random::kMaxMicroBatches,
                 "GradientAccumulation: {} micro-batches, expected 1 to {}", options.micro_batches,
                 random::kMaxMicroBatches);
  require_runner_ranks("GradientAccumulation", module, nullptr);
  nn::materialize(module);
  state_ = std::make_unique<State>(module, options);
  recorder_ = Recorder::from_environment(*this);
}
GradientAccumulation::~GradientAccumulation() = default;

Tensor GradientAccumulation::operator()(const Tensor& x) const {
  return state_->forward([&] { return state_->module(x); });
}
Tensor GradientAccumulation::operator()(const std::vector<Tensor>& inputs) const {
  return state_->forward([&] { return state_->module(inputs); });
}
nn::Module& GradientAccumulation::module() const { return state_->module; }
const TrafficStats& GradientAccumulation::traffic() { return state_->traffic.with(state_->module, nullptr); }
double GradientAccumulation::clip_grad_norm_(double max_norm) {
  return run_or_end(*state_, [&] { return clip_gradients(state_->module, max_norm); });
}
NoSync GradientAccumulation::no_sync() { return NoSync(&state_->local_depth); }
StepWatchers& GradientAccumulation::watchers() { return state_->watchers; }
TrainingPlan GradientAccumulation::plan() const {
  return replicated_plan(state_->module, state_->options.micro_batches);
}

MicroBatchPlan GradientAccumulation::State::plan(const Batch& batch) const {
  return {.op = "GradientAccumulation",
          .samples = rows_of("GradientAccumulation", batch),
          .micro_batches = options.micro_batches,
          .weighting = options.weighting};
}

Tensor GradientAccumulation::run(const Batch& batch, MicroBatchLoss loss_fn) {
  return run_or_end(*state_, [&] { return state_->run(batch, loss_fn); });
}

Tensor GradientAccumulation::State::run(const Batch& batch, MicroBatchLoss loss_fn) {
  require_runner_ranks("GradientAccumulation", module, nullptr);
  const MicroBatchPlan plan = this->plan(batch);
  const StepScale scale = plan.scale();
  begin_step(/*is_of_user=*/false);
  check_same_batch_of_slices("GradientAccumulation", module, batch);
  micro_batches.update();
  AccumulatedGradients accumulated(micro_batches.parameters());
  std::vector<Tensor> losses;
  NoObserver none;
  micro_batches.run(plan, 0, batch, loss_fn, losses, none, [] {});
  micro_batches.take_gradients(scale);
  if (!std::exchange(has_checked_gradients, true))
    check_same_whole_gradients("GradientAccumulation", module, whole_parameters(module));
  accumulated.add_back();
  end_step();
  watchers.gradients_ready();
  return combine_losses(losses, scale);
}

Tensor GradientAccumulation::run_evaluation(const Batch& batch, MicroBatchLoss loss_fn) {
  return run_or_end(*state_, [&] { return state_->evaluate(batch, loss_fn); });
}

Tensor GradientAccumulation::State::evaluate(const Batch& batch, MicroBatchLoss loss_fn) {
  MicroBatchPlan plan = this->plan(batch);
  plan.evaluates = true;
  const StepScale scale = plan.scale();
  check_same_batch_of_slices("GradientAccumulation", module, batch);
  std::vector<Tensor> losses;
  NoObserver none;
  micro_batches.run(plan, 0, batch, loss_fn, losses, none, [] {});
  return combine_losses(losses, scale);
}

}  // namespace lockstep::parallel
