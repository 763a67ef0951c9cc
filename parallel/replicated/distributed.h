/// \file
/// DistributedDataParallel: one replica of the model in each rank of a process group.
///
/// Gradients live in buckets, in the group's communication memory. While backward runs, a bucket whose gradients are
/// complete is reduced, in the same order on all ranks; when backward returns, every rank's gradients are the mean over
/// all ranks. The first step records the order in which gradients become ready, and buckets are planned by it from the
/// second step on, unless a communication hook is registered. No rank waits for a parameter that another rank did not
/// use: that rank's gradient counts as zero. The gradient of a parameter that no rank used stays undefined. Several
/// models may share a group, also in one backward.
///
/// grad() is a view of a bucket, which the next step overwrites; to keep its values, keep grad().clone(). grad() has no
/// history; for derivatives of gradients call autograd::grad inside the loss function.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/replicated/comm_hooks.h"
#include "lockstep/parallel/step/join_options.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// Options of DistributedDataParallel.
struct DistributedDataParallelOptions {
  double bucket_cap_mb = 25;       ///< MiB of gradients in a bucket; in the first bucket at most 1 MiB
  int micro_batches_per_rank = 1;  ///< in `backward(x, y, loss_fn)`
  /// Broadcast rank 0's buffers after each synchronised backward: after a step all ranks have the same buffers. PyTorch
  /// does it before each forward; then a forward on one rank alone, for evaluation, would wait for the others.
  bool sync_buffers = true;
  Weighting weighting = Weighting::kEqual;  ///< of ranks' and micro-batches' samples; for backward(x, y, loss_fn) only
  int check_every = 0;                      ///< number of steps between comparisons of all ranks' parameters; 0: never
};

using DistributedDataParallelStats = TrainingStats;  ///< what stats() returns

/// Trains one replica of a model in each process and keeps the replicas equal.
class DistributedDataParallel : public TrainingStep<DistributedDataParallel> {
 public:
  /// Compares the models of all ranks, then broadcasts rank 0's parameters and buffers. `module` must outlive this
  /// object. Throws CommError, naming the rank and parameter, if models differ.
  DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// The module's forward. A backward from its result reduces the gradients. Throws InvalidArgument inside a
  /// DataParallel replica.
  Tensor operator()(const Tensor& x);
  Tensor operator()(const std::vector<Tensor>& inputs);  ///< the module's forward_inputs
  nn::Module& module() const;                            ///< the module that was passed to the constructor
  std::shared_ptr<ProcessGroup> group() const;  ///< the group that was passed to the constructor, or a duplicate

  /// While the guard lives, backward accumulates this rank's gradients without communication. The first backward after
  /// the guard reduces the accumulated gradients. The guard applies to backward, wherever forward ran.
  [[nodiscard]] NoSync no_sync();

  /// Runs `body`, the loop over this rank's batches. Ranks may have different numbers of batches, also none:
  ///
  ///     ddp.join([&] { for (const auto& [x, y] : loader) { ddp.backward(x, y, loss_fn); optimizer.step(); } });
  ///
  /// A rank whose body has returned has joined: it takes part in the other ranks' synchronised steps, with gradients
  /// that count as zero, until all ranks have joined. Then all ranks get the parameters and buffers of a rank that
  /// took most steps, and gradients are undefined. Joined ranks do not take part in other collectives of the body
  /// (metrics). All ranks must call join. An exception of `body` is passed on, and the other ranks fail with an error
  /// that names this rank and the exception. Throws InvalidArgument inside no_sync or another join, or if another model
  /// shares the group; CommError if options differ, if a rank is lost, or with throw_on_early_termination.
  void join(FunctionRef<void()> body, const JoinOptions& options = {});

  /// Averages buckets by `hook` (comm_hooks.h) from now on. All ranks must call this. Throws InvalidArgument in a
  /// second call and after the first synchronised backward, CommError if ranks register different hooks.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// nn::clip_grad_norm_; of a model that tensor parallelism has cut, over all slices: all ranks must call it.
  double clip_grad_norm_(double max_norm);

  /// Requests a stop, for example after Ctrl-C. The request is sent with the next synchronised step, so that
  /// stop_requested() becomes true on all ranks after the same step.
  void request_stop();
  bool stop_requested() const;  ///< true if any rank had requested a stop in the last step

  TrainingStats stats() const;  ///< of this rank
  /// The group's counters. Of a model that several ranks share (axes cp and tp) those of the axes' groups are added, in
  /// a copy that the next call replaces.
  const TrafficStats& traffic();
  TrainingPlan plan() const;  ///< memory, and the traffic of the buckets, of this rank
  /// Names of the parameters that this rank did not use in the last synchronised backward.
  std::vector<std::string> unused_parameters() const;
  // backward(x, y, loss_fn): see step.h. `x` and `y` are this rank's. The returned loss is the mean over the
  // micro-batches of all ranks, inside no_sync over those of this rank.

 private:
  friend class TrainingStep<DistributedDataParallel>;
  friend class Recorder;
  StepWatchers& watchers();
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor run_evaluation(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
