// The buckets that a model uses: planned when its trained parameters are known, again when they have changed, and once
// by the order in which gradients became ready in the first step.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/parallel/replicated/buckets/gradient_buckets_internal.h"

namespace lockstep::parallel {

class BucketSchedule {
 public:
  BucketSchedule(const nn::Module& module, double cap_mb) : module_(module), cap_mb_(cap_mb) {}

  bool fits(const std::vector<nn::Parameter>& trained) const { return buckets_ && buckets_->fit(trained); }
  // Plans buckets for the parameters that require grad now; all ranks must do so.
  void plan(const std::shared_ptr<ProcessGroup>& group);
  // Changes to the buckets planned by the order of the first step. Returns false if there are none.
  bool use_next();
  // After the first step of the buckets: plans the next ones by rank 0's order. Communicates, on all ranks alike.
  void plan_by_order(const std::shared_ptr<ProcessGroup>& group);
  // From now on averages all buckets by `hook`. Call it only between steps.
  void set_hook(std::shared_ptr<CommHook> hook);

  const std::shared_ptr<CommHook>& hook() const { return hook_; }
  GradientBuckets& buckets() const { return *buckets_; }

 private:
  std::vector<BucketLayout> layouts(std::vector<std::size_t> order) const;
  void use(std::unique_ptr<GradientBuckets> planned);

  const nn::Module& module_;
  double cap_mb_;
  std::shared_ptr<CommHook> hook_;
  optim::NamedParameters named_;  // those in the buckets
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<GradientBuckets> next_;  // planned by the first step, in use from the second; or null
  bool knows_order_ = false;               // whether a step of the buckets has told their order
};

}  // namespace lockstep::parallel
