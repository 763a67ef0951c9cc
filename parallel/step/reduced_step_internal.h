// One step of one model whose gradients are summed over the ranks, from the first complete gradient to averaged
// gradients in grad(). Not installed.
#pragma once

#include "lockstep/autograd/history_internal.h"
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/gradient_reducer_internal.h"
#include "lockstep/parallel/step/gradient_sets_internal.h"

namespace lockstep::parallel {

// The inputs of a step. A backward that the user called is a step of one micro-batch.
struct StepInputs {
  StepSummary own = {};                         // of this rank
  int ranks = 1, micro_batches_per_rank = 1;    // the plan, also counting micro-batches without samples
  bool weighted = false;                        // by samples: gradients are sums over samples
  GradientSets* sets = nullptr;                 // the sums over this rank's micro-batches; null: grad()
  AccumulatedGradients* accumulated = nullptr;  // of earlier steps of this rank: added to the sums,
  double accumulated_factor = 1;                // times this factor, as they are means
  bool counts_joined = false;                   // joined ranks count as if their gradients were zero
  const autograd::Run* run = nullptr;           // the backward that ends the step; null: its owner does

  int micro_batches() const { return ranks * micro_batches_per_rank; }
  double scale() const { return weighted ? 1 : 1.0 / micro_batches(); }  // of the reduction
  StepScale gradient_scale(const StepSummary& total) const;
  // 0-d, from the sum of all ranks' summaries. The mean is over the micro-batches that ran, even if joined ranks count in
  // the mean of the gradients.
  Tensor mean_loss(const StepSummary& total, DType dtype) const;
};

// The step is owned by what ends it: by `backward(x, y, loss_fn)`, or by the backward that the user called. It has
// three states:
//
//   filling   the last backward runs, in stages that of one chunk after another: complete gradients are marked ready,
//             and reductions are launched, in order
//   launched  backward has ended: gradients that it did not reach count as unused, and all reductions are in flight
//   finished  all reductions are complete, and the scaled gradients are in grad()
//
// After an error the step is destroyed unfinished; the next one starts again with the first reduction.
class ReducedStep {
 public:
  // `current` refers to the step until it is finished or destroyed.
  ReducedStep(GradientReducer& reducer, const StepInputs& inputs, ReducedStep*& current);
  ~ReducedStep() {
    if (current_ == this) current_ = nullptr;
  }
  ReducedStep(const ReducedStep&) = delete;
  ReducedStep& operator=(const ReducedStep&) = delete;

  // The backward that ends the step; null: its owner does.
  const autograd::Run* run() const { return inputs_.run; }
  // Whether `run` is the step's backward: the first one that completes a gradient. Another one runs inside it.
  bool takes(const autograd::Run& run);
  // The parameter's gradient is complete.
  void complete(std::size_t parameter);
  // Replaces this rank's summary, before launch_rest: in stages the losses are known at the end.
  void set_summary(const StepSummary& own) { reducer_.set_summary(own); }
  // Marks gradients that backward did not reach, and launches all remaining reductions.
  void launch_rest();
  // Finishes the step. Returns the sum of the ranks' summaries. If all ranks have joined there was no step: gradients
  // stay undefined.
  StepSummary finish();
  // The mean loss over all ranks' micro-batches, 0-d in the dtype of the summary; known when the step is finished.
  const Tensor& mean_loss() const { return mean_loss_; }

 private:
  GradientReducer& reducer_;
  StepInputs inputs_;
  ReducedStep*& current_;
  const autograd::Run* backward_;
  Tensor mean_loss_;
};

}  // namespace lockstep::parallel
