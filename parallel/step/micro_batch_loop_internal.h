// The loop over the micro-batches of a step, for all modes: forward, loss and backward of each.
#pragma once

#include <vector>

#include "lockstep/parallel/step/gradient_sets_internal.h"
#include "lockstep/parallel/step/micro_batch_buffers_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"

namespace lockstep::parallel {

// How a process splits its batch of a step into micro-batches.
struct MicroBatchPlan {
  const char* op;        // name of the mode, for errors
  std::int64_t samples;  // of the batch
  int micro_batches;     // into which the batch is split
  Weighting weighting = Weighting::kEqual;

  bool weighted() const { return weighting == Weighting::kSamples; }
  int running() const;  // micro-batches that have samples
  // The scale of the sum over the process's micro-batches. Throws InvalidArgument if the batch has no samples.
  StepScale scale() const;
};

// Runs micro-batches: the part of the loop that differs between the modes.
class MicroBatchExecutor {
 public:
  // Calls body(s) for s in [0, running), in order or at the same time.
  virtual void for_each(int running, FunctionRef<void(int s)> body) = 0;
  // Returns the samples of micro-batch s, on its device, without history.
  virtual Batch select(const Batch& batch, RowRange samples, int s) = 0;
  // Runs backward from a loss, times `weight`.
  virtual void backward(int s, const Tensor& loss, std::int64_t weight) = 0;

 protected:
  ~MicroBatchExecutor() = default;
};

// Runs the loss function and backward for every micro-batch that has samples. Sets losses[s], detached and multiplied
// by its weight, before the backward of micro-batch s starts.
void run_micro_batches(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                       MicroBatchExecutor& executor, std::vector<Tensor>& losses);

// Runs micro-batches one after another, on the module's own parameters, with gradients summed in canonical order.
class MicroBatchesInTurn {
 public:
  explicit MicroBatchesInTurn(const nn::Module& module) : trained_(module), sets_(trained_.list()), buffers_(module) {}

  // The parameters that require grad. Programs freeze and unfreeze parameters between steps; `update` updates the list
  // and returns true if it has changed.
  const std::vector<nn::Parameter>& parameters() const { return trained_.list(); }
  bool is_current() const { return trained_.is_current(); }
  bool update();
  GradientSets& sets() { return sets_; }
  bool has_buffers() const { return !buffers_.empty(); }

  // `first` is the number of the process's first micro-batch. Calls `before_backward` before each backward.
  void run(const MicroBatchPlan& plan, int first, const Batch& batch, MicroBatchLoss loss_fn,
           std::vector<Tensor>& losses, FunctionRef<void(bool is_last)> before_backward);
  // Sets grad() to the scaled sums over the micro-batches.
  void take_gradients(const StepScale& scale);

 private:
  TrainedParameters trained_;
  GradientSets sets_;
  MicroBatchBuffers buffers_;
};

}  // namespace lockstep::parallel
