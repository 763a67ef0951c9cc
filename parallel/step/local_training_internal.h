// The steps of a mode whose gradients stay on this rank. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/step/backward_hooks_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/parallel/step/step_watchers_internal.h"

namespace lockstep::parallel {

class LocalTraining {
 public:
  // `mode` is the strategy's name, for errors. Gives deferred parameters values. `module` must outlive this object.
  // Throws InvalidArgument for a number of micro-batches out of range.
  LocalTraining(const char* mode, nn::Module& module, int micro_batches, Weighting weighting);

  // The step of backward(x, y, loss_fn). Returns the mean loss.
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  // The mean loss, without gradients.
  Tensor evaluate(const Batch& batch, MicroBatchLoss loss_fn);
  // The module's forward, as a part of a step whose backward is the user's own.
  Tensor forward(FunctionRef<Tensor()> run_module);
  double clip_grad_norm_(double max_norm);
  TrainingPlan plan() const { return replicated_plan(module_, number_); }
  const TrafficStats& traffic() { return traffic_.with(module_, nullptr); }
  nn::Module& module() const { return module_; }
  StepWatchers& watchers() { return watchers_; }
  NoSync no_sync() { return NoSync(&local_depth_); }
  // If ranks have parts of the model, a request reaches all of them in the next step.
  void request_stop();
  bool is_stopped() const { return is_stopped_; }
  void end_failed_step(const std::exception& error);

 private:
  MicroBatchPlan plan(const Batch& batch) const;
  void begin_step(bool is_of_user);
  void begin_backward(autograd::Run& run);
  void end_step();
  Tensor run_step(const Batch& batch, MicroBatchLoss loss_fn);

  const char* mode_;
  nn::Module& module_;
  int number_;  // of micro-batches
  Weighting weighting_;
  MicroBatchesInTurn micro_batches_;
  StepWatchers watchers_;
  StepFailures failures_;
  RunnerTraffic traffic_;
  BackwardHooks backwards_;
  int local_depth_ = 0;  // > 0: in no_sync
  bool has_checked_gradients_ = false;
  bool wants_stop_ = false, is_stopped_ = false;
};

}  // namespace lockstep::parallel
