// The sentences of --explain for each strategy, on timelines that are defined here, in microseconds.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/parallel/schedule/schedule_internal.h"
#include "support/explain.h"
#include "tests/support/explained.h"
#include "tools/report/lanes.h"
#include "tools/report/messages.h"

namespace {

namespace par = lockstep::parallel;
using lockstep::Trace;
using lockstep::TraceEvent;
using lockstep::TraceKind;
using lockstep::TraceLabels;
using par::Phase;

constexpr int number(Phase phase) { return static_cast<int>(phase); }

// The events of one rank, or of one process.
class Events {
 public:
  explicit Events(int rank = 0) { trace_.rank = rank; }

  void add(TraceKind kind, const std::string& name, double begin, double end, const TraceLabels& labels = {},
           int thread = 0) {
    trace_.events.push_back({.kind = kind,
                             .name = name,
                             .thread = thread,
                             .begin = std::llround(1000 * begin),
                             .end = std::llround(1000 * end),
                             .labels = labels});
  }
  // A collective or a message, and the wait for it.
  void operation(const std::string& name, double launched, double waits, double done, TraceLabels labels) {
    labels.from = trace_.rank;
    add(TraceKind::kCollective, name, launched, done, labels);
    add(TraceKind::kWait, name, waits, done, labels);
  }
  // The last actions of each step of DistributedDataParallel.
  void bucket_and_optimizer(double ready, double launched, double done) {
    add(TraceKind::kBucketReady, "embed", ready, ready, {.bytes = 2048, .id = 0});
    add(TraceKind::kBucketLaunched, "embed", launched, launched, {.bytes = 2048, .id = 0});
    operation("all_reduce", launched, launched + 1, done,
              {.bytes = 2048, .id = 50, .phase = number(Phase::kGradients)});
    add(TraceKind::kBucketDone, "embed", done, done, {.bytes = 2048, .id = 0});
    add(TraceKind::kOptimizer, "AdamW", done + 1, done + 9);
  }
  Trace take(double end) {
    add(TraceKind::kStep, "step", 0, end, {.id = 9});
    std::ranges::stable_sort(trace_.events, [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    return std::move(trace_);
  }
  int rank() const { return trace_.rank; }

 private:
  Trace trace_;
};

void expect_sentences(const std::string& mode, const std::string& name, std::vector<Trace> traces) {
  const report::Run run{.mode = traces.size() > 1 ? "ranks" : mode, .traces = std::move(traces)};
  const std::vector<report::StepView> steps = report::last_steps(run, 1);
  REQUIRE(steps.size() == 1);
  explained::expect_golden("step_" + name, samples::explain(mode, steps[0]));
}

// Two ranks of a mode, of which rank 1 begins 20 us later.
template <class Make>
std::vector<Trace> two_ranks(double end, const Make& make) {
  std::vector<Trace> traces;
  for (int rank = 0; rank < 2; ++rank) {
    Events events(rank);
    make(events, 20.0 * rank);
    traces.push_back(events.take(end));
  }
  return traces;
}

// ZeRO with two units besides the root unit and one micro-batch.
std::vector<Trace> zero(int stage) {
  return two_ranks(400, [&](Events& events, double late) {
    const auto gather = [&](const char* unit, std::int64_t bytes, double at) {
      events.add(TraceKind::kCopy, unit, at, at + 1,
                 {.bytes = bytes, .from = events.rank(), .phase = number(Phase::kParameters)});
    };
    const auto reduce = [&](const char* unit, std::int64_t id, double launched, double waits) {
      events.operation(unit, launched + late, std::max(waits, launched + late), std::max(waits, launched + 20) + 1,
                       {.bytes = 6208, .id = id, .phase = number(Phase::kGradients), .group = 1});
    };
    events.operation("barrier before all_gather", late, late + 1, 30, {.id = 82});
    gather("the root unit", 2368, 31);
    events.add(TraceKind::kForward, "model", 33, 150);
    gather("unit blocks.0", 6208, 40);
    gather("unit blocks.1", 6208, 90);
    events.add(TraceKind::kForward, "loss", 151, 155);
    events.add(TraceKind::kBackward, "backward", 160, 300 + late);
    if (stage == 3) gather("unit blocks.0", 6208, 230);  // the units before the last one once more
    reduce("reduce_scatter unit blocks.1", 118, 200, stage == 1 ? 330 : 240);
    reduce("reduce_scatter unit blocks.0", 119, 260, 332);
    reduce("reduce_scatter the root unit", 120, 290, 334);
    events.operation("all_reduce losses", 301 + late, 302 + late, 329, {.bytes = 80, .id = 121, .group = 1});
    events.operation("all_gather norm", 340 + late, 341 + late, 365, {.bytes = 184, .id = 83});
    events.add(TraceKind::kOptimizer, "AdamW", 370, 380);
  });
}

// The step of a pipeline whose actions F, I and W take 10 us each.
std::vector<Trace> pipeline(par::Schedule schedule) {
  const auto table = par::ScheduleTable::make(schedule, 2, 3);
  const par::Timeline timeline = par::simulate(table, {.forward = 10, .backward_input = 10, .backward_weight = 10});
  const par::ScheduleSize size = {table.ranks(), table.stages(), table.micro_batches()};
  const par::ScheduleRows rows = par::with_messages({table.actions(0), table.actions(1)}, size);
  std::vector<Trace> traces;
  for (int rank = 0; rank < 2; ++rank) {
    Events events(rank);
    const auto& timed = timeline.ranks[static_cast<std::size_t>(rank)].actions;
    double now = 0;
    std::size_t next = 0;
    for (const par::ScheduleAction& action : rows[static_cast<std::size_t>(rank)]) {
      const std::string name = action.to_string();
      const bool is_forward = action.kind == par::ActionKind::kForward;
      if (par::is_computing(action.kind)) {
        const auto& [begin, end, same] = timed[next++];
        now = end - 0.3;  // the rest of the time is for a send
        events.add(TraceKind::kAction, name, begin, now);
        events.add(is_forward ? TraceKind::kForward : TraceKind::kBackward, is_forward ? "model" : "backward", begin,
                   now);
      } else if (action.kind != par::ActionKind::kReduce && report::is_receive(action)) {
        events.operation("recv " + name, now, now, timed[next].begin, {.to = 1 - rank, .id = 7});
      } else if (action.kind != par::ActionKind::kReduce) {
        events.add(TraceKind::kCopy, name, now, now + 0.1, {.bytes = 1024, .from = rank, .to = 1 - rank});
        now += 0.2;
      }
    }
    events.add(TraceKind::kOptimizer, "AdamW", timeline.seconds, timeline.seconds + 5);
    traces.push_back(events.take(timeline.seconds + 5));
  }
  return traces;
}

// One layer of a GPT, of which two ranks have sequence blocks (is_ulysses: exchanged for heads) or tensor slices.
enum class Layer : std::uint8_t { kRing, kUlysses, kTensor };
std::vector<Trace> layer(Layer kind) {
  return two_ranks(400, [&](Events& events, double late) {
    const int other = 1 - events.rank();
    std::int64_t id = 100;
    // The rank that comes first waits for the first of four messages.
    const auto exchange = [&](const std::string& what, Phase phase, double at) {
      double waits = at + late;
      for (const std::string& name : {"key" + what, "value" + what}) {
        for (const char* direction : {"recv ", "send "}) {
          const double done = waits + (late == 0 && waits == at ? 20 : 0.1);
          events.operation(direction + name, at - 10 + late, waits, done,
                           {.bytes = 512, .to = other, .id = id, .phase = number(phase)});
          waits = done;
        }
        ++id;
      }
    };
    const auto collective = [&](const char* name, Phase phase, double at) {
      events.operation(name, at + late, at + 1 + late, at + 25, {.bytes = 512, .id = id++, .phase = number(phase)});
    };
    collective(kind == Layer::kTensor ? "all_gather batch hashes" : "all_gather split_sequence", Phase::kInputs, 0);
    events.add(TraceKind::kForward, "model", 30, 120);
    if (kind == Layer::kRing) exchange("s", Phase::kKeysValues, 60);
    if (kind == Layer::kUlysses)
      collective("all_to_all heads", Phase::kActivations, 50), collective("all_to_all heads", Phase::kActivations, 90);
    if (kind == Layer::kTensor)
      collective("all_reduce tensor exit", Phase::kActivations, 50),
          collective("all_reduce tensor exit", Phase::kActivations, 90);
    events.add(TraceKind::kForward, "loss", 121, 130);
    events.add(TraceKind::kBackward, "backward", 131, 300);
    if (kind == Layer::kRing) {
      exchange("s", Phase::kKeysValues, 160);
      exchange(" gradients", Phase::kActivationGradients, 190),
          exchange(" gradients", Phase::kActivationGradients, 230);
    }
    const char* const gradients = kind == Layer::kUlysses ? "all_to_all heads" : "all_reduce tensor entry";
    if (kind != Layer::kRing)
      collective(gradients, Phase::kActivationGradients, 160), collective(gradients, Phase::kActivationGradients, 230);
    if (kind != Layer::kTensor)
      events.bucket_and_optimizer(280 + late, 281 + late, 330);
    else
      events.add(TraceKind::kOptimizer, "AdamW", 331, 339);
  });
}

}  // namespace

TEST_CASE("accumulate: micro-batches one after another, and one step of the optimizer") {
  Events events;
  for (const double begin : {5, 105}) {
    events.add(TraceKind::kForward, "model", begin, begin + 40);
    events.add(TraceKind::kForward, "loss", begin + 41, begin + 44);
    events.add(TraceKind::kBackward, "backward", begin + 45, begin + 95);
  }
  events.add(TraceKind::kOptimizer, "AdamW", 201, 209);
  expect_sentences("accumulate", "accumulate", {events.take(210)});
}

TEST_CASE("dp: copies from and to the first device, and waits of the others") {
  Events events;
  const auto copy = [&](const char* name, Phase phase, int from, double at, std::int64_t bytes, int thread) {
    events.add(TraceKind::kCopy, name, at, at + 1,
               {.bytes = bytes, .from = from, .to = 1 - from, .phase = number(phase)}, thread);
  };
  events.add(TraceKind::kWait, "replicas", 4, 41);
  events.add(TraceKind::kReplica, "replica", 5, 30, {.id = 0}, 1);
  events.add(TraceKind::kForward, "model", 6, 28, {}, 1);
  events.add(TraceKind::kReplica, "replica", 7, 40, {.id = 1}, 2);
  copy("parameters", Phase::kParameters, 0, 8, 124, 2);
  copy("inputs", Phase::kInputs, 0, 11, 480, 2);
  events.add(TraceKind::kForward, "model", 13, 35, {}, 2);
  copy("outputs", Phase::kOutputs, 1, 36, 16, 2);
  events.add(TraceKind::kForward, "loss", 42, 45);
  events.add(TraceKind::kWait, "replicas", 46, 90);
  events.add(TraceKind::kReplica, "replica", 47, 70, {.id = 0}, 1);
  events.add(TraceKind::kBackward, "backward", 48, 69, {}, 1);
  events.add(TraceKind::kReplica, "replica", 48, 85, {.id = 1}, 2);
  copy("loss gradient", Phase::kLossGradient, 0, 49, 16, 2);
  events.add(TraceKind::kBackward, "backward", 51, 84, {}, 2);
  copy("gradients", Phase::kGradients, 1, 91, 124, 0);
  events.add(TraceKind::kOptimizer, "SGD", 94, 99);
  expect_sentences("dp", "dp", {events.take(100)});
}

TEST_CASE("zero1, zero2, zero3: gathers of units, reduce-scatters, and the waits for both") {
  for (const int stage : {1, 2, 3}) {
    const std::string mode = "zero" + std::to_string(stage);
    expect_sentences(mode, mode, zero(stage));
  }
}

TEST_CASE("pipelines: actions of the schedule, messages between stages, and the waits for them") {
  expect_sentences("pipeline", "1f1b", pipeline(par::Schedule::k1F1B));
  expect_sentences("pipeline", "zb1p", pipeline(par::Schedule::kZeroBubble));
}

TEST_CASE("context and tensor: messages of a ring, all-to-alls, and sums over tensor slices") {
  expect_sentences("context", "ring", layer(Layer::kRing));
  expect_sentences("context", "ulysses", layer(Layer::kUlysses));
  expect_sentences("tensor", "tensor", layer(Layer::kTensor));
}
