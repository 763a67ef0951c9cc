// One synchronised step of one model on this rank: from its first complete gradient to the averaged gradients in grad().
#pragma once

#include "lockstep/parallel/replicated/accumulated_gradients_internal.h"
#include "lockstep/parallel/replicated/gradient_buckets_internal.h"
#include "lockstep/parallel/replicated/gradient_sets_internal.h"

namespace lockstep::parallel {

// What a step must know. A backward of the user's own is one micro-batch, whose gradients are in grad().
struct StepInputs {
  StepSummary own = {};                         // of this rank
  int ranks = 1, micro_batches_per_rank = 1;    // as if all had samples
  bool weighted = false;                        // gradients count by samples
  GradientSets* sets = nullptr;                 // the sums over this rank's micro-batches
  AccumulatedGradients* accumulated = nullptr;  // gradients of earlier steps of this rank, which join the sum ...
  double accumulated_factor = 1;                // ... times this, as they are means and the others sums
  bool counts_joined = false;                   // joined ranks count as if their gradients were zero
  const autograd::Run* run = nullptr;           // the backward whose end ends the step; null: its owner ends it
};

// The step is owned by what ends it: by a training step's `backward(x, y, loss_fn)`, or by the backward that the user
// called. Its life has three states:
//
//   filling   backward runs: complete gradients are marked ready, and full buckets launched, in order
//   launched  backward is over: gradients that it did not reach count as unused, and every bucket is in flight
//   finished  every bucket has been waited for, gradients are scaled and in grad(), `total` is known
//
// A step that ends before it is finished, by an error, leaves no trace: the next one begins with empty buckets.
class DistributedStep {
 public:
  // `current` refers to the step until it is finished or destroyed.
  DistributedStep(GradientBuckets& buckets, StepInputs inputs, DistributedStep*& current);
  ~DistributedStep() {
    if (current_ == this) current_ = nullptr;
  }
  DistributedStep(const DistributedStep&) = delete;
  DistributedStep& operator=(const DistributedStep&) = delete;

  const autograd::Run* run() const { return inputs_.run; }
  // The parameter's gradient is complete. Then launches full buckets; `shared`: other models share the ranks.
  void complete(std::size_t parameter, bool shared);
  void launch_rest();
  // Returns the sum over all ranks.
  StepSummary finish();
  // For a rank that is out of data: launches the first bucket alone. False where its summary says that all ranks are out
  // of data: then there is no step.
  bool begin_joined();
  // The mean loss over all ranks' micro-batches, of a finished step.
  double mean_loss() const { return mean_loss_; }

 private:
  int micro_batches() const { return inputs_.ranks * inputs_.micro_batches_per_rank; }
  double scale() const { return inputs_.weighted ? 1 : 1.0 / micro_batches(); }  // of the reduction
  void take_loss(const StepSummary& total);
  void mark_ready(std::size_t parameter);
  void launch_next();

  GradientBuckets& buckets_;
  StepInputs inputs_;
  DistributedStep*& current_;
  double mean_loss_ = 0;
};

}  // namespace lockstep::parallel
