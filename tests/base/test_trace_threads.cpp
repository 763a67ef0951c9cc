// Traces: recorded events, threads, lost events, and the file for Chrome and Perfetto.
#include "lockstep/base/trace.h"

#include <doctest/doctest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/tensor/ops/ops_internal.h"

using namespace lockstep;

namespace {

std::vector<TraceEvent> named(const Trace& trace, const std::string& name) {
  std::vector<TraceEvent> found;
  for (const TraceEvent& event : trace.events) {
    if (event.name == name) found.push_back(event);
  }
  return found;
}

void mark(const char* name) { const TraceSpan span(TraceKind::kUser, name); }

}  // namespace

TEST_CASE("spans nest by time, and spans that are before, after, or still open are not in the trace") {
  mark("before");
  start_trace();
  {
    const TraceSpan outer(TraceKind::kUser, "outer");
    mark("inner");
    trace_event(TraceKind::kCopy, "copy", TraceTime::now(), {.bytes = 12, .from = 1, .to = 2, .id = 3, .phase = 4});
  }
  auto open = std::make_unique<TraceSpan>(TraceKind::kUser, "open");
  const Trace trace = stop_trace();
  open.reset();
  mark("after");
  REQUIRE(trace.events.size() == 3);
  CHECK(trace.dropped == 0);
  const TraceEvent &outer = trace.events[0], &inner = trace.events[1], &copy = trace.events[2];
  CHECK(outer.name == "outer");
  CHECK(inner.name == "inner");
  CHECK(outer.begin <= inner.begin);
  CHECK(inner.begin <= inner.end);
  CHECK(inner.end <= copy.begin);
  CHECK(copy.end <= outer.end);
  CHECK(copy.kind == TraceKind::kCopy);
  CHECK(copy.labels.bytes == 12);
  CHECK(copy.labels.from == 1);
  CHECK(copy.labels.to == 2);
  CHECK(copy.labels.id == 3);
  CHECK(copy.labels.phase == 4);

  start_trace();
  CHECK(stop_trace().events.empty());
}

TEST_CASE("a full ring keeps the newest events and counts the others") {
  start_trace({.events_per_thread = 8});
  for (int i = 0; i < 20; ++i) trace_event(TraceKind::kUser, "event", TraceTime::now(), {.id = i});
  const Trace trace = stop_trace();
  REQUIRE(trace.events.size() == 8);
  CHECK(trace.dropped == 12);
  for (int i = 0; i < 8; ++i) CHECK(trace.events[static_cast<std::size_t>(i)].labels.id == 12 + i);
}

TEST_CASE("each thread writes its own ring; a new thread reuses the ring of one that has ended") {
  start_trace();
  mark("main");
  std::thread([] { mark("first"); }).join();
  std::thread([] { mark("second"); }).join();
  const Trace trace = stop_trace();
  REQUIRE(trace.events.size() == 3);
  CHECK(trace.events[0].thread == 0);
  CHECK(trace.events[1].thread == 1);
  CHECK(trace.events[2].thread == 1);
}

TEST_CASE("stop_trace and start_trace may be called while other threads write") {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!done) trace_event(TraceKind::kUser, "number", TraceTime::now(), {.bytes = 77, .id = 5});
    });
  }
  std::size_t seen = 0;
  for (int i = 0; i < 50 || seen == 0; ++i) {
    start_trace({.events_per_thread = 16});
    std::this_thread::yield();
    const Trace trace = stop_trace();
    for (const TraceEvent& event : trace.events) {
      CHECK(event.name == "number");
      CHECK(event.labels.bytes == 77);
      CHECK(event.labels.id == 5);
      CHECK(event.begin <= event.end);
    }
    seen += trace.events.size();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a CPU device's kernels are in the trace, unless it was started without them") {
  const Tensor a = raw::zeros({4, 4}), b = raw::zeros({4, 4});
  for (const bool kernels : {true, false}) {
    CAPTURE(kernels);
    start_trace({.kernels = kernels});
    raw::matmul(a, b);
    const Trace trace = stop_trace();
    CHECK(named(trace, "gemm").size() == (kernels ? 1 : 0));
    for (const TraceEvent& event : trace.events) CHECK(event.kind == TraceKind::kKernel);
  }
}

TEST_CASE("start and stop out of turn, and a trace of nothing, are errors") {
  CHECK_THROWS_WITH_AS(stop_trace(), "stop_trace: no trace is running; start one with start_trace()", InvalidArgument);
  CHECK_THROWS_AS(start_trace({.events_per_thread = 0}), InvalidArgument);
  start_trace();
  CHECK_THROWS_WITH_AS(start_trace(), "start_trace: a trace is already running; end it with stop_trace()",
                       InvalidArgument);
  stop_trace();
}

TEST_CASE("the file is JSON with a process for each trace, complete events, pairs and arrows") {
  Trace trace{.process = "ddp \"rank\" 0", .clock_offset = -5, .clock_error = 40, .dropped = 2};
  trace.events = {{.kind = TraceKind::kForward, .name = "fc\x01\xff", .thread = 1, .begin = 1'000, .end = 3'500},
                  {.kind = TraceKind::kBucketLaunched, .name = "w", .begin = 2'000, .end = 2'000, .labels = {.id = 0}},
                  {.kind = TraceKind::kCollective,
                   .name = "all_reduce",
                   .begin = 2'001,
                   .end = 3'002,
                   .labels = {.bytes = 64, .id = 9}},
                  {.kind = TraceKind::kBucketDone, .name = "w", .begin = 3'100, .end = 3'100, .labels = {.id = 0}},
                  {.kind = TraceKind::kBucketDone, .name = "w", .begin = 3'200, .end = 3'200, .labels = {.id = 7}}};
  write_chrome_trace("chrome.json", {trace, Trace{.rank = 1}});
  std::ifstream file("chrome.json");
  const auto json = nlohmann::json::parse(file);
  std::map<std::string, std::vector<nlohmann::json>> by_phase;
  for (const auto& event : json.at("traceEvents")) by_phase[event.at("ph")].push_back(event);
  REQUIRE(by_phase["M"].size() == 4);
  CHECK(by_phase["M"][0]["args"]["name"] == "ddp \"rank\" 0");
  CHECK(by_phase["M"][0]["args"]["clock_error_ns"] == 40);
  CHECK(by_phase["M"][0]["args"]["dropped_events"] == 2);
  CHECK(by_phase["M"][2]["args"]["name"] == "rank 1");
  CHECK(by_phase["M"][2]["pid"] == 1);
  REQUIRE(by_phase["X"].size() == 1);
  CHECK(by_phase["X"][0]["name"] == "fc??");
  CHECK(by_phase["X"][0]["ts"] == 0.0);
  CHECK(by_phase["X"][0]["dur"] == 2.5);
  CHECK(by_phase["X"][0]["tid"] == 1);
  REQUIRE(by_phase["b"].size() == 1);
  REQUIRE(by_phase["e"].size() == 1);
  CHECK(by_phase["b"][0]["id"] == by_phase["e"][0]["id"]);
  CHECK(by_phase["b"][0]["args"]["bytes"] == 64);
  CHECK(by_phase["e"][0]["ts"] == doctest::Approx(2.002));
  CHECK(by_phase["i"].size() == 3);
  REQUIRE(by_phase["s"].size() == 1);  // the bucket that was not launched in the trace has no arrow
  REQUIRE(by_phase["f"].size() == 1);
  CHECK(by_phase["s"][0]["id"] == by_phase["f"][0]["id"]);
}
