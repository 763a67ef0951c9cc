// The policy by which the gradients of a bucket are reduced over the ranks; a model has one for all buckets.
#pragma once

#include <memory>

#include "lockstep/parallel/replicated/buckets/bucket_plan_internal.h"
#include "lockstep/parallel/replicated/comm_hooks.h"

namespace lockstep::parallel {

// One bucket in the group's communication memory, and its state in the step.
struct Bucket {
  BucketLayout layout;
  Tensor memory;                                       // gradients and metadata
  GradBucket gradients;                                // the part of `memory` without the metadata
  Tensor metadata;                                     // on the host: `metadata_place`, or on a GPU a copy of it
  Tensor metadata_place;                               // view of `memory`
  std::size_t pending = 0;                             // parameters whose gradient is not complete
  std::shared_ptr<Work> metadata_work, gradient_work;  // null: not launched, or complete
  double ready = 0, launched = 0, done = 0;            // as in BucketStats
};

class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  // Starts the sum of the bucket's metadata over all ranks, times `scale`; the all-reduce policy sums the gradients
  // in the same operation.
  virtual std::shared_ptr<Work> start_metadata(const Bucket& bucket, ProcessGroup& group, double scale) = 0;
  // Starts the reduction of the gradients; returns null if start_metadata has started it.
  virtual std::shared_ptr<Work> start_gradients(const Bucket& bucket, ProcessGroup& group) = 0;
  // The reduced gradients are the sum over all ranks times this factor. `scale` is that of start_metadata.
  virtual double factor(double scale, int ranks) const = 0;
  // True if each bucket takes exactly one operation of the group.
  virtual bool is_one_operation() const = 0;
};

// Sums in canonical order, by one all-reduce of gradients and metadata.
std::unique_ptr<BucketReduction> make_all_reduce();
// Reduces gradients by a communication hook, and metadata by a separate small all-reduce.
std::unique_ptr<BucketReduction> make_hook_reduction(std::shared_ptr<CommHook> hook);

}  // namespace lockstep::parallel
