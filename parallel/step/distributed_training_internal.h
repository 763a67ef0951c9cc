// The steps of one model over the ranks of a group: what the strategies with ranks share. A strategy says how gradients
// are reduced (GradientReducer), what happens around micro-batches (MicroBatchObserver), and the virtual functions
// below. Not installed.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/step/backward_hooks_internal.h"
#include "lockstep/parallel/step/joining_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/parallel/step/reduced_step_internal.h"
#include "lockstep/parallel/step/shared_runner_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"
#include "lockstep/parallel/step/step_watchers_internal.h"

namespace lockstep::parallel {

class DistributedTraining {
 public:
  // Throws InvalidArgument, naming `mode`, if the group is null, for a number of micro-batches out of range, and inside
  // a DataParallel replica. `module` must outlive this object.
  DistributedTraining(const char* mode, nn::Module& module, std::shared_ptr<ProcessGroup> group,
                      int micro_batches_per_rank, Weighting weighting);
  DistributedTraining(const DistributedTraining&) = delete;
  DistributedTraining& operator=(const DistributedTraining&) = delete;

  // The step of backward(x, y, loss_fn). Returns the mean loss.
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  // The mean loss over all ranks' micro-batches, without gradients.
  Tensor evaluate(const Batch& batch, MicroBatchLoss loss_fn);
  void join(FunctionRef<void()> body, const JoinOptions& options);
  // After an exception in a step, which `error` describes: tells the other ranks.
  void end_failed_step(const std::exception& error);

  void share_buffers(int root);  // all ranks get those of rank `root`

  const char* const mode;  // the strategy's name, for errors
  nn::Module& module;
  std::shared_ptr<ProcessGroup> group;
  const int micro_batches_per_rank;
  const Weighting weighting;
  MicroBatchesInTurn micro_batches;
  ReducedStep* step = nullptr;  // in progress, null: none; owned by what ends it
  std::optional<Joining> joining;
  int local_depth = 0;  // > 0: gradients stay on this rank, in no_sync and before the last backward
  bool wants_stop = false;
  RunnerTraffic traffic;
  StepSummary last = {};  // sum over all ranks, in the last step
  StepWatchers watchers;
  BackwardHooks backwards;  // of results of operator()

 protected:
  virtual ~DistributedTraining();

  // --- what a strategy does, in the order of a step ----------------------------------------------------------------
  // Before a step. Throws InvalidArgument where none can begin.
  virtual void prepare() = 0;
  virtual GradientReducer& reducer() = 0;
  // Parameters whose grad() holds means over all ranks, which are added to the step's after it, and parameters whose
  // grad() is this rank's, from no_sync, which joins this rank's sums.
  virtual const std::vector<nn::Parameter>& with_means() const = 0;
  virtual const std::vector<nn::Parameter>& with_own() const = 0;
  virtual void begin_step() {}  // a step that will be reduced begins; not in no_sync
  virtual void begin_micro_batches() {}
  virtual MicroBatchObserver& observer() { return no_observer_; }
  // A parameter's gradient is complete, in any backward: one that the user called may begin a step here.
  virtual void reach(std::size_t parameter, autograd::Run& run) = 0;
  virtual void reduced() {}  // the gradients of a step are in grad()
  // The parameters whose gradients a step has set.
  virtual std::vector<ShardedParameter> stepped() const { return whole_parameters(module); }
  virtual bool shares_buffers() const = 0;
  virtual void end_step() {}                // after everything else
  virtual void end_local_step() {}          // a step in no_sync
  virtual void drop_partial_gradients() {}  // those that a failed step has left where the user cannot reach them
  virtual std::vector<ProcessGroup*> groups() const { return {group.get()}; }
  virtual void abandon_step() {}  // after a failed step
  virtual void check_join(const JoinOptions& options) const = 0;
  virtual void drop_gradients();  // all of them, on a rank that has joined
  virtual void end_join() {}
  // -----------------------------------------------------------------------------------------------------------------

  // Registers the leaf hooks of the reducer's parameters, and takes its views, when the reducer is new.
  void attach_reducer();
  StepInputs inputs(StepSummary own) const;
  // Tells the counters and the watchers of a step whose backward is the user's own or not.
  void watch_step(bool is_of_user);
  Tensor run_step(MicroBatchPlan plan, const Batch& batch, MicroBatchLoss loss_fn);
  // Whether no rank waits for this one while it computes without a reduction.
  virtual bool is_alone() const { return runner_groups(module).empty(); }
  void finish_step();
  void finish_local(const MicroBatchPlan& plan, AccumulatedGradients& own);

 private:
  MicroBatchPlan plan(std::int64_t samples) const;
  Tensor run_local(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn);
  void run_micro_batches(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                         std::vector<Tensor>& losses, FunctionRef<void()> before_last,
                         FunctionRef<void(int chunk)> after_chunk = kNothingAfterChunk);
  void require_samples(std::int64_t samples);
  void complete(std::size_t parameter, autograd::Run& run);
  void shadow();
  void check_first_gradients();
  void begin_backward(autograd::Run& run);

  NoObserver no_observer_;
  std::vector<HookHandle> leaf_hooks_;
  StepFailures failures_;
  bool stop_of_parts_ = false;          // a rank with another part of the model has requested a stop
  bool has_checked_gradients_ = false;  // of whole parameters, in the first step, if the model has slices
};

}  // namespace lockstep::parallel
