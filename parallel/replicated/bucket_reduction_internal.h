// How the gradients of one bucket become the same on all ranks: a policy, chosen for all buckets of a model.
#pragma once

#include <memory>

#include "lockstep/parallel/replicated/bucket_plan_internal.h"
#include "lockstep/parallel/replicated/comm_hooks.h"

namespace lockstep::parallel {

// One bucket in the group's communication memory, and its state in the step.
struct Bucket {
  BucketLayout layout;
  Tensor memory;                                       // gradients and metadata
  GradBucket gradients;                                // the part of `memory` without the metadata
  Tensor metadata;                                     // on the host: a view of `memory`, or (GPU) a copy ...
  Tensor metadata_place;                               // ... of this view, written before and read after the reduction
  std::size_t pending = 0;                             // parameters whose gradient is not complete
  std::shared_ptr<Work> metadata_work, gradient_work;  // null: not launched, or waited for
  double ready = 0, launched = 0, done = 0;            // as in BucketStats
};

class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  // Starts the sum of the bucket's metadata over all ranks, times `scale`; also of its gradients where one message
  // carries both.
  virtual std::shared_ptr<Work> start_metadata(const Bucket& bucket, ProcessGroup& group, double scale) = 0;
  // Starts the reduction of the gradients; null where start_metadata has done so.
  virtual std::shared_ptr<Work> start_gradients(const Bucket& bucket, ProcessGroup& group) = 0;
  // The number by which the reduced gradients differ from the sum over all ranks.
  virtual double factor(double scale, int ranks) const = 0;
  // True where a bucket is one operation of the group.
  virtual bool is_one_operation() const = 0;
};

// The sum in canonical order: one all-reduce for gradients and metadata.
std::unique_ptr<BucketReduction> make_all_reduce();
// What a communication hook does with the gradients. The metadata has a small all-reduce of its own.
std::unique_ptr<BucketReduction> make_hook_reduction(std::shared_ptr<CommHook> hook);

}  // namespace lockstep::parallel
