// The loop over the micro-batches of a step, for all modes: forward, loss and backward of each.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/nn/module_runner_internal.h"
#include "lockstep/parallel/step/gradient_sets_internal.h"
#include "lockstep/parallel/step/micro_batch_buffers_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/micro_batch_observer_internal.h"
#include "lockstep/parallel/step/stage_runner_internal.h"

namespace lockstep::parallel {

// How a process splits its batch of a step into micro-batches.
struct MicroBatchPlan {
  const char* op;        // name of the mode, for errors
  std::int64_t samples;  // of the batch
  int micro_batches;     // into which the batch is split
  Weighting weighting = Weighting::kEqual;
  bool evaluates = false;                // forward and loss only: the loss has no gradients
  ProcessGroup* reduced_over = nullptr;  // whose ranks' gradient sums are added after this process's; null: none

  bool weighted() const { return weighting == Weighting::kSamples; }
  int running() const;  // micro-batches that have samples
  RowRange rows(int s) const { return micro_batch_rows(samples, s, micro_batches); }
  std::int64_t weight(int s) const { return weighted() ? rows(s).count : 1; }  // of micro-batch s
  // The scale of the sum over the process's micro-batches. Throws InvalidArgument if the batch has no samples.
  StepScale scale() const;
};

// A step that does nothing after the last backward of a chunk.
inline constexpr auto kNothingAfterChunk = [](int) {};

// Runs micro-batches: the part of the loop that differs between the modes.
class MicroBatchExecutor {
 public:
  // Calls body(s) for s in [0, running), in order or at the same time.
  virtual void for_each(int running, FunctionRef<void(int s)> body) = 0;
  // Returns the loss of micro-batch s: loss_fn of its samples, on its device, without history.
  virtual Tensor forward(int s, const Batch& batch, RowRange samples, MicroBatchLoss loss_fn) = 0;
  // Runs backward from a loss, times `weight`.
  virtual void backward(int s, const Tensor& loss, std::int64_t weight) = 0;
  virtual void skip_backward(int /*s*/) {}  // in an evaluation

 protected:
  ~MicroBatchExecutor() = default;
};

// The micro-batches of a step in one process: forward and backward of each, which may run apart.
class MicroBatchStep {
 public:
  // Sets losses[s], detached and multiplied by its weight, in the forward of micro-batch s.
  MicroBatchStep(const MicroBatchPlan& plan, const Batch& batch, MicroBatchLoss loss_fn, MicroBatchExecutor& executor,
                 std::vector<Tensor>& losses);

  // The loss of micro-batch s, which has samples.
  Tensor forward(int s);
  void backward(int s, const Tensor& loss);
  // Both, for every micro-batch that has samples; in an evaluation forward alone.
  void run();

 private:
  const MicroBatchPlan& plan_;
  const Batch& batch_;
  MicroBatchLoss loss_fn_;
  MicroBatchExecutor& executor_;
  std::vector<Tensor>& losses_;
};

// Runs the micro-batches of one step one after another, on the module's own parameters. Forward and backward of a
// micro-batch each enter it, so that they may run apart; backwards in ascending order.
class InTurn final : public MicroBatchExecutor {
 public:
  // As MicroBatchesInTurn::run.
  InTurn(GradientSets& sets, MicroBatchBuffers& buffers, int first, MicroBatchObserver& observer,
         FunctionRef<void()> before_last, FunctionRef<void(int)> after_chunk = kNothingAfterChunk)
      : sets_(sets), buffers_(buffers), first_(first), observer_(observer), before_last_(before_last),
        after_chunk_(after_chunk) {}
  ~InTurn() { observer_.end_step(); }
  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;

  void begin(int running);
  // body() with the random numbers and buffers of micro-batch s. `chunk` is that of the parameters that body() reaches.
  Tensor forward(int s, int chunk, FunctionRef<Tensor()> body);
  void backward(int s, int chunk, BackwardPart part, FunctionRef<void()> body);
  // In place of these for a micro-batch without samples.
  void skip_forward(int s, int chunk);
  void skip_backward(int s, int chunk, BackwardPart part);
  // In place of backward in an evaluation.
  void end_evaluation(int s, int chunk) { observer_.skip_backward({s, chunk}); }
  // After the last backward of a chunk, also without samples.
  void complete(int chunk) { after_chunk_(chunk); }
  void for_each(int running, FunctionRef<void(int s)> body) override;
  Tensor forward(int s, const Batch& batch, RowRange samples, MicroBatchLoss loss_fn) override;
  void backward(int s, const Tensor& loss, std::int64_t weight) override;
  void skip_backward(int s) override { end_evaluation(s, 0); }
  GradientSets& sets() { return sets_; }

 private:
  struct Entered;
  std::optional<nn::ReplicaView>& view(int s) { return views_[static_cast<std::size_t>(s)]; }
  int running() const { return static_cast<int>(views_.size()); }

  GradientSets& sets_;
  MicroBatchBuffers& buffers_;
  int first_;
  MicroBatchObserver& observer_;
  FunctionRef<void()> before_last_;
  FunctionRef<void(int)> after_chunk_;
  std::vector<std::optional<nn::ReplicaView>> views_;  // by micro-batch: its buffers, if it has begun and has own
};

// The micro-batches of a module in turn, step after step, with gradients summed in canonical order.
class MicroBatchesInTurn {
 public:
  explicit MicroBatchesInTurn(nn::Module& module);

  // The parameters that require grad. Programs freeze and unfreeze parameters between steps; `update` updates the list
  // and returns true if it has changed.
  const std::vector<nn::Parameter>& parameters() const { return trained_.list(); }
  bool is_current() const { return trained_.is_current(); }
  bool update();
  GradientSets& sets() { return sets_; }
  MicroBatchBuffers& buffers() { return buffers_; }
  // The positions of a chunk's parameters, last to first, without those that several modules of the chain share: their
  // sums are complete at the end of the step.
  const std::vector<std::size_t>& parameters_of(int chunk) const { return of_chunks_[static_cast<std::size_t>(chunk)]; }

  // `first` is the number of the process's first micro-batch. Calls `before_last`, if there are samples, before the last
  // backward; if the model is in stages, `after_chunk` after the last backward of each chunk, also without samples.
  void run(const MicroBatchPlan& plan, int first, const Batch& batch, MicroBatchLoss loss_fn,
           std::vector<Tensor>& losses, MicroBatchObserver& observer, FunctionRef<void()> before_last,
           FunctionRef<void(int chunk)> after_chunk = kNothingAfterChunk);
  // Sets grad() to the scaled sums over the micro-batches.
  void take_gradients(const StepScale& scale);

 private:
  GradientSets new_sets();
  nn::InTrainingMode in_training_mode_;
  TrainedParameters trained_;
  std::shared_ptr<const StageRunner> stages_;  // of a pipeline; null: the model is on this rank
  std::vector<std::vector<std::size_t>> of_chunks_;
  GradientSets sets_;
  MicroBatchBuffers buffers_;
};

}  // namespace lockstep::parallel
