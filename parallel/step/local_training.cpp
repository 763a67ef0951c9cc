#include "lockstep/parallel/step/local_training_internal.h"

#include <utility>

#include "lockstep/base/check_internal.h"
#include "lockstep/nn/deferred.h"
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/model_check_internal.h"
#include "lockstep/tensor/random/random.h"

namespace lockstep::parallel {

namespace {

nn::Module& with_values(const char* mode, nn::Module& module, int micro_batches) {
  require_outside_replicas(mode);
  LOCKSTEP_CHECK(micro_batches >= 1 && micro_batches <= random::kMaxMicroBatches,
                 "{}: {} micro-batches, expected 1 to {}", mode, micro_batches, random::kMaxMicroBatches);
  require_runner_ranks(mode, module, nullptr);
  nn::materialize(module);
  share_added_values(mode, module);
  return module;
}

}  // namespace

LocalTraining::LocalTraining(const char* mode, nn::Module& module, int micro_batches, Weighting weighting)
    : mode_(mode), module_(with_values(mode, module, micro_batches)), number_(micro_batches), weighting_(weighting),
      micro_batches_(module), backwards_([this](autograd::Run& run) { begin_backward(run); }) {}

MicroBatchPlan LocalTraining::plan(const Batch& batch) const {
  return {.op = mode_, .samples = rows_of(mode_, batch), .micro_batches = number_, .weighting = weighting_};
}

void LocalTraining::begin_step(bool is_of_user) {
  RunnerTraffic::open_step(module_, nullptr);
  watchers_.begin_step({.is_of_user = is_of_user});
}

Tensor LocalTraining::forward(FunctionRef<Tensor()> run_module) {
  return run_or_end(mode_, *this, [&] {
    if (autograd::grad_mode()) begin_step(/*is_of_user=*/true);
    return backwards_.add(run_module());
  });
}

// The user's own.
void LocalTraining::begin_backward(autograd::Run& run) {
  run.at_error([this](const std::exception& error) { end_failed_step(error); });
  if (!run.accumulates()) return;
  RunnerTraffic::open_step(module_, nullptr);
  run.at_end([this] { end_step(); });
}

void LocalTraining::end_step() {
  if (local_depth_ == 0) RunnerTraffic::close_step(module_, nullptr);
}

void LocalTraining::end_failed_step(const std::exception& error) {
  RunnerTraffic::close_step(module_, nullptr);
  failures_.tell(runner_groups(module_), mode_, error);
}

Tensor LocalTraining::run(const Batch& batch, MicroBatchLoss loss_fn) {
  return run_or_end(mode_, *this, [&] { return run_step(batch, loss_fn); });
}

Tensor LocalTraining::run_step(const Batch& batch, MicroBatchLoss loss_fn) {
  require_runner_ranks(mode_, module_, nullptr);
  const MicroBatchPlan plan = this->plan(batch);
  const StepScale scale = plan.scale();
  begin_step(/*is_of_user=*/false);
  is_stopped_ = check_same_step_of_parts(mode_, module_, batch, {.wants_stop = wants_stop_});
  micro_batches_.update();
  AccumulatedGradients accumulated(micro_batches_.parameters());
  std::vector<Tensor> losses;
  NoObserver none;
  micro_batches_.run(plan, 0, batch, loss_fn, losses, none, [] {});
  micro_batches_.buffers().apply_updates();
  micro_batches_.take_gradients(scale);
  if (!std::exchange(has_checked_gradients_, true))
    check_same_whole_gradients(mode_, module_, whole_parameters(module_));
  accumulated.add_back();
  end_step();
  watchers_.gradients_ready();
  return combine_losses(losses, scale);
}

Tensor LocalTraining::evaluate(const Batch& batch, MicroBatchLoss loss_fn) {
  return run_or_end(mode_, *this, [&] {
    MicroBatchPlan plan = this->plan(batch);
    plan.evaluates = true;
    const StepScale scale = plan.scale();
    is_stopped_ = check_same_step_of_parts(mode_, module_, batch, {.evaluates = true, .wants_stop = wants_stop_});
    std::vector<Tensor> losses;
    NoObserver none;
    micro_batches_.run(plan, 0, batch, loss_fn, losses, none, [] {});
    micro_batches_.buffers().apply_updates();
    return combine_losses(losses, scale);
  });
}

void LocalTraining::request_stop() {
  wants_stop_ = true;
  if (!divides_model(module_)) is_stopped_ = true;
}

double LocalTraining::clip_grad_norm_(double max_norm) {
  return run_or_end(mode_, *this, [&] { return clip_gradients(module_, max_norm); });
}

}  // namespace lockstep::parallel
