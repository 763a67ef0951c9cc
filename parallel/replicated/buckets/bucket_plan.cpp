#include "lockstep/parallel/replicated/buckets/bucket_plan_internal.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string_view>

#include "lockstep/nn/module_internal.h"
#include "lockstep/parallel/step/micro_batch_internal.h"
#include "lockstep/parallel/step/step_summary_internal.h"

namespace lockstep::parallel {
namespace {

std::int64_t item(const Tensor& t) { return static_cast<std::int64_t>(item_size(sum_dtype(t.dtype()))); }
std::int64_t sum_bytes_of(const Tensor& t) { return t.numel() * item(t); }

// Moves the parameters of a module together, to the place of the one whose gradient is ready last.
void gather_modules(const optim::NamedParameters& parameters, std::vector<std::size_t>& order) {
  std::map<std::string_view, std::size_t> last;
  for (std::size_t at = 0; at < order.size(); ++at) last[nn::module_path(parameters[order[at]].first)] = at;
  std::ranges::stable_sort(order, {}, [&](std::size_t p) { return last[nn::module_path(parameters[p].first)]; });
}

class Planner {
 public:
  Planner(const optim::NamedParameters& parameters, std::int64_t first_bytes, std::int64_t bytes, bool has_summary)
      : parameters_(parameters), first_bytes_(first_bytes), bytes_(bytes), has_summary_(has_summary) {}

  // Adds parameters that can share a bucket: all to one bucket, or one by one if they exceed the limit.
  void add(std::span<const std::size_t> group) {
    std::int64_t size = 0;
    for (const std::size_t p : group) size += sum_bytes_of(leaf(p));
    if (group.size() > 1 && size > bytes_) {
      for (const std::size_t p : group) add({&p, 1});
      return;
    }
    if (!fits(leaf(group.front()), size)) {
      buckets_.emplace_back();
      filled_ = 0;
    }
    buckets_.back().parameters.insert(buckets_.back().parameters.end(), group.begin(), group.end());
    filled_ += size;
  }
  // True if a bucket may hold both parameters.
  bool match(std::size_t p, std::size_t q) const {
    return leaf(p).dtype() == leaf(q).dtype() && leaf(p).device() == leaf(q).device();
  }
  std::vector<BucketLayout> finish() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) lay_out(buckets_[b], has_summary_ && b == 0);
    return std::move(buckets_);
  }

 private:
  const Tensor& leaf(std::size_t p) const { return parameters_[p].second.master(); }
  bool fits(const Tensor& next, std::int64_t size) const;
  void lay_out(BucketLayout& bucket, bool has_summary) const;

  const optim::NamedParameters& parameters_;
  std::int64_t first_bytes_, bytes_;
  bool has_summary_;
  std::vector<BucketLayout> buckets_;
  std::int64_t filled_ = 0;  // bytes of gradients in the last bucket
};

bool Planner::fits(const Tensor& next, std::int64_t size) const {
  if (buckets_.empty()) return false;
  const Tensor& first = leaf(buckets_.back().parameters.front());
  return first.dtype() == next.dtype() && first.device() == next.device() &&
         filled_ + size <= (buckets_.size() == 1 ? first_bytes_ : bytes_);
}

void Planner::lay_out(BucketLayout& bucket, bool has_summary) const {
  const std::int64_t line = 64 / item(leaf(bucket.parameters.front()));
  std::int64_t at = 0;
  for (const std::size_t p : bucket.parameters) {
    bucket.offsets.push_back(at);
    at += (leaf(p).numel() + line - 1) / line * line;
  }
  bucket.metadata = at;
  bucket.used = has_summary ? StepSummary::kElements : 0;
  bucket.elements = at + bucket.used + static_cast<std::int64_t>(bucket.parameters.size());
}

}  // namespace

std::vector<std::size_t> last_to_first(std::size_t parameters) {
  std::vector<std::size_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

std::vector<BucketLayout> plan_buckets(const optim::NamedParameters& parameters, std::vector<std::size_t> order,
                                       std::int64_t first_bytes, std::int64_t bytes, bool has_summary) {
  gather_modules(parameters, order);
  Planner planner(parameters, first_bytes, bytes, has_summary);
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const std::string_view module = nn::module_path(parameters[order[begin]].first);
    while (end < order.size() && nn::module_path(parameters[order[end]].first) == module &&
           planner.match(order[begin], order[end]))
      ++end;
    planner.add(std::span(order).subspan(begin, end - begin));
  }
  return planner.finish();
}

}  // namespace lockstep::parallel
