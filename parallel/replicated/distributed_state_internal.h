// The state of a DistributedDataParallel.
#pragma once

#include <exception>
#include <memory>
#include <optional>

#include "lockstep/parallel/replicated/buckets/distributed_step_internal.h"
#include "lockstep/parallel/replicated/buckets/launch_queue_internal.h"
#include "lockstep/parallel/replicated/distributed.h"
#include "lockstep/parallel/step/joining_internal.h"
#include "lockstep/parallel/step/micro_batch_loop_internal.h"
#include "lockstep/parallel/step/step_failure_internal.h"

namespace lockstep::parallel {

struct DistributedDataParallel::State final : ReducedModel {
  State(nn::Module& module, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options);
  ~State();

  void take_group();
  void install();
  void use(std::unique_ptr<GradientBuckets> planned);
  void plan_by_order();
  void share_state(int root);
  void share_buffers(int root);

  // The leaf hook of a parameter, called when its gradient is complete.
  void complete(std::size_t parameter, autograd::Run& run);
  void begin_backward_step(autograd::Run& run);
  void end_failed_step(const std::exception& error);
  void begin_traffic(const autograd::Run* run);
  StepInputs inputs(StepSummary own);
  Tensor run_step(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                  AccumulatedGradients* accumulated);
  Tensor run_local(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn);

  const ProcessGroup& own_group() const override { return *group; }
  bool takes_part(const autograd::Run& run) const override { return step && step->run() == &run; }
  void launch_rest() override { step->launch_rest(); }
  void finish_step() override;

  bool joined_step();
  void shadow();
  void end_join();

  nn::Module& module;
  std::shared_ptr<ProcessGroup> group;
  DistributedDataParallelOptions options;
  MicroBatchesInTurn micro_batches;
  std::shared_ptr<CommHook> hook;
  optim::NamedParameters named;  // those in the buckets
  std::unique_ptr<GradientBuckets> buckets;
  std::vector<std::size_t> order;                 // in which gradients became ready in the first step of `buckets`
  bool knows_order = false;                       // whether buckets are planned by it, after that step
  std::unique_ptr<GradientBuckets> next_buckets;  // planned by the first step, in use from the second; or null
  DistributedStep* step = nullptr;                // in progress, null: none; owned by what ends it
  StepFailures failures;
  std::optional<Joining> joining;
  int local_depth = 0;               // > 0: gradients stay on this rank, in no_sync and before the last micro-batch
  bool gradients_are_means = false;  // grad() holds means over all ranks, not this rank's gradients
  bool wants_stop = false;
  StepSummary last = {};  // sum over all ranks, in the last step
};

}  // namespace lockstep::parallel
