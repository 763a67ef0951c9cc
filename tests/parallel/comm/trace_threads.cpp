// What the modes write into a trace, and how the ranks' traces share one clock.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "lockstep/parallel/simulate/simulate.h"
#include "tests/parallel/comm/trace.h"
#include "tests/support/groups.h"

namespace {

bool within(const TraceEvent& inner, const TraceEvent& outer) {
  return inner.thread == outer.thread && inner.begin >= outer.begin && inner.end <= outer.end;
}

}  // namespace

TEST_CASE("a step on one device: forward by layers, backward by operations, the optimizer") {
  Net net;
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  start_trace();
  mean(net(ones({2, 3}))).backward();
  optimizer.step();
  const Trace trace = stop_trace();
  std::vector<std::string> text;
  for (const TraceEvent& event : trace.events) text.push_back(std::string(name(event.kind)) + " " + event.name);
  CHECK(text == std::vector<std::string>{"forward model", "forward one Linear", "forward two Linear",
                                         "backward backward", "backward mean", "backward linear", "backward relu",
                                         "backward linear", "optimizer SGD"});
  CHECK(within(trace.events[1], trace.events[0]));
  CHECK(within(trace.events[7], trace.events[3]));
  CHECK(trace.events[3].end <= trace.events[8].begin);
}

TEST_CASE("DataParallel: the trace has each recorded copy, on the thread of its replica") {
  Net net;
  DataParallel dp(net, {"cpu:0", "cpu:1", "cpu:2"});
  start_trace();
  dp.backward(ones({6, 3}), ones({6, 1}), [&](const Tensor& x, const Tensor& y) { return mean(net(x) * y); });
  mean(dp(ones({6, 3}))).backward();
  const Trace trace = stop_trace();
  std::map<std::tuple<int, int, int>, std::int64_t> copied;
  for (const TraceEvent& event : of_kind(trace, TraceKind::kCopy))
    copied[{event.labels.from, event.labels.to, event.labels.phase}] += event.labels.bytes;
  std::map<std::tuple<int, int, int>, std::int64_t> counted;
  for (const LinkTraffic& link : dp.traffic().links())
    counted[{link.from, link.to, static_cast<int>(link.phase)}] += link.bytes;
  CHECK(counted.size() > 8);
  CHECK((copied == counted));

  const auto replicas = of_kind(trace, TraceKind::kReplica);
  for (const TraceEvent& event : of_kind(trace, TraceKind::kCopy)) {
    if (event.labels.phase != static_cast<int>(Phase::kInputs)) continue;
    CHECK(std::ranges::any_of(replicas, [&](const TraceEvent& replica) {
      return within(event, replica) && replica.labels.id == event.labels.to;
    }));
  }
  CHECK(of_kind(trace, TraceKind::kWait).size() >= 3);
}

TEST_CASE("an all_reduce with an algorithm writes each of its steps, with the bytes that the rank sends in it") {
  start_trace();
  with_threads("sim", 3, [](const Group& group) { group->all_reduce(ones({12}))->wait(); },
               {.backend_options = SimOptions{.algorithm = Algorithm::kRing}});
  const Trace trace = stop_trace();
  std::vector<std::int64_t> seen(3 * 4, 0);  // rank by step
  for (const TraceEvent& event : of_kind(trace, TraceKind::kHops)) {
    CHECK(event.name == "ring");
    CHECK(event.begin <= event.end);
    seen.at(static_cast<std::size_t>(4 * event.labels.from + event.labels.id)) += event.labels.bytes;
  }
  CHECK(seen == std::vector<std::int64_t>(3 * 4, 16));
}

TEST_CASE("a send and a recv name the other rank, and are numbered for the pair") {
  start_trace();
  with_threads("local", 3, [](const Group& group) {
    for (int i = 0; i < 2; ++i) {
      if (group->rank() == 0) group->send(ones({3}), 2)->wait();
      if (group->rank() == 2) group->recv(ones({3}), 0)->wait();
    }
    group->barrier();
  });
  const Trace trace = stop_trace();
  std::vector<std::tuple<std::string, int, int, std::int64_t>> seen;  // name, from, to, number
  for (const TraceEvent& event : of_kind(trace, TraceKind::kCollective))
    seen.emplace_back(event.name, event.labels.from, event.labels.to, event.labels.id);
  std::ranges::sort(seen);
  using Seen = decltype(seen);
  const Seen messages(std::ranges::find(seen, "recv", [](const auto& each) { return std::get<0>(each); }), seen.end());
  CHECK((messages == Seen{{"recv", 2, 0, 0}, {"recv", 2, 0, 1}, {"send", 0, 2, 0}, {"send", 0, 2, 1}}));
  const Seen barriers(seen.begin(), seen.end() - 4);
  CHECK((barriers == Seen{{"barrier", 0, -1, 0},
                          {"barrier", 0, -1, 1},
                          {"barrier", 0, -1, 2},
                          {"barrier", 1, -1, 0},
                          {"barrier", 1, -1, 1},
                          {"barrier", 1, -1, 2},
                          {"barrier", 2, -1, 0},
                          {"barrier", 2, -1, 1},
                          {"barrier", 2, -1, 2}}));
}

TEST_CASE("gather_traces: rank 0 gets all ranks' complete events in rank order, and the others none") {
  for (const int size : {1, 3}) {
    CAPTURE(size);
    with_threads("local", size, [&](const Group& group) {
      const int r = group->rank();
      Trace own{.dropped = 10 * r};
      for (int i = 0; i < r + 1; ++i)
        own.events.push_back({.kind = TraceKind::kCopy,
                              .name = "event " + std::to_string(r),
                              .thread = i,
                              .begin = 1'000'000 + i,
                              .end = 2'000'000 + i,
                              .labels = {.bytes = 5, .from = r, .to = 1, .id = i, .phase = 2, .group = 3}});
      const std::vector<Trace> all = gather_traces(*group, own);
      REQUIRE(all.size() == (r == 0 ? static_cast<std::size_t>(size) : 0));
      for (int other = 0; other < std::ssize(all); ++other) {
        const Trace& trace = all[static_cast<std::size_t>(other)];
        CHECK(trace.rank == other);
        CHECK(trace.dropped == 10 * other);
        REQUIRE(trace.events.size() == static_cast<std::size_t>(other + 1));
        const TraceEvent& last = trace.events.back();
        CHECK(last.kind == TraceKind::kCopy);
        CHECK(last.name == "event " + std::to_string(other));
        CHECK(last.thread == other);
        CHECK(last.end - last.begin == 1'000'000);
        CHECK(last.labels.bytes == 5);
        CHECK(last.labels.from == other);
        CHECK(last.labels.to == 1);
        CHECK(last.labels.id == other);
        CHECK(last.labels.phase == 2);
        CHECK(last.labels.group == 3);
        // Threads of one process have one clock, so the measured offset must be within the stated error.
        CHECK(std::abs(trace.clock_offset) <= trace.clock_error);
        CHECK(last.begin == 1'000'000 + other + trace.clock_offset);
        CHECK((trace.clock_error > 0) == (other > 0));
      }
    });
  }
}
