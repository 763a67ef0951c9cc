#include "lockstep/parallel/replicated/buckets/bucket_plan_internal.h"

#include "lockstep/parallel/replicated/buckets/step_summary_internal.h"
#include "lockstep/parallel/replicated/micro_batch_internal.h"

namespace lockstep::parallel {
namespace {

std::int64_t item(const Tensor& t) { return static_cast<std::int64_t>(item_size(sum_dtype(t.dtype()))); }
std::int64_t sum_bytes_of(const Tensor& t) { return t.numel() * item(t); }

void lay_out(BucketLayout& bucket, bool is_first, const std::vector<nn::Parameter>& parameters) {
  const std::int64_t line = 64 / item(parameters[bucket.parameters.front()].master());
  std::int64_t at = 0;
  for (const std::size_t p : bucket.parameters) {
    bucket.offsets.push_back(at);
    at += (parameters[p].master().numel() + line - 1) / line * line;
  }
  bucket.metadata = at;
  bucket.used = is_first ? StepSummary::kElements : 0;
  bucket.elements = at + bucket.used + static_cast<std::int64_t>(bucket.parameters.size());
}

}  // namespace

std::vector<BucketLayout> plan_buckets(const std::vector<nn::Parameter>& parameters, std::int64_t first_bytes,
                                       std::int64_t bytes) {
  std::vector<BucketLayout> buckets;
  std::int64_t filled = 0;
  for (std::size_t p = parameters.size(); p-- > 0;) {
    const Tensor& next = parameters[p].master();
    if (!buckets.empty()) {
      const Tensor& first = parameters[buckets.back().parameters.front()].master();
      const std::int64_t limit = buckets.size() == 1 ? first_bytes : bytes;
      if (first.dtype() == next.dtype() && first.device() == next.device() && filled + sum_bytes_of(next) <= limit) {
        buckets.back().parameters.push_back(p);
        filled += sum_bytes_of(next);
        continue;
      }
    }
    buckets.push_back({.parameters = {p}});
    filled = sum_bytes_of(next);
  }
  for (std::size_t b = 0; b < buckets.size(); ++b) lay_out(buckets[b], b == 0, parameters);
  return buckets;
}

}  // namespace lockstep::parallel
