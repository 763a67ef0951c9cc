// The traces of ranks that are processes: DistributedDataParallel's buckets and collectives.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/parallel/comm/trace.h"
#include "tests/support/groups.h"

TEST_CASE(
    "DistributedDataParallel: buckets are ready, launched and done in this order, within their collectives' time") {
  constexpr int kSteps = 3;
  for (const char* backend : {"shm", "local"}) {
    CAPTURE(backend);
    with_group(backend, backend == std::string("shm") ? 2 : 1, [&](const Group& group) {
      Net net;
      // A tiny capacity gives each parameter its own bucket.
      DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1e-6});
      const auto step = [&] {
        ddp.backward(ones({2, 3}), ones({2, 1}), [&](const Tensor& x, const Tensor& y) { return mean(net(x) * y); });
      };
      step();  // plans the buckets of the others
      group->traffic().clear();
      start_trace();
      for (int i = 0; i < kSteps; ++i) step();
      const Trace own = stop_trace();
      const std::int64_t sent = group->traffic().bytes(Phase::kGradients);
      const std::vector<Trace> all = gather_traces(*group, own);
      if (group->rank() != 0) return;
      REQUIRE(all.size() == static_cast<std::size_t>(group->size()));
      for (const Trace& trace : all) {
        const auto ready = of_kind(trace, TraceKind::kBucketReady),
                   launched = of_kind(trace, TraceKind::kBucketLaunched), done = of_kind(trace, TraceKind::kBucketDone),
                   collectives = of_kind(trace, TraceKind::kCollective), waits = of_kind(trace, TraceKind::kWait);
        const std::size_t buckets = 4 * kSteps;
        REQUIRE(ready.size() == buckets);
        REQUIRE(launched.size() == buckets);
        REQUIRE(done.size() == buckets);
        REQUIRE(collectives.size() == buckets);
        REQUIRE(waits.size() == buckets);
        const auto ready_of = [&](std::size_t b) {
          const auto begin = ready.begin() + static_cast<std::ptrdiff_t>(b / 4 * 4);
          return *std::find_if(begin, begin + 4, [&](const TraceEvent& event) {
            return event.labels.id == static_cast<std::int64_t>(b % 4);
          });
        };
        const auto stats = ddp.stats();
        for (std::size_t b = 0; b < 4; ++b) {
          CHECK(ready_of(b).name == stats.buckets[b].parameters.at(0));
          CHECK(ready_of(b).labels.bytes == stats.buckets[b].bytes);
        }
        std::int64_t bytes = 0;
        for (std::size_t b = 0; b < buckets; ++b) {
          CHECK(launched[b].labels.id == static_cast<std::int64_t>(b % 4));
          CHECK(ready_of(b).begin <= launched[b].begin);
          CHECK(launched[b].begin <= collectives[b].begin);
          CHECK(collectives[b].end <= done[b].begin);
          CHECK(waits[b].labels.id == collectives[b].labels.id);
          CHECK(waits[b].end <= collectives[b].end);
          CHECK(collectives[b].name == "all_reduce");
          CHECK(collectives[b].labels.from == trace.rank);
          bytes += collectives[b].labels.bytes;
        }
        CHECK(bytes == sent);
      }
      // One host has one clock.
      CHECK(std::abs(all.back().clock_offset) <= all.back().clock_error);
      if (all.size() < 2) return;
      // No rank finishes a collective before all have started it.
      const auto first = of_kind(all[0], TraceKind::kCollective), second = of_kind(all[1], TraceKind::kCollective);
      for (std::size_t i = 0; i < first.size(); ++i) {
        CHECK(first[i].labels.id == second[i].labels.id);
        CHECK(first[i].end + all[1].clock_error >= second[i].begin);
        CHECK(second[i].end + all[1].clock_error >= first[i].begin);
      }
    });
  }
}

TEST_CASE("ShardedDataParallel: units' gathers and reduce-scatters are events with the planned bytes") {
  with_group("shm", 2, [](const Group& group) { check_units(group, TraceKind::kCopy, ""); });
}
