// Shared by the tests of traces: a small model, and the events of one kind.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;
using namespace lockstep::parallel;

namespace trace_test {

struct Net : nn::Module {
  nn::Linear& one = add<nn::Linear>("one", 3, 4);
  nn::Linear& two = add<nn::Linear>("two", 4, 1);
  Tensor forward(const Tensor& x) const override { return two(relu(one(x))); }
};

inline std::vector<TraceEvent> of_kind(const Trace& trace, TraceKind kind) {
  std::vector<TraceEvent> found;
  std::ranges::copy_if(trace.events, std::back_inserter(found),
                       [kind](const TraceEvent& event) { return event.kind == kind; });
  return found;
}

// Two layers, each a unit of ShardedDataParallel.
struct Layers : nn::Module {
  nn::ModuleList& list = add<nn::ModuleList>("layers");
  Layers() {
    list.push_back(nn::Linear(3, 4));
    list.push_back(nn::Linear(4, 1));
  }
  Tensor forward(const Tensor& x) const override { return list[1](relu(list[0](x))); }
};

inline std::int64_t bytes_of(const std::vector<TraceEvent>& events) {
  std::int64_t bytes = 0;
  for (const TraceEvent& event : events) bytes += event.labels.bytes;
  return bytes;
}

// Steps of stage 3: gathers and reduce-scatters are events with the units' names, and the events have the bytes that are
// counted and planned. `gather`: how the gathers' names begin.
inline void check_units(const std::shared_ptr<ProcessGroup>& group, TraceKind kind, const std::string& gather) {
  constexpr std::size_t kSteps = 3;
  Layers net;
  ShardedDataParallel run(net, group, {});
  group->traffic().clear();
  start_trace();
  for (std::size_t i = 0; i < kSteps; ++i)
    run.backward(ones({1, 3}), ones({1, 1}), [&](const Tensor& x, const Tensor& y) { return mean(net(x) * y); });
  const Trace trace = stop_trace();
  std::vector<TraceEvent> gathers = of_kind(trace, kind), reductions = of_kind(trace, TraceKind::kCollective);
  std::erase_if(gathers, [&](const TraceEvent& event) { return !event.name.starts_with(gather + "unit"); });
  std::erase_if(reductions, [](const TraceEvent& event) { return !event.name.starts_with("reduce_scatter "); });
  REQUIRE(gathers.size() == 3 * kSteps);
  REQUIRE(reductions.size() == 2 * kSteps);
  for (std::size_t i = 0; i < kSteps; ++i) {
    CHECK(gathers[3 * i].name == gather + "unit layers.0");
    CHECK(gathers[3 * i + 1].name == gather + "unit layers.1");
    CHECK(gathers[3 * i + 2].name == gather + "unit layers.0");  // for backward
    CHECK(reductions[2 * i].name == "reduce_scatter unit layers.1");
    CHECK(reductions[2 * i + 1].name == "reduce_scatter unit layers.0");
  }
  const auto steps = static_cast<std::int64_t>(kSteps);
  CHECK(bytes_of(gathers) == group->traffic().bytes(Phase::kParameters));
  CHECK(bytes_of(gathers) == steps * run.plan().gather_bytes);
  CHECK(bytes_of(reductions) == steps * run.plan().reduce_bytes);

  const std::vector<TraceEvent> plan = of_kind(trace, TraceKind::kPlan), memory = of_kind(trace, TraceKind::kMemory);
  REQUIRE(plan.size() == 3 * kSteps);
  CHECK(plan[0].name == "planned memory");
  CHECK(plan[0].labels.bytes == run.plan().memory_bytes());
  CHECK(plan[1].name == "planned parameters");
  CHECK(plan[1].labels.bytes == run.plan().gather_bytes);
  CHECK(plan[2].name == "planned gradients");
  CHECK(plan[2].labels.bytes == run.plan().bytes_per_step - run.plan().gather_bytes);
  REQUIRE(memory.size() == 2 * (3 + 2) * kSteps);  // at each gather and reduce-scatter
  for (std::size_t i = 0; i < memory.size(); i += 2) {
    CHECK(memory[i].name == "memory");
    CHECK(memory[i + 1].name == "peak memory");
    CHECK(memory[i].labels.bytes >= run.plan().memory_bytes() - run.plan().optimizer_bytes);  // there is no optimizer
    CHECK(memory[i].labels.bytes <= memory[i + 1].labels.bytes);
  }
}

}  // namespace trace_test
using namespace trace_test;
