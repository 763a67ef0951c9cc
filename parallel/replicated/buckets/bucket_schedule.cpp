#include "lockstep/parallel/replicated/buckets/bucket_schedule_internal.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/parallel/step/stage_runner_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::parallel {

std::vector<BucketLayout> BucketSchedule::layouts(std::vector<std::size_t> order) const {
  return GradientBuckets::plan(named_, std::move(order), cap_mb_, !stage_runner(module_));
}

// In stages the gradients of parameters that modules of the chain share are ready last.
void BucketSchedule::plan(const std::shared_ptr<ProcessGroup>& group) {
  named_ = module_.named_parameters();
  std::erase_if(named_, [](const auto& entry) { return !entry.second.master().requires_grad(); });
  std::vector<std::size_t> order = last_to_first(named_.size());
  if (const auto stages = stage_runner(module_))
    std::stable_partition(order.begin(), order.end(),
                          [&](std::size_t p) { return !stages->is_shared(named_[p].second); });
  use(std::make_unique<GradientBuckets>(named_, group, layouts(std::move(order)),
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
  std::vector<BucketLayout> planned = layouts({numbers.begin(), numbers.end()});
  if (!buckets_->has_layouts(planned))
    next_ = std::make_unique<GradientBuckets>(named_, group, std::move(planned), buckets_->totals());
}

void BucketSchedule::set_hook(std::shared_ptr<CommHook> hook) {
  hook_ = hook;
  buckets_->set_hook(std::move(hook));
}

}  // namespace lockstep::parallel
