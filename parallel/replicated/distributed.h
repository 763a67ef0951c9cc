/// \file
/// DistributedDataParallel: one replica of the model in each rank of a process group.
///
/// Gradients live in buckets, in the group's communication memory. While backward runs, a bucket whose gradients are
/// complete is reduced, in the same order on all ranks; when backward returns, every rank's gradients are the mean over
/// all ranks. A parameter that a rank did not use never makes others wait: what stands in its place counts as zero, and
/// one that no rank used keeps an undefined gradient. Several models may share a group, in one backward, too.
///
/// grad() is a view of a bucket, which the next step overwrites: keep grad().clone(). It has no history; call
/// autograd::grad inside the loss for derivatives of gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/replicated/comm_hooks.h"
#include "lockstep/parallel/replicated/step.h"

namespace lockstep::parallel {

/// How DistributedDataParallel reduces.
struct DistributedDataParallelOptions {
  double bucket_cap_mb = 25;       ///< MiB of gradients in a bucket; the first one takes 1 MiB at most
  int micro_batches_per_rank = 1;  ///< of `backward(x, y, loss_fn)`
  bool sync_buffers = true;        ///< after each synchronised backward all ranks get rank 0's buffers
  Weighting weighting =
      Weighting::kEqual;  ///< of ranks (and micro-batches) with unequal numbers of rows; needs the verb
  int check_every = 0;    ///< compare all parameters over the ranks after this many steps; 0: never
};

/// One bucket of gradients. Its three moments are those of the last synchronised step, in seconds since the
/// first gradient of that step was ready, by the clock of the host.
struct BucketStats {
  std::int64_t bytes = 0;                    ///< of its gradients
  std::vector<std::string> parameters = {};  ///< their names
  double ready = 0;                          ///< all its gradients are ready
  double launched = 0;                       ///< its reduction is launched
  double done = 0;                           ///< this rank has seen that the reduction is complete
};

/// How much of a step's communication was done before the last gradient of the step was ready, that is, while
/// backward still computed. A bucket counts as a whole, and only if it was done by then: a reduction in
/// flight may not have begun, because ranks of shm, local and mpi work on it in `wait`. So the shares are
/// lower bounds.
struct CommunicationOverlap {
  double seconds = 0;            ///< in which at least one bucket was between launched and done
  double early_seconds = 0;      ///< the same of the buckets that were done before the last gradient was ready
  std::int64_t bytes = 0;        ///< of all buckets
  std::int64_t early_bytes = 0;  ///< of the buckets that were done before the last gradient was ready
  /// Between 0 and 1; 0 where nothing was communicated.
  double share() const { return seconds > 0 ? early_seconds / seconds : 0; }
  /// The same of the bytes.
  double byte_share() const { return bytes > 0 ? static_cast<double>(early_bytes) / static_cast<double>(bytes) : 0; }
};
/// The overlap of one step, from the moments of its buckets.
CommunicationOverlap communication_overlap(const std::vector<BucketStats>& buckets);

/// What has been reduced so far, and how much of the reduction overlapped with backward.
struct DistributedDataParallelStats {
  std::vector<BucketStats> buckets;  ///< in the order in which they are launched
  std::int64_t steps = 0;            ///< synchronised
  std::int64_t reduced_bytes =
      0;  ///< gradients that were reduced, in all steps; what a hook sends is in the group's traffic()
  std::int64_t copies = 0;  ///< gradients copied into their bucket, or (f16, bf16) rounded out of it, in all steps
  /// Of the last synchronised step: the shares of its communication_overlap, in seconds and in bytes. 0 in a
  /// group of one, which communicates nothing, and with nccl, where the host cannot tell what the GPU has
  /// done.
  double overlap = 0, overlap_bytes = 0;
};

/// Of `join`, the same on all ranks.
struct JoinOptions {
  /// Gradients are divided by the number of all ranks (micro-batches), as if those out of data had gradients of zero;
  /// false: by the number of those that have data. With Weighting::kSamples it is the mean over the rows of the step
  /// either way.
  bool divide_by_initial_world_size = true;
  bool enable = true;                       ///< false: `join` only calls `body`
  bool throw_on_early_termination = false;  ///< on all ranks, once one is out of data and another is not
  /// What a rank that is out of data does after each step of the others, with the step's gradients in grad(): an
  /// optimizer's step() here keeps the optimizer's state the same on all ranks.
  Callback<void()> shadow_step = {};
};

/// Trains one replica of a model per process and keeps the replicas equal, as the head of this file says.
class DistributedDataParallel : public TrainingStep<DistributedDataParallel> {
 public:
  /// Compares the model with the other ranks' (CommError names rank and parameter that differ), then gives all ranks
  /// rank 0's parameters and buffers. Refers to `module`, which has to live as long.
  DistributedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// The module's forward; `loss.backward()` then reduces the gradients. Throws InvalidArgument inside a DataParallel
  /// replica.
  Tensor operator()(const Tensor& x);
  Tensor operator()(const std::vector<Tensor>& inputs);  ///< the module's forward_inputs
  std::vector<nn::Parameter> parameters() const;         ///< the module's
  nn::Module& module() const;                            ///< the one it was made with

  /// While the guard lives, backward leaves the gradients of this rank alone: they add up, and the first backward after
  /// it reduces the sum. What counts is where backward runs.
  class NoSync {
   public:
    NoSync(NoSync&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync();

   private:
    friend class DistributedDataParallel;
    explicit NoSync(DistributedDataParallel* owner) : owner_(owner) {}
    DistributedDataParallel* owner_;
  };
  [[nodiscard]] NoSync no_sync();  ///< begins one

  /// Runs `body`, the loop over this rank's batches, where ranks may have different numbers of them (also none):
  ///
  ///     ddp.join([&] { for (const auto& [x, y] : loader) { ddp.backward(x, y, loss_fn); optimizer.step(); } });
  ///
  /// A rank whose body is done shadows the others' synchronised steps, adding nothing, until all are done; then all
  /// ranks get the parameters and buffers of one that took most steps, and no gradients stand. Other collectives of
  /// the body (metrics) are not shadowed. All ranks call it. What `body` throws passes through, and the other ranks
  /// lose this one. Throws InvalidArgument inside no_sync or another join, or where another model shares the group;
  /// CommError where options differ, a rank is lost, or with throw_on_early_termination.
  void join(FunctionRef<void()> body, const JoinOptions& options = {});

  /// Averages buckets by `hook` (comm_hooks.h) from now on. Once, on all ranks, before the first synchronised
  /// backward, else InvalidArgument. Throws CommError where ranks register different hooks.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// For Ctrl-C: says that this rank wants to stop. The wish travels with the next synchronised step, so that all ranks
  /// see it after the same one, in stop_requested().
  void request_stop();
  bool stop_requested() const;  ///< whether a rank wanted to stop, the same on all of them

  DistributedDataParallelStats stats() const;  ///< of this rank
  /// Names of the parameters that this rank did not use in the last synchronised backward.
  std::vector<std::string> unused_parameters() const;
  // backward(x, y, loss_fn): see step.h. `x` and `y` are this rank's; the loss is the mean over all ranks'
  // micro-batches, and in no_sync over this rank's.

 private:
  friend class TrainingStep<DistributedDataParallel>;
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
