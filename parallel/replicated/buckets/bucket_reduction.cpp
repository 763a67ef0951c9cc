#include "lockstep/parallel/replicated/buckets/bucket_reduction_internal.h"

#include "lockstep/base/check_internal.h"

namespace lockstep::parallel {
namespace {

class AllReduce final : public BucketReduction {
 public:
  std::shared_ptr<Work> start_metadata(const Bucket& bucket, ProcessGroup& group, double scale) override {
    return group.all_reduce_scaled(bucket.memory, scale);
  }
  std::shared_ptr<Work> start_gradients(const Bucket&, ProcessGroup&) override { return nullptr; }
  double factor(double scale, int) const override { return scale; }
  bool is_one_operation() const override { return true; }
};

class HookReduction final : public BucketReduction {
 public:
  explicit HookReduction(std::shared_ptr<CommHook> hook) : hook_(std::move(hook)) {}
  std::shared_ptr<Work> start_metadata(const Bucket& bucket, ProcessGroup& group, double scale) override {
    return group.all_reduce_scaled(bucket.metadata_place, scale);
  }
  std::shared_ptr<Work> start_gradients(const Bucket& bucket, ProcessGroup& group) override {
    std::shared_ptr<Work> work = hook_->start(bucket.gradients, group);
    LOCKSTEP_CHECK(work, "the communication hook ({}) returned no Work", hook_->describe());
    return work;
  }
  double factor(double, int ranks) const override { return 1.0 / ranks; }  // a hook computes the mean over the ranks
  bool is_one_operation() const override { return false; }

 private:
  std::shared_ptr<CommHook> hook_;
};

}  // namespace

std::unique_ptr<BucketReduction> make_all_reduce() { return std::make_unique<AllReduce>(); }
std::unique_ptr<BucketReduction> make_hook_reduction(std::shared_ptr<CommHook> hook) {
  return std::make_unique<HookReduction>(std::move(hook));
}

}  // namespace lockstep::parallel
