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
#include <utility>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/replicated/comm_hooks.h"
#include "lockstep/parallel/replicated/step.h"

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

/// One bucket of gradients. The three times are of the last synchronised step, in seconds since the first gradient of
/// that step was ready, by the clock of the host.
struct BucketStats {
  std::int64_t bytes = 0;                    ///< of its gradients and metadata
  std::vector<std::string> parameters = {};  ///< their names
  double ready = 0;                          ///< all its gradients are ready
  double launched = 0;                       ///< its reduction is launched
  double done = 0;                           ///< this rank has seen that the reduction is complete
};

/// How much of a step's communication was complete before the last gradient of the step was ready, that is, while
/// backward still computed. A bucket counts only if its reduction was complete by then: of a reduction in flight it is
/// not known how much is done. So the shares are lower bounds. With shm and local the ranks' own cores do the reduction,
/// when a gradient becomes ready, so overlap shortens waits but hides no work.
struct CommunicationOverlap {
  double seconds = 0;            ///< during which at least one bucket was launched and not done
  double early_seconds = 0;      ///< the same, of buckets that were done before the last gradient was ready only
  std::int64_t bytes = 0;        ///< of all buckets
  std::int64_t early_bytes = 0;  ///< of the buckets that were done before the last gradient was ready
  /// Share of the seconds, between 0 and 1; 0 if nothing was communicated.
  double share() const { return seconds > 0 ? early_seconds / seconds : 0; }
  /// Share of the bytes, between 0 and 1.
  double byte_share() const { return bytes > 0 ? static_cast<double>(early_bytes) / static_cast<double>(bytes) : 0; }
};
/// The overlap of one step, from the times of its buckets.
CommunicationOverlap communication_overlap(const std::vector<BucketStats>& buckets);

/// Statistics of the reductions so far, and of their overlap with backward.
struct DistributedDataParallelStats {
  std::vector<BucketStats> buckets;  ///< in the order in which they are launched
  std::int64_t steps = 0;            ///< synchronised
  std::int64_t reduced_bytes = 0;    ///< of buckets, in all steps; the group's traffic() counts what a hook sends
  std::int64_t copies = 0;  ///< gradients copied into their bucket, or (f16, bf16) rounded out of it, in all steps
  /// The shares of communication_overlap in the last synchronised step, in seconds and in bytes. 0 in a group of one,
  /// which communicates nothing, and with nccl, where the host does not know which operations the GPU has completed.
  double overlap = 0, overlap_bytes = 0;
};

/// Options of `join`, the same on all ranks.
struct JoinOptions {
  /// Divide gradients by the number of all ranks (micro-batches), as if the gradients of joined ranks were zero; false:
  /// by the number of those that have data. With Weighting::kSamples the mean is over the samples of the step either
  /// way.
  bool divide_by_initial_world_size = true;
  bool enable = true;                       ///< false: `join` only calls `body`
  bool throw_on_early_termination = false;  ///< on all ranks, when a rank has no more data and another does
  /// Called on joined ranks after each step of the other ranks, with the step's gradients in grad(). Call the
  /// optimizer's step() here to keep the optimizer's state the same on all ranks.
  Callback<void()> shadow_step = {};
};

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
  std::vector<nn::Parameter> parameters() const;         ///< the module's
  nn::Module& module() const;                            ///< the module that was passed to the constructor
  /// nn::clip_grad_norm_ of the parameters, which gives all ranks the same norm. Returns the norm before.
  double clip_grad_norm_(double max_norm);
  ProcessGroup& group() const;  ///< the group that was passed to the constructor

  /// While the guard lives, backward accumulates this rank's gradients without communication. The first backward after
  /// the guard reduces the accumulated gradients. The guard applies to backward, wherever forward ran.
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
  [[nodiscard]] NoSync no_sync();  ///< returns a guard

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

  /// Requests a stop, for example after Ctrl-C. The request is sent with the next synchronised step, so that
  /// stop_requested() becomes true on all ranks after the same step.
  void request_stop();
  bool stop_requested() const;  ///< true if any rank had requested a stop in the last step

  DistributedDataParallelStats stats() const;  ///< of this rank
  /// Names of the parameters that this rank did not use in the last synchronised backward.
  std::vector<std::string> unused_parameters() const;
  // backward(x, y, loss_fn): see step.h. `x` and `y` are this rank's. The returned loss is the mean over the
  // micro-batches of all ranks, inside no_sync over those of this rank.

 private:
  friend class TrainingStep<DistributedDataParallel>;
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
