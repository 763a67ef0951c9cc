// Exercise 5: the sums, and from the trace of a step how many buckets were under way before backward was over.
#include <array>

#include "harness.h"

namespace grader {
namespace {

constexpr int kRanks = 3, kBuckets = 4;
constexpr std::array<std::int64_t, kBuckets> kSizes = {40, 70, 20, 90};
// In which order a rank's buckets are ready.
constexpr std::array<std::array<int, kBuckets>, kRanks> kOrders = {{{0, 1, 2, 3}, {1, 0, 2, 3}, {0, 2, 1, 3}}};
constexpr int kMost = kBuckets - 1;  // the last bucket is complete when backward ends

// One step: what backward computes is the span "backward", with one call of on_ready after the other in it.
void run_step(const Group& group, exercises::BucketReducer& reducer, const std::vector<ls::Tensor>& buckets, int step) {
  const auto& order = kOrders[static_cast<std::size_t>(group->rank())];
  {
    const ls::TraceSpan backward(ls::TraceKind::kUser, "backward");
    for (int i = 0; i < kBuckets; ++i) {
      const int index = order[static_cast<std::size_t>(i)];
      buckets[static_cast<std::size_t>(index)].fill_((group->rank() + 1.0) * (index + 1) + step);
      if (i + 1 < kBuckets) reducer.on_ready(index);
    }
  }
  reducer.on_ready(order.back());
  reducer.finish();
}

void run_steps(int steps, const std::function<void(const std::vector<ls::Tensor>& buckets, int rank, int step)>& look) {
  run_ranks(kRanks, [&](const Group& group) {
    std::vector<ls::Tensor> buckets;
    for (const std::int64_t size : kSizes) buckets.push_back(ls::zeros({size}));
    const auto reducer = exercises::make_reducer(group, buckets);
    for (int step = 0; step < steps; ++step) {
      run_step(group, *reducer, buckets, step);
      look(buckets, group->rank(), step);
    }
  });
}

std::string check_sums() {
  run_steps(2, [](const std::vector<ls::Tensor>& buckets, int rank, int step) {
    for (int index = 0; index < kBuckets; ++index) {
      const double want = (index + 1) * kRanks * (kRanks + 1) / 2.0 + kRanks * step;
      const ls::Tensor& bucket = buckets[static_cast<std::size_t>(index)];
      require(bucket.min().item<double>() == want && bucket.max().item<double>() == want, "step ", step, ", rank ",
              rank, ": bucket ", index, " has ", bucket.min().item<double>(), " to ", bucket.max().item<double>(),
              ", expected ", want);
    }
  });
  return "two steps of three ranks that are ready in different orders";
}

ls::Trace trace_step() {
  ls::start_trace();
  try {
    run_steps(1, [](const std::vector<ls::Tensor>&, int, int) {});
  } catch (...) {
    ls::stop_trace();
    throw;
  }
  return ls::stop_trace();
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

// Only the order of events on one thread counts, never how long they took.
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
          " buckets were under way when backward ended, expected ", kRanks * kMost);
  return text("overlap: ", early, " of ", all, " buckets were under way when backward ended, the most there can be");
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
  return {{"sums", check_sums}, {"launched in backward", check_overlap}, {"waited for at the end", check_waits}};
}

}  // namespace grader
