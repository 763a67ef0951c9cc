// Exercise 5: the sums, also where a rank skips a bucket; and from the trace of a step the number of buckets in flight at the
// end of backward.
#include <algorithm>
#include <array>
#include <span>

#include "harness.h"

namespace grader {
namespace {

constexpr int kRanks = 3, kBuckets = 4;
constexpr int kMost = kBuckets - 1;  // the last bucket is ready when backward ends

struct Variant {
  std::array<std::int64_t, kBuckets> sizes = {40, 70, 20, 90};
  // The order in which each rank's buckets become ready.
  std::array<std::array<int, kBuckets>, kRanks> orders = {{{0, 1, 2, 3}, {1, 0, 2, 3}, {0, 2, 1, 3}}};
  int skipping_rank = 1, skipped = 2;
};

Variant variant() {
  Variant v;
  if (seed_of() == 0) return v;
  Dice dice(seed_of());
  for (std::int64_t& size : v.sizes) size = 16 + dice.roll(100);
  for (auto& order : v.orders) {
    const std::span<int> before_last(order.data(), kMost);
    dice.shuffle(before_last);
  }
  if (v.orders[0] == v.orders[1]) std::swap(v.orders[1][0], v.orders[1][1]);  // two ranks at least must differ
  v.skipping_rank = dice.roll(kRanks);
  v.skipped = dice.roll(kMost);
  return v;
}

// The buckets that are ready in a step of `rank`, in this order.
std::vector<int> ready_buckets(int rank, bool one_skips) {
  const Variant v = variant();
  std::vector<int> ready(v.orders[static_cast<std::size_t>(rank)].begin(),
                         v.orders[static_cast<std::size_t>(rank)].end());
  if (one_skips && rank == v.skipping_rank) std::erase(ready, v.skipped);
  return ready;
}

// A rank's value of a bucket: 0 in a bucket that it skips.
double value_of(int rank, int index, int step, bool one_skips) {
  if (one_skips && rank == variant().skipping_rank && index == variant().skipped) return 0;
  return (rank + 1.0) * (index + 1) + step;
}

// One step. Backward is the span "backward", which calls on_ready for one bucket after the other; the last one ends it.
void run_step(const Group& group, exercises::BucketReducer& reducer, const std::vector<ls::Tensor>& buckets, int step,
              bool one_skips) {
  const std::vector<int> ready = ready_buckets(group->rank(), one_skips);
  const auto fill = [&](int index) {
    buckets[static_cast<std::size_t>(index)].fill_(value_of(group->rank(), index, step, one_skips));
  };
  if (one_skips) fill(variant().skipped);
  {
    const ls::TraceSpan backward(ls::TraceKind::kUser, "backward");
    for (const int index : ready) {
      fill(index);
      if (index != ready.back()) reducer.on_ready(index);
    }
  }
  reducer.on_ready(ready.back());
  reducer.finish();
}

void require_sums(const std::vector<ls::Tensor>& buckets, int rank, int step, bool one_skips) {
  for (int index = 0; index < kBuckets; ++index) {
    double want = 0;
    for (int other = 0; other < kRanks; ++other) want += value_of(other, index, step, one_skips);
    const ls::Tensor& bucket = buckets[static_cast<std::size_t>(index)];
    const double least = bucket.min().item<double>(), most = bucket.max().item<double>();
    require(least == want && most == want, "step ", step + 1, ", rank ", rank, ": bucket ", index, " holds ", least,
            " to ", most, ", expected ", want);
  }
}

// With `one_skips` a rank skips a bucket in the first step.
void run_steps(int steps, bool one_skips) {
  run_ranks(kRanks, [&](const Group& group) {
    std::vector<ls::Tensor> buckets;
    for (const std::int64_t size : variant().sizes) buckets.push_back(ls::zeros({size}));
    const auto reducer = exercises::make_reducer(group, buckets);
    for (int step = 0; step < steps; ++step) {
      run_step(group, *reducer, buckets, step, one_skips && step == 0);
      require_sums(buckets, group->rank(), step, one_skips && step == 0);
    }
  });
}

std::string check_sums() {
  run_steps(2, false);
  return "two steps of three ranks whose buckets become ready in different orders";
}

std::string check_skip() {
  const std::string what = text("rank ", variant().skipping_rank, " skips bucket ", variant().skipped, " in step 1");
  try {
    run_steps(2, true);
  } catch (const exercises::NotDone&) {
    throw;
  } catch (const std::exception& error) {
    throw Missing(what + ": " + error.what());
  }
  return what;
}

ls::Trace trace_step() {
  return trace_of([] { run_steps(1, false); });
}

// fn(backward, event) for all events of a rank's thread.
void for_each_event(const ls::Trace& trace,
                    const std::function<void(const ls::TraceEvent& backward, const ls::TraceEvent& event)>& fn) {
  for (const ls::TraceEvent& backward : trace.events) {
    if (backward.kind != ls::TraceKind::kUser || backward.name != "backward") continue;
    for (const ls::TraceEvent& event : trace.events) {
      if (event.thread == backward.thread) fn(backward, event);
    }
  }
}

// Only the order of events on one thread counts, not their duration.
std::string check_overlap() {
  const ls::Trace trace = trace_step();
  int early = 0, all = 0;
  for_each_event(trace, [&](const ls::TraceEvent& backward, const ls::TraceEvent& event) {
    if (event.kind != ls::TraceKind::kCollective || event.name != "all_reduce") return;
    ++all;
    early += event.begin < backward.end && event.end > backward.end ? 1 : 0;
  });
  require(all == kRanks * kBuckets, all, " all-reduces on ", kRanks, " ranks, expected one for each of ", kBuckets,
          " buckets");
  require(early == kRanks * kMost, "overlap: ", early, " of ", all,
          " buckets were in flight when backward ended, expected ", kRanks * kMost);
  return text("overlap: ", early, " of ", all,
              " buckets were in flight when backward ended, the most that is possible");
}

std::string check_waits() {
  const ls::Trace trace = trace_step();
  int early = 0, all = 0;
  for_each_event(trace, [&](const ls::TraceEvent& backward, const ls::TraceEvent& event) {
    if (event.kind != ls::TraceKind::kWait || event.name != "all_reduce") return;
    ++all;
    early += event.begin < backward.end ? 1 : 0;
  });
  require(early == 0, early, " waits inside backward, expected none");
  require(all == kRanks * kBuckets, all, " waits, expected one for each bucket of each rank");
  return text(all, " waits, all after backward");
}

}  // namespace

std::vector<Check> checks(const std::string&, const std::string&) {
  const Variant v = variant();
  print_task(text("buckets of ", v.sizes[0], ", ", v.sizes[1], ", ", v.sizes[2], " and ", v.sizes[3], " elements"));
  return {{"sums", check_sums},
          {"a rank skips a bucket", check_skip},
          {"launched in backward", check_overlap},
          {"waited for at the end", check_waits}};
}

}  // namespace grader
