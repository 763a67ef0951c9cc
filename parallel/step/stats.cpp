// The share of a step's communication that overlaps with backward.
#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/parallel/step/stats.h"

namespace lockstep::parallel {
namespace {

using Interval = std::pair<double, double>;  // begin and end

// Returns the length of the intervals' union.
double covered(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  double length = 0, end = -std::numeric_limits<double>::infinity();
  for (const Interval& each : intervals) {
    length += std::max(each.second - std::max(each.first, end), 0.0);
    end = std::max(end, each.second);
  }
  return length;
}

}  // namespace

CommunicationOverlap communication_overlap(const std::vector<BucketStats>& buckets) {
  double last_ready = 0;
  for (const BucketStats& bucket : buckets) last_ready = std::max(last_ready, bucket.ready);
  CommunicationOverlap overlap;
  std::vector<Interval> all, early;
  for (const BucketStats& bucket : buckets) {
    overlap.bytes += bucket.bytes;
    all.emplace_back(bucket.launched, bucket.done);
    if (bucket.done >= last_ready) continue;
    overlap.early_bytes += bucket.bytes;
    early.push_back(all.back());
  }
  overlap.seconds = covered(std::move(all));
  overlap.early_seconds = covered(std::move(early));
  return overlap;
}

void TrainingStats::take_overlap() {
  const CommunicationOverlap of_step = communication_overlap(buckets);
  overlap = of_step.share();
  overlap_bytes = of_step.byte_share();
}

}  // namespace lockstep::parallel
