/// \file
/// GradientAccumulation: one process runs the S micro-batches of every step in turn.
///
/// What GradientAccumulation computes is what DataParallel on S devices and DistributedDataParallel with S
/// micro-batches in all compute, bit for bit: the reference the others are compared with, and gradient accumulation
/// that does not change the result.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replicated/step.h"

namespace lockstep::parallel {

/// Into how many micro-batches, and how they count.
struct GradientAccumulationOptions {
  int micro_batches = 1;                    ///< in a step
  Weighting weighting = Weighting::kEqual;  ///< of micro-batches with unequal numbers of rows
};

/// Trains one model on the micro-batches of each step in turn, as the head of this file says.
class GradientAccumulation : public TrainingStep<GradientAccumulation> {
 public:
  /// Refers to `module`, which has to live as long. Throws InvalidArgument for less than one micro-batch.
  explicit GradientAccumulation(nn::Module& module, const GradientAccumulationOptions& options = {});
  ~GradientAccumulation();
  GradientAccumulation(const GradientAccumulation&) = delete;
  GradientAccumulation& operator=(const GradientAccumulation&) = delete;

  Tensor operator()(const Tensor& x) const;       ///< the module's forward, on all rows at once
  std::vector<nn::Parameter> parameters() const;  ///< the module's

  // backward(x, y, loss_fn): see step.h. Gradients that stand already are added to.

 private:
  friend class TrainingStep<GradientAccumulation>;
  Tensor run(const Batch& batch, MicroBatchLoss loss_fn);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::parallel
