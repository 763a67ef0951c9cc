// One synchronised step of one model on this rank, from the first complete gradient to averaged gradients in grad().
#pragma once

#include "lockstep/parallel/replicated/buckets/gradient_buckets_internal.h"
#include "lockstep/parallel/step/accumulated_gradients_internal.h"
#include "lockstep/parallel/step/gradient_sets_internal.h"

namespace lockstep::parallel {

// The inputs of a step. A backward that the user called is a step of one micro-batch, whose gradients are in grad().
struct StepInputs {
  StepSummary own = {};                         // of this rank
  int ranks = 1, micro_batches_per_rank = 1;    // the plan, also counting micro-batches without samples
  bool weighted = false;                        // by samples: gradients are sums over samples
  GradientSets* sets = nullptr;                 // the sums over this rank's micro-batches; null: grad()
  AccumulatedGradients* accumulated = nullptr;  // of earlier steps of this rank: added to the sums,
  double accumulated_factor = 1;                // times this factor, as they are means
  bool counts_joined = false;                   // joined ranks count as if their gradients were zero
  const autograd::Run* run = nullptr;           // the backward that ends the step; null: its owner does
  std::vector<std::size_t>* order = nullptr;    // if given: records the order in which gradients become ready
};

// The step is owned by what ends it: by `backward(x, y, loss_fn)`, or by the backward that the user called. It has
// three states:
//
//   filling   backward runs: complete gradients are marked ready, and full buckets are launched, in order
//   launched  backward has ended: gradients that it did not reach count as unused, and all buckets are in flight
//   finished  all buckets are complete, and the scaled gradients are in grad()
//
// After an error the step is destroyed unfinished; the next one starts again at the first bucket.
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
  // Marks a complete gradient as ready and launches full buckets. `shared`: other models use the same ranks.
  void complete(std::size_t parameter, bool shared);
  // Marks gradients that backward did not reach, and launches all remaining buckets.
  void launch_rest();
  // Finishes the step. Returns the sum of the ranks' summaries.
  StepSummary finish();
  // On a joined rank: launches the first bucket. Returns false if its summary says that all ranks have joined: then
  // there is no step.
  bool begin_joined();
  // The mean loss over all ranks' micro-batches, 0-d in the dtype of the buckets; known when the step is finished.
  const Tensor& mean_loss() const { return mean_loss_; }

 private:
  int micro_batches() const { return inputs_.ranks * inputs_.micro_batches_per_rank; }
  double scale() const { return inputs_.weighted ? 1 : 1.0 / micro_batches(); }  // of the reduction
  void take_loss(const StepSummary& total);
  void mark_ready(std::size_t parameter);
  void mark_all_ready();
  void launch_next();

  GradientBuckets& buckets_;
  StepInputs inputs_;
  DistributedStep*& current_;
  Tensor mean_loss_;
};

}  // namespace lockstep::parallel
