// What a DistributedDataParallel consists of. Not installed.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/parallel/replicated/distributed.h"
#include "lockstep/parallel/replicated/gradient_sets_internal.h"
#include "lockstep/parallel/replicated/micro_batch_buffers_internal.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"
#include "lockstep/parallel/replicated/reducer_internal.h"

namespace lockstep::parallel {

struct DistributedDataParallel::State {
  State(nn::Module& module, std::shared_ptr<ProcessGroup> group, const DistributedDataParallelOptions& options)
      : module(module), group(std::move(group)), options(options), parameters(module), sets(parameters.list()),
        buffers(module) {}

  // A call of join on this rank.
  struct Join {
    const JoinOptions& options;
    std::int64_t own_steps = 0;  // synchronised, with data of this rank
    bool is_out = false;         // of data
    int out = 0;                 // ranks that were, in the last step
    int buffers_of = 0;          // the first rank that was not
  };

  void install();
  void share_state(int root);
  void share_buffers(int root);
  void after_step();
  Tensor step(const Batch& batch, MicroBatchLoss loss_fn, StandingGradients* standing);

  void shadow();
  void after_joined_step();
  void end_join();

  nn::Module& module;
  std::shared_ptr<ProcessGroup> group;
  DistributedDataParallelOptions options;
  TrainedParameters parameters;
  GradientSets sets;
  MicroBatchBuffers buffers;
  std::shared_ptr<CommHook> hook;
  std::unique_ptr<Reducer> reducer;
  std::optional<Join> joining;
  int no_sync_depth = 0;
  bool reduced = false;  // the gradients that stand are means over all ranks
};

}  // namespace lockstep::parallel
