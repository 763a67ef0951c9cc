#include "lockstep/parallel/replicated/buckets/bucket_schedule_internal.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

void BucketSchedule::plan(const std::shared_ptr<ProcessGroup>& group) {
  named_ = module_.named_parameters();
  std::erase_if(named_, [](const auto& entry) { return !entry.second.master().requires_grad(); });
  use(std::make_unique<GradientBuckets>(named_, group,
                                        GradientBuckets::plan(named_, last_to_first(named_.size()), cap_mb_),
                                        buckets_ ? buckets_->totals() : BucketTotals()));
  next_ = nullptr;
  knows_order_ = false;
}

bool BucketSchedule::use_next() {
  if (!next_) return false;
  use(std::move(next_));
  return true;
}

void BucketSchedule::use(std::unique_ptr<GradientBuckets> planned) {
  buckets_ = std::move(planned);
  buckets_->attach();
  if (hook_) buckets_->set_hook(hook_);
}

void BucketSchedule::plan_by_order(const std::shared_ptr<ProcessGroup>& group) {
  if (std::exchange(knows_order_, true)) return;
  if (hook_ || buckets_->count() < 2) return;  // a hook may keep state for each bucket; one bucket has nothing to gain
  const std::vector<std::size_t>& order = buckets_->order();
  const Tensor agreed = raw::empty({static_cast<std::int64_t>(order.size())}, {.dtype = kInt64});
  const std::span<std::int64_t> numbers = agreed.span<std::int64_t>();
  std::ranges::copy(order, numbers.begin());
  group->broadcast(agreed, 0)->wait();
  std::vector<BucketLayout> layouts = GradientBuckets::plan(named_, {numbers.begin(), numbers.end()}, cap_mb_);
  if (!buckets_->has_layouts(layouts))
    next_ = std::make_unique<GradientBuckets>(named_, group, std::move(layouts), buckets_->totals());
}

void BucketSchedule::set_hook(std::shared_ptr<CommHook> hook) {
  hook_ = hook;
  buckets_->set_hook(std::move(hook));
}

}  // namespace lockstep::parallel
