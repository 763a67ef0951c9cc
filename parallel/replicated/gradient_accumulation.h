/// \file
/// GradientAccumulation: one process runs the S micro-batches of every step in turn.
///
/// The results equal those of DataParallel on S devices and of DistributedDataParallel with S micro-batches in total,
/// bit for bit. So GradientAccumulation is the reference for both, and accumulating gradients does not change the
/// result.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/step/step.h"

namespace lockstep::parallel {

/// The number of micro-batches, and their weights.
struct GradientAccumulationOptions {
  int micro_batches = 1;                    ///< in a step
  Weighting weighting = Weighting::kEqual;  ///< of micro-batches with different numbers of samples
};

/// Trains one model on the micro-batches of each step, one after another.
class GradientAccumulation : public TrainingStep<GradientAccumulation> {
 public:
  /// `module` must outlive this object. Throws InvalidArgument for less than one micro-batch.
  explicit GradientAccumulation(nn::Module& module, const GradientAccumulationOptions& options = {});
  ~GradientAccumulation();
  GradientAccumulation(const GradientAccumulation&) = delete;
  GradientAccumulation& operator=(const GradientAccumulation&) = delete;

  Tensor operator()(const Tensor& x) const;                    ///< the module's forward, on the whole batch
  Tensor operator()(const std::vector<Tensor>& inputs) const;  ///< the module's forward_inputs
  nn::Module& module() const;                                  ///< the module that was passed to the constructor
  /// nn::clip_grad_norm_; of a model that tensor parallelism has cut, over all slices: all ranks must call it.
  double clip_grad_norm_(double max_norm);
  /// Steps while the guard exists count as part of the next one in traffic(); gradients accumulate as ever.
  [[nodiscard]] NoSync no_sync();
  TrainingPlan plan() const;      ///< memory
  const TrafficStats& traffic();  ///< of a model that several ranks share: the sum over their groups
  /// stop_requested() becomes true; on all ranks that share the model after the same step.
  void request_stop();
  bool stop_requested() const;  ///< whether to end the training after this step

  // backward(x, y, loss_fn): see step.h. Adds to accumulated gradients.

 private:
  friend class TrainingStep<GradientAccumulation>;
  friend class Recorder;
  StepWatchers& watchers();
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  Tensor run_evaluation(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
