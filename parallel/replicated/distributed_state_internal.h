// The state of a DistributedDataParallel.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/parallel/replicated/buckets/bucket_schedule_internal.h"
#include "lockstep/parallel/replicated/buckets/launch_queue_internal.h"
#include "lockstep/parallel/replicated/distributed.h"
#include "lockstep/parallel/step/distributed_training_internal.h"

namespace lockstep::parallel {

struct DistributedDataParallel::State final : DistributedTraining, ReducedModel {
  State(nn::Module& module, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options);
  ~State() override;

  void check_ranks();
  void take_group();
  void share_state(int root);

  // --- a step ---
  void prepare() override;
  Tensor forward(FunctionRef<Tensor()> run_module);  // of operator()
  GradientReducer& reducer() override { return schedule.buckets(); }
  const std::vector<nn::Parameter>& with_means() const override;
  const std::vector<nn::Parameter>& with_own() const override;
  void reach(std::size_t parameter, autograd::Run& run) override;
  void begin_backward_step(autograd::Run& run);
  void reduced() override;
  bool shares_buffers() const override { return options.sync_buffers; }
  void end_step() override;
  void end_local_step() override { gradients_are_means = false; }
  void abandon_step() override { schedule.buckets().drain(); }
  void check_join(const JoinOptions& options) const override;
  void end_join() override;

  // --- for the queue ---
  const ProcessGroup& own_group() const override { return *group; }
  bool takes_part(const autograd::Run& run) const override { return step && step->run() == &run; }
  void launch_rest() override { step->launch_rest(); }
  void finish_step() override {
    DistributedTraining::finish_step();
    watchers.gradients_ready();
  }

  DistributedDataParallelOptions options;
  BucketSchedule schedule;
  bool gradients_are_means = false;  // grad() holds means over all ranks, not this rank's gradients
  const std::vector<nn::Parameter> none = {};
};

}  // namespace lockstep::parallel
