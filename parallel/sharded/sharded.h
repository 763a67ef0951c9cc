/// \file
/// ShardedDataParallel: data parallelism in which each rank keeps a part of the model (ZeRO stages 1 to 3, FSDP).
///
///     parallel::ShardedDataParallel run(model, group, {.stage = 3});
///     optim::AdamW optimizer(run.parameters(), {.lr = 3e-4});          // updates this rank's part
///     run.backward(x, y, loss_fn);                                      // see step.h
///     run.clip_grad_norm_(1.0);
///     optimizer.step();
///     run.gathered([&] { evaluate(model); });                           // whole parameters, on all ranks
///
/// Stage 1 distributes the optimizer's state over the ranks, stage 2 also the gradients, stage 3 also the parameters.
/// All stages are bitwise identical to gradient accumulation in one process (step.h).
///
/// Parameters are gathered and their gradients reduced by *units*: modules whose paths match a pattern, by default the
/// children of the largest ModuleList. All other parameters form the root unit. A unit's parameters lie in a padded
/// buffer, cut into equal shards. In stage 3 a unit is gathered before its forward and again before its backward; after
/// each, its memory is free for another unit. The root and the last unit stay gathered from forward to backward. Call a
/// unit's module as `module(x)`, so that its hooks run. (Rajbhandari et al., 2020; Zhao et al., 2023)
///
/// Outside steps and `gathered` the module's own parameters cannot be read, in any stage: the optimizer may have
/// changed other ranks' shards meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/step/join_options.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// Dtypes of ShardedDataParallel. Default: the dtype of the module's parameters before the construction, and for
/// gradients f32 in place of f16 and bf16. The optimizer's pieces and checkpoints have the module's dtype in any case.
/// Gradients that accumulate in no_sync have the dtype of the gathered parameters.
struct MixedPrecision {
  /// Dtype of gathered parameters, in which forward and backward compute, also inside `gathered`. Floating-point inputs
  /// of the module and of units are converted to it.
  std::optional<DType> parameters = std::nullopt;
  /// Dtype of the gradients that ranks exchange. f16 and bf16: each rank's sum is rounded to it, and so is the sum over
  /// all ranks, which is computed in f32.
  std::optional<DType> reduce = std::nullopt;
};

/// Options of ShardedDataParallel.
struct ShardedDataParallelOptions {
  int stage = 3;                            ///< 1: optimizer state; 2: also gradients; 3: also parameters
  std::vector<std::string> units = {};      ///< patterns of module paths: "blocks.*"
  int micro_batches_per_rank = 1;           ///< in `backward(x, y, loss_fn)`
  bool reshard_after_forward = true;        ///< in stage 3: release units after forward; false: keep them gathered
  MixedPrecision mixed_precision = {};      ///< default: none
  bool offload_optimizer = false;           ///< keep the optimizer's parameters and state on cpu:0
  Weighting weighting = Weighting::kEqual;  ///< of micro-batches with different numbers of samples
  int check_every = 0;  ///< number of steps between comparisons of all ranks' gathered parameters; 0: never
};

using ShardedPlan = TrainingPlan;  ///< what plan() returns

/// Trains a model of which each rank keeps a part.
class ShardedDataParallel : public TrainingStep<ShardedDataParallel> {
 public:
  /// Compares the models of all ranks, takes rank 0's values, and keeps this rank's part. `module` must outlive this
  /// object. Its parameters may be deferred (nn/deferred.h): then each rank computes only the initial values of its
  /// own part, on the CPU. Throws CommError, naming rank and difference, if models or options differ, and
  /// InvalidArgument for options that are out of range.
  ShardedDataParallel(nn::Module& module, std::shared_ptr<ProcessGroup> group,
                      const ShardedDataParallelOptions& options = {});
  ~ShardedDataParallel();
  ShardedDataParallel(const ShardedDataParallel&) = delete;
  ShardedDataParallel& operator=(const ShardedDataParallel&) = delete;

  /// Runs the module's forward. This gathers units, so all ranks must call it. Backward reduces the gradients:
  ///
  ///     criterion(run(x), y).backward();
  ///
  /// The results of several calls may contribute to one backward, which ends the step. The backward must reach a
  /// trained parameter on every rank. Throws InvalidArgument if `micro_batches_per_rank` is not 1, with
  /// Weighting::kSamples, and inside `join`.
  Tensor operator()(const Tensor& x);
  Tensor operator()(const std::vector<Tensor>& inputs);  ///< the module's forward_inputs
  nn::Module& module() const;                            ///< the module that was passed to the constructor
  std::shared_ptr<ProcessGroup> group() const;           ///< the group that was passed to the constructor
  /// This rank's pieces of all parameters, for an optimizer, in the order of the model. A piece may be empty. Pieces
  /// of frozen parameters get no gradient.
  std::vector<nn::Parameter> parameters() const;
  /// The same pieces with the parameters' names and whole shapes: weights have `shape.dim() > 1`.
  std::vector<ShardedParameter> named_parameters() const;

  // backward(x, y, loss_fn): see step.h. `x` and `y` are this rank's samples. The returned loss is the mean over the
  // micro-batches of all ranks; inside no_sync, over those of this rank.

  /// Scales the gradients of all ranks' pieces so that their norm is at most `max_norm`. The result is bitwise
  /// identical to nn::clip_grad_norm_ on the whole gradients. Returns the norm before scaling. All ranks must call it.
  double clip_grad_norm_(double max_norm);

  /// Gathers all parameters, calls `body`, and releases the parameters. Meanwhile slices of tensor parallelism are
  /// whole parameters, as in the other modes. `body` must not change parameters. All ranks of the model must call this;
  /// `body` may differ between ranks. An exception of `body` is rethrown. Calls may be nested.
  void gathered(FunctionRef<void()> body);

  /// As DistributedDataParallel::join. `options.shadow_step` is required, and must do what `body` does with the
  /// gradients of a step, because each rank has a part of the model to update:
  ///
  ///     run.join(body, {.shadow_step = [&] { run.clip_grad_norm_(1.0); optimizer.step(); }});
  ///
  /// Inside join call zero_grad before each step; no_sync, operator() and gathered throw InvalidArgument. When all
  /// ranks have joined, there is one more step without samples, whose gradients are undefined.
  void join(FunctionRef<void()> body, const JoinOptions& options);

  /// While the guard exists, backward accumulates this rank's gradients without reducing them, which needs memory for
  /// the gradients of the whole model. The first backward after the guard also reduces the accumulated gradients.
  [[nodiscard]] NoSync no_sync();

  /// See DistributedDataParallel::request_stop.
  void request_stop();
  bool stop_requested() const;  ///< true if any rank requested a stop in the last step

  TrainingPlan plan() const;                           ///< memory and traffic of this rank
  const TrafficStats& traffic();                       ///< as DistributedDataParallel::traffic
  TrainingStats stats() const;                         ///< of the reduce-scatters; a bucket is a unit
  std::vector<std::string> unused_parameters() const;  ///< not used by this rank in the last synchronised backward

 private:
  friend class TrainingStep<ShardedDataParallel>;
  friend class Recorder;
  StepWatchers& watchers();
  friend class CheckpointModel;
  friend class ShardedAccessSupplier;
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor run_evaluation(const Batch& batch, MicroBatchLoss loss_fn);
  std::shared_ptr<ModelState> model_state();
  struct State;
  std::unique_ptr<State> state_;
};

/// Stage 3, the default.
using FullyShardedDataParallel = ShardedDataParallel;

}  // namespace lockstep::parallel
