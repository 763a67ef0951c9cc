// The loop over the micro-batches of a step, for all modes: forward, loss and backward of each.
#pragma once

#include <vector>

#include "lockstep/parallel/replicated/gradient_sets_internal.h"
#include "lockstep/parallel/replicated/micro_batch_buffers_internal.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"

namespace lockstep::parallel {

// How a process cuts its part of a step.
struct MicroBatchPlan {
  const char* op;        // the mode, for errors
  std::int64_t samples;  // of the batch
  int micro_batches;     // that the batch is cut into
  Weighting weighting = Weighting::kEqual;

  bool weighted() const { return weighting == Weighting::kSamples; }
  int running() const;  // micro-batches that have samples
  // What the sum over the process's micro-batches is multiplied by. Throws InvalidArgument where there are none.
  StepScale scale() const;
};

// Where micro-batches run: what differs between the modes.
class MicroBatchExecutor {
 public:
  // Calls body(s) for s in [0, running), in order or at the same time.
  virtual void for_each(int running, FunctionRef<void(int s)> body) = 0;
  // The samples of micro-batch s, where it runs; without history, as several threads may run backward from them.
  virtual Batch select(const Batch& batch, RowRange samples, int s) = 0;
  // Runs backward from a loss, times `weight`.
  virtual void backward(int s, const Tensor& loss, std::int64_t weight) = 0;

 protected:
  ~MicroBatchExecutor() = default;
};

// Runs the loss function and backward for every micro-batch that has samples. Appends the losses, detached and times
// their weight, in order; that of a micro-batch is there when its backward starts.
void run_micro_batches(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn,
                       MicroBatchExecutor& executor, std::vector<Tensor>& losses);

// One after another, on the module's own parameters, with gradients summed in canonical order.
class MicroBatchesInTurn {
 public:
  explicit MicroBatchesInTurn(const nn::Module& module) : trained_(module), sets_(trained_.list()), buffers_(module) {}

  // The parameters that require grad. Users freeze and unfreeze them between steps: `update` looks again, and returns
  // true where the list has changed.
  const std::vector<nn::Parameter>& parameters() const { return trained_.list(); }
  bool update();
  GradientSets& sets() { return sets_; }
  bool has_buffers() const { return !buffers_.empty(); }

  // Runs them; `first` is the number of the first one in the step. `before_last` is called before the last backward.
  void run(const MicroBatchPlan& plan, int first, const Batch& batch, MicroBatchLoss loss_fn,
           std::vector<Tensor>& losses, FunctionRef<void()> before_last);
  // Places the sums over the micro-batches, scaled, in grad().
  void take_gradients(const StepScale& scale);

 private:
  TrainedParameters trained_;
  GradientSets sets_;
  MicroBatchBuffers buffers_;
};

}  // namespace lockstep::parallel
