// The report's answers: each sentence and its numbers follow from made-up traces, and are left out where they do not hold.
#include <doctest/doctest.h>
#include <lockstep/lockstep.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/samples/support.h"
#include "tools/report/answers.h"
#include "tools/report/causes.h"
#include "tools/report/report.h"

namespace {

using lockstep::Trace;
using lockstep::TraceEvent;
using lockstep::TraceKind;
using lockstep::TraceLabels;
using lockstep::parallel::Phase;
using report::Run;

constexpr int kGradients = static_cast<int>(Phase::kGradients);
constexpr std::int64_t kModel = 1'000'000;  // bytes of parameters

// Times are microseconds.
TraceEvent event(TraceKind kind, const char* name, std::int64_t begin, std::int64_t end, TraceLabels labels = {},
                 int thread = 0) {
  return {.kind = kind, .name = name, .thread = thread, .begin = 1'000 * begin, .end = 1'000 * end, .labels = labels};
}

// A step of 3,000 us on one device, of which the optimizer takes 1,000.
Run single() {
  return {.name = "single",
          .mode = "single",
          .traces = {{.events = {event(TraceKind::kStep, "step", 0, 3'000, {.id = 1}),
                                 event(TraceKind::kForward, "model", 0, 800),
                                 event(TraceKind::kBackward, "backward", 800, 2'000),
                                 event(TraceKind::kOptimizer, "AdamW", 2'000, 3'000)}}},
          .memory = {kModel, kModel, 2 * kModel, 0}};
}

// Two ranks with one bucket of which rank 1 is `late` us later; the all-reduce takes 100 us and the optimizer `optimizer`.
Run ranks(const char* mode, std::int64_t late, std::int64_t optimizer) {
  Run run{.name = mode, .mode = mode};
  const std::int64_t sum = 1'100 + late, end = sum + optimizer;
  for (int r = 0; r < 2; ++r) {
    const std::int64_t own = 1'000 + (r == 1 ? late : 0);
    run.traces.push_back(
        {.process = std::string(mode) + " rank " + std::to_string(r),
         .rank = r,
         .events = {event(TraceKind::kStep, "step", 0, end, {.id = 1}), event(TraceKind::kForward, "model", 0, 400),
                    event(TraceKind::kBackward, "backward", 400, own),
                    event(TraceKind::kBucketReady, "fc", own, own, {.bytes = kModel, .id = 0}),
                    event(TraceKind::kBucketLaunched, "fc", own, own, {.bytes = kModel, .id = 0}),
                    event(TraceKind::kCollective, "all_reduce", own, sum,
                          {.bytes = kModel, .from = r, .id = 4, .phase = kGradients}),
                    event(TraceKind::kWait, "all_reduce", own, sum, {.id = 4}),
                    event(TraceKind::kBucketDone, "fc", sum, sum, {.bytes = kModel, .id = 0}),
                    event(TraceKind::kOptimizer, "AdamW", sum, end)}});
  }
  return run;
}

// DataParallel: the second device computes from 100 to 1,100 us, the first one updates from 1,200 to 2,200 us.
Run dp() {
  return {
      .name = "dp",
      .mode = "dp",
      .traces = {
          {.events = {event(TraceKind::kStep, "step", 0, 2'200, {.id = 1}),
                      event(TraceKind::kReplica, "replica", 0, 1'000, {.id = 0}),
                      event(TraceKind::kForward, "model", 0, 400), event(TraceKind::kBackward, "backward", 400, 1'000),
                      event(TraceKind::kReplica, "replica", 100, 1'100, {.id = 1}, 1),
                      event(TraceKind::kForward, "model", 100, 500, {}, 1),
                      event(TraceKind::kBackward, "backward", 500, 1'100, {}, 1),
                      event(TraceKind::kWait, "replicas", 1'000, 1'100),
                      event(TraceKind::kCopy, "gradients", 1'100, 1'200, {.bytes = kModel, .from = 1, .to = 0}),
                      event(TraceKind::kOptimizer, "AdamW", 1'200, 2'200)}}}};
}

// The run with all times multiplied.
Run scaled(Run run, std::int64_t percent) {
  for (Trace& trace : run.traces)
    for (TraceEvent& each : trace.events) each.begin = each.begin * percent / 100, each.end = each.end * percent / 100;
  return run;
}

std::string answer(const std::vector<Run>& runs, const std::string& question) {
  std::string questions;
  for (const report::Answer& each : answers(report::traced(runs))) {
    if (each.question == question) return each.text;
    questions += each.question + "\n";
  }
  return "none; there are:\n" + questions;
}

bool is_asked(const std::vector<Run>& runs, const std::string& question) {
  return !answer(runs, question).starts_with("none");
}

void count(Run& run, const report::Links& links) {
  run.gradient_bytes = kModel;
  run.is_counted = true;
  run.counters = {.steps = 1, .in_steps = links};
}

}  // namespace

TEST_CASE("why n devices are not n times as fast: the optimizer's step, which DDP does not divide") {
  Run in_turns = single();
  in_turns.name = in_turns.mode = "accumulate";
  const char* const question = "Why is ddp only 1.43 times as fast as single, not 2 times?";
  CHECK(answer({single(), ranks("ddp", 0, 1'000)}, question) ==
        "A step takes 2.10 ms; ideally it would take 1.50 ms (single's 3.00 ms divided by 2). The extra 0.60 ms of a "
        "rank (on average) are 0.50 ms because the optimizer's step is not divided: each rank runs all of it (1.00 ms "
        "in single), plus 0.10 ms of exposed communication.");
  // The parts add up to the whole: those that make a step shorter, and small ones, too.
  Run slower = ranks("ddp", 0, 1'200), faster = ranks("ddp", 0, 1'000);
  CHECK(contains(
      answer({single(), slower}, "Why is ddp only 1.30 times as fast as single, not 2 times?"),
      "each rank runs all of it (1.00 ms in single), plus 0.20 ms because the optimizer's step ran slower (1.20 "
      "ms; the ranks run it at the same time, on shared caches and memory), plus 0.10 ms of exposed communication."));
  for (Trace& trace : faster.traces)
    for (TraceEvent& each : trace.events) {
      if (each.begin >= 1'000'000) each.begin -= 200'000;
      if (each.end >= 1'000'000) each.end -= 200'000;
    }
  CHECK(contains(answer({single(), faster}, "Why is ddp only 1.58 times as fast as single, not 2 times?"),
                 "plus 0.10 ms of exposed communication, minus 0.20 ms in forward and backward (0.80 ms; 1/2 of "
                 "single's 2.00 ms would be 1.00 ms)."));
  CHECK(
      contains(answer({single(), dp()}, "Why is dp only 1.36 times as fast as single, not 2 times?"),
               "The extra 0.70 ms of cpu:0 are 0.50 ms because the optimizer's step is not divided: cpu:0 runs all of "
               "it (1.00 ms in single), plus 0.10 ms of exposed communication, plus 0.10 ms of waiting."));
  CHECK(
      answer({single(), dp(), ranks("ddp", 0, 1'000)}, "How fast can dp and ddp become?") ==
      "The optimizer's step is 33.33 % of a step on one device. Even if the rest were divided perfectly, the speed-up "
      "would be at most 1.50 on 2 devices, and 3.0 however many there are (Amdahl's law). ZeRO stage 1 (zero1) would "
      "divide this step, too.");
  CHECK(contains(answer({single(), ranks("ddp", 0, 1'000), ranks("zero1", 0, 500)}, "How fast can ddp become?"),
                 "(Amdahl's law). zero1 divides this step, too: 500.0 us on each rank."));
  // Where the same micro-batches ran one after another, the time of forward and backward has two causes, unless the runs
  // were disturbed.
  const Run alone = scaled(single(), 80);
  CHECK(contains(
      answer({alone, scaled(in_turns, 90), ranks("ddp", 0, 1'000)},
             "Why is ddp only 1.14 times as fast as single, not 2 times?"),
      "plus 0.10 ms in forward and backward because the ranks compute at the same time, on shared caches "
      "and memory (1.00 ms; one after "
      "another, in accumulate, 0.90 ms), plus 0.10 ms in forward and backward because micro-batches are "
      "smaller than the batch (0.90 ms per micro-batch in accumulate; 1/2 of single's 1.60 ms would be 0.80 ms)"));
  const char* const slower_than_alone = "Why is ddp only 1.14 times as fast as single, not 2 times?";
  CHECK(contains(answer({alone, scaled(in_turns, 120), ranks("ddp", 0, 1'000)}, slower_than_alone),
                 "0.20 ms in forward and backward because micro-batches are smaller than the batch (1.00 ms; "
                 "1/2 of single's 1.60 ms would be 0.80 ms)"));
  CHECK(contains(answer({alone, scaled(in_turns, 70), ranks("ddp", 0, 1'000)}, slower_than_alone),
                 "0.20 ms in forward and backward because the ranks compute at the same time, on shared caches and "
                 "memory (1.00 ms; 1/2 of single's "
                 "1.60 ms would be 0.80 ms; one after another, in accumulate, 0.70 ms)"));
  CHECK(contains(answer({alone, ranks("ddp", 0, 1'000)}, slower_than_alone),
                 "0.20 ms in forward and backward (1.00 ms; 1/2 of single's 1.60 ms would be 0.80 ms)"));
  // A divided optimizer is no reason, and an optimizer that takes little time is none.
  CHECK(contains(
      answer({single(), ranks("zero1", 0, 500)}, "Why is zero1 only 1.88 times as fast as single, not 2 times?"),
      "The extra 0.10 ms of a rank (on average) are 0.10 ms of exposed communication."));
  CHECK(!is_asked({single(), ranks("zero1", 0, 500)}, "How fast can zero1 become?"));
  CHECK(!contains(answer({single(), ranks("ddp", 2'000, 1'000)}, "Why is ddp slower than single, not 2 times as fast?"),
                  "none"));
  CHECK(!is_asked({single(), ranks("ddp", 0, 400)}, "Why is ddp only 2.00 times as fast as single, not 2 times?"));
  CHECK(answers(report::traced({single()})).empty());
}

TEST_CASE("why one strategy is faster than another on as many devices") {
  Run accumulate = single();
  accumulate.name = accumulate.mode = "accumulate";
  for (TraceEvent& each : accumulate.traces[0].events) each.begin -= each.begin / 5, each.end -= each.end / 5;
  CHECK(
      answer({dp(), ranks("ddp", 0, 800)}, "Why is ddp faster than dp?") ==
      "A step takes 1.90 ms instead of 2.20 ms. In dp, all inputs and parameters come from cpu:0, which alone computes "
      "the loss and runs the optimizer while the others wait; in ddp every rank does the same work at the same time. "
      "Compared with cpu:0 of dp, a rank (on average) of ddp saves 0.20 ms in the optimizer's step, "
      "which computes the same in both, but in dp the caches of the cores that copied the parameters must give "
      "them up before cpu:0 writes them (0.80 ms instead of 1.00 ms), plus 0.10 ms of waiting (0.00 ms instead of "
      "0.10 ms).");
  CHECK(
      contains(answer({scaled(dp(), 120), ranks("ddp", 0, 1'000)}, "Why is ddp faster than dp?"),
               "saves 0.20 ms in forward and backward, which compute the same in both, but in dp parameters are copied "
               "meanwhile (1.00 ms instead of 1.20 ms), plus 0.20 ms in the"));
  CHECK(contains(
      answer({scaled(dp(), 80), ranks("ddp", 0, 1'000)}, "Why is dp faster than ddp?"),
      "in forward and backward, which compute the same in both, but in ddp gradients are all-reduced meanwhile "
      "(0.80 ms instead of 1.00 ms), plus 0.20 ms in the optimizer's step, which computes the same in both "
      "(0.80 ms instead of 1.00 ms)"));
  CHECK(is_asked({single(), accumulate}, "Why is accumulate faster than single?"));
  CHECK(is_asked({dp(), ranks("ddp", 500, 1'000)}, "Why is dp faster than ddp?"));
  CHECK(is_asked({ranks("zero1", 0, 500), ranks("ddp", 0, 1'000)}, "Why is zero1 faster than ddp?"));
  CHECK(answer({dp(), ranks("ddp", 0, 1'050)}, "Which is faster, dp or ddp?") ==
        "Neither, as far as these steps can tell: 2.20 ms and 2.15 ms.");
  Run hub = dp(), others = ranks("ddp", 0, 1'050);
  hub.step_ns = 2'000'000;
  others.step_ns = 1'800'000;
  CHECK(answer({hub, others}, "Which is faster, dp or ddp?")
            .ends_with("2.15 ms. Over the whole run ddp is faster: a step takes 1.80 ms instead of 2.00 ms."));
}

TEST_CASE("what overlaps: buckets that are done before the last gradient, or collectives in flight without a wait") {
  CHECK(answer({ranks("ddp", 0, 1'000)}, "What overlaps in ddp?") ==
        "Nothing: there is one bucket, which is complete when the last gradient is ready. Exposed communication, in "
        "which a rank computes nothing, is 0.10 ms of the median step (mean of the ranks).");
  Run two = ranks("ddp", 0, 1'000);
  for (Trace& trace : two.traces) {
    trace.events.push_back(event(TraceKind::kBucketReady, "b", 500, 500, {.bytes = kModel, .id = 1}));
    trace.events.push_back(event(TraceKind::kBucketLaunched, "b", 500, 500, {.bytes = kModel, .id = 1}));
    trace.events.push_back(event(TraceKind::kBucketDone, "b", 800, 800, {.bytes = kModel, .id = 1}));
  }
  CHECK(contains(
      answer({two}, "What overlaps in ddp?"),
      "Backward overlaps with all-reduces: in 1 of 1 traced steps at least one is done before the last gradient of "
      "some rank is ready. Over all traced steps and ranks, 50 % of the bytes are all-reduced that early. In the "
      "median step, where rank "
      "0's last gradient is ready after 1.00 ms: bucket 0 (1.00 MB) is launched 0 ns before it and done 100.0 us after "
      "and bucket 1 (1.00 MB) is launched 500.0 us before it and done 200.0 us before. A bucket that is launched "
      "during backward takes "
      "longer, as the ranks compute meanwhile. Exposed communication"));
  for (Trace& trace : two.traces)
    for (TraceEvent& each : trace.events)
      if (each.labels.id == 1 && each.kind == TraceKind::kBucketDone) each.begin = each.end = 1'050'000;
  CHECK(
      contains(answer({two}, "What overlaps in ddp?"),
               "Nothing: in no traced step is an all-reduce done before the last gradient is ready. In the median "
               "step, where rank 0's last gradient is ready after 1.00 ms: bucket 0 (1.00 MB) is launched 0 ns before "
               "it and done 100.0 us after and bucket 1 (1.00 MB) is launched 500.0 us before it and done 50.0 us "
               "after. Exposed communication"));
  Run zero = ranks("zero3", 0, 500);
  for (Trace& trace : zero.traces)
    std::erase_if(trace.events, [](const TraceEvent& each) {
      return each.kind == TraceKind::kBucketReady || each.kind == TraceKind::kBucketLaunched ||
             each.kind == TraceKind::kBucketDone;
    });
  CHECK(
      contains(answer({zero}, "What overlaps in zero3?"), "Nothing: the ranks wait while collectives are in flight."));
  for (Trace& trace : zero.traces)
    for (TraceEvent& each : trace.events)
      if (each.kind == TraceKind::kCollective) each.begin -= 300'000;
  CHECK(contains(answer({zero}, "What overlaps in zero3?"),
                 "For 75 % of the time in which a collective is in flight, the rank does not wait for it."));
  zero.traces[0].events.push_back(event(TraceKind::kWait, "recv", 1'100, 1'150, {.to = 1, .id = 3}));
  CHECK(!is_asked({zero}, "What overlaps in zero3?"));
}

TEST_CASE("what overlaps in DataParallel: copies during which another device computes") {
  CHECK(answer({dp()}, "What overlaps in dp?") ==
        "Copies between devices take, on all devices together, 0.10 ms in the median step: 0.10 ms for gradients. No "
        "other device is in "
        "forward or backward meanwhile. Gradients are copied and added up after the last device's backward.");
  Run run = dp();
  run.traces[0].events.push_back(
      event(TraceKind::kCopy, "parameters", 100, 200, {.bytes = kModel, .from = 0, .to = 1}, 1));
  CHECK(
      contains(answer({run}, "What overlaps in dp?"),
               "take, on all devices together, 0.20 ms in the median step: 0.10 ms for gradients and 0.10 ms for "
               "parameters. 50 % of that time overlaps "
               "with another device's forward or backward: 0.10 ms for parameters during cpu:0's forward. Gradients"));
}

TEST_CASE("who waits: the last rank, and the first device of DataParallel") {
  CHECK(
      answer({ranks("ddp", 400, 1'000)}, "Who waits in ddp?") ==
      "rank 0 waits 0.40 ms of 2.50 ms (16 %): 0.40 ms for rank 1, the last to launch the all_reduce of bucket 0 (fc) "
      "(it took longer until then).");
  Run later = ranks("ddp", 400, 1'000);
  later.traces[1].events[1].begin += 350'000;
  CHECK(contains(answer({later}, "Who waits in ddp?"),
                 "bucket 0 (fc) (it began the step 0.35 ms later and took 0.05 ms longer until "
                 "then)"));
  CHECK(
      answer({ranks("ddp", 20, 1'000)}, "Who waits in ddp?") ==
      "Nobody for long: rank 0 waits most, 20.0 us of 2.12 ms (1 %), for rank 1, the last to launch the all_reduce of "
      "bucket 0 (fc) (it took longer until then). A late launch costs nothing while the other ranks still compute. On "
      "average over the traced steps a rank waits 10.0 us.");
  CHECK(answer({ranks("ddp", 0, 1'000)}, "Who waits in ddp?") ==
        "Nobody waits for another rank in the median step. On average over the traced steps a rank waits 0 ns.");
  CHECK(answer({dp()}, "Who waits in dp?") ==
        "cpu:1 waits 1.20 ms of 2.20 ms (55 %): 1.10 ms for cpu:0's optimizer, 0.10 ms in shorter waits; cpu:0 waits "
        "0.10 ms of 2.20 ms (5 %): 0.10 ms for cpu:1's forward (it begins 0.10 ms after cpu:0's, when its copies have "
        "arrived).");
}

TEST_CASE("DataParallel: the first device waits for a replica's forward or backward, which begins late after copies") {
  const Run run{
      .name = "dp",
      .mode = "dp",
      .traces = {
          {.events = {
               event(TraceKind::kStep, "step", 0, 1'600, {.id = 1}),
               event(TraceKind::kReplica, "replica", 0, 400, {.id = 0}), event(TraceKind::kForward, "model", 0, 400),
               event(TraceKind::kReplica, "replica", 0, 700, {.id = 1}, 1),
               event(TraceKind::kCopy, "parameters", 0, 300, {.bytes = 8, .to = 1}, 1),
               event(TraceKind::kForward, "model", 300, 700, {}, 1), event(TraceKind::kWait, "replicas", 400, 700),
               event(TraceKind::kReplica, "replica", 700, 1'100, {.id = 0}),
               event(TraceKind::kBackward, "backward", 700, 1'100),
               event(TraceKind::kReplica, "replica", 700, 1'300, {.id = 1}, 1),
               event(TraceKind::kCopy, "loss gradient", 700, 710, {.bytes = 8, .to = 1}, 1),
               event(TraceKind::kBackward, "backward", 710, 1'300, {}, 1),
               event(TraceKind::kWait, "replicas", 1'100, 1'300), event(TraceKind::kOptimizer, "SGD", 1'300, 1'600)}}}};
  CHECK(contains(answer({run}, "Who waits in dp?"),
                 "cpu:0 waits 0.50 ms of 1.60 ms (31 %): 0.30 ms for cpu:1's forward (it begins 0.30 ms after cpu:0's, "
                 "when its copies have arrived), 0.20 ms for cpu:1's backward"));
}

TEST_CASE("DataParallel: waits are drawn in the lane of the device that has no work, with their cause") {
  const auto lanes = last_steps(dp(), 1).at(0).lanes;
  std::vector<std::string> waits;
  for (const report::LaneEvent& each : lanes.at(1).events)
    if (each.event.kind == TraceKind::kWait)
      waits.push_back(each.event.name + " " + std::to_string(each.event.begin) + " " + std::to_string(each.event.end) +
                      " " + std::to_string(each.depth));
  CHECK(waits == std::vector<std::string>{"its thread to start 0 100000 0", "cpu:0's optimizer 1100000 2200000 0"});
  Run late = dp();  // cpu:0 loads data for 500 us first
  for (TraceEvent& each : late.traces[0].events)
    if (each.kind != TraceKind::kStep) each.begin += 500'000, each.end += 500'000;
  late.traces[0].events[0].end += 500'000;
  CHECK(contains(answer({late}, "Who waits in dp?"),
                 "1.10 ms for cpu:0's optimizer, 0.50 ms for cpu:0's loading of data and bookkeeping, 0.10 ms in"));
  Run after = dp();  // cpu:0 prepares its optimizer for 300 us
  for (TraceEvent& each : after.traces[0].events)
    if (each.kind == TraceKind::kOptimizer) each.begin += 300'000;
  CHECK(contains(answer({after}, "Who waits in dp?"), "1.10 ms for cpu:0, mainly its optimizer"));
  CHECK(lanes.at(1).shares.waiting == 1'200'000);
  CHECK(lanes.at(1).shares.compute == 1'000'000);
}

TEST_CASE("a wait is charged to the collectives that must end before it: first for a rank, then for the most bytes") {
  Run run{.name = "zero1", .mode = "zero1"};
  for (int r = 0; r < 2; ++r) {
    const std::int64_t late = r == 1 ? 400 : 0;
    const auto launch = [&](const char* name, std::int64_t at, std::int64_t bytes, std::int64_t id) {
      return event(TraceKind::kCollective, name, at + late, 2'000, {.bytes = bytes, .from = r, .id = id});
    };
    run.traces.push_back(
        {.rank = r,
         .events = {event(TraceKind::kStep, "step", 0, 3'000, {.id = 1}),
                    launch("reduce_scatter unit a", 1'000, kModel, 7), launch("all_reduce", 1'100, 44, 8),
                    event(TraceKind::kWait, "all_reduce", 1'100 + late, 2'000, {.id = 8})}});
  }
  const auto causes = causes_of(run, last_steps(run, 1));
  REQUIRE(causes.size() == 4);
  CHECK(causes[0].text() == "rank 0 waits for the reduce_scatter unit a, which all ranks have launched");
  CHECK(causes[0].ns == 500'000);
  CHECK(causes[1].text() == "rank 1 waits for the reduce_scatter unit a, which all ranks have launched");
  CHECK(causes[2].text() == "rank 0 waits for rank 1, the last to launch the reduce_scatter unit a");
  CHECK(causes[2].ns == 300'000);
  CHECK(causes[3].text() == "rank 0 waits for rank 1, the last to launch the all_reduce");
  CHECK(causes[3].ns == 100'000);
}

TEST_CASE("a wait for a message is for the other stage or rank until that has sent it, then for the message") {
  Run run{.name = "pipeline", .mode = "ranks"};
  // Rank 0 waits for gradients that rank 1 sends after 700 us, and has no event for the message of its next wait.
  run.traces = {
      {.rank = 0,
       .events = {event(TraceKind::kStep, "step", 0, 1'000, {.id = 1}),
                  event(TraceKind::kWait, "recv 0RECV_B0", 100, 750, {.to = 1, .id = 4}),
                  event(TraceKind::kWait, "recv keys", 800, 900, {.to = 1, .id = 5}),
                  event(TraceKind::kWait, "send keys", 900, 990, {.to = 1, .id = 6})}},
      {.rank = 1,
       .events = {event(TraceKind::kStep, "step", 0, 1'000, {.id = 1}), event(TraceKind::kForward, "model", 0, 700),
                  event(TraceKind::kCopy, "1SEND_B0", 700, 701, {.bytes = 8, .from = 1, .to = 0}),
                  event(TraceKind::kCollective, "recv keys", 930, 990, {.from = 1, .to = 0, .id = 6})}}};
  const auto steps = last_steps(run, 1);
  CHECK(steps[0].lanes[0].shares.waiting == 600'000 + 100'000 + 30'000);
  CHECK(steps[0].lanes[0].shares.communication == 50'000 + 60'000);
  std::vector<std::string> causes;
  for (const auto& cause : causes_of(run, steps)) causes.push_back(cause.text() + ", " + report::time_text(cause.ns));
  CHECK(causes == std::vector<std::string>{"rank 0 waits for stage 1 on rank 1 to send gradients, 600.0 us",
                                           "rank 0 waits for rank 1 to send keys, 100.0 us",
                                           "rank 0 waits for keys on the way to rank 1, 60.0 us",
                                           "rank 0 waits for gradients that stage 1 on rank 1 has sent, 50.0 us",
                                           "rank 0 waits for rank 1 to receive keys, 30.0 us"});
  CHECK(contains(verdict(run, steps),
                 ": the step is limited by waiting: rank 0 waits for stage 1 on rank 1 to send "
                 "gradients, 600.0 us a step on average"));
}

TEST_CASE("what memory a strategy saves, and what it needs") {
  Run zero1 = ranks("zero1", 0, 500), zero3 = ranks("zero3", 0, 500);
  zero1.memory = {kModel, kModel, kModel, 0};
  zero3.memory = {kModel / 2, kModel / 2, kModel, 3 * kModel};
  CHECK(answer({single(), zero1}, "How much memory does zero1 save?") ==
        "A rank has 3.00 MB of parameters, gradients, optimizer state and buffers of units: 25 % less than single "
        "(4.00 MB). "
        "Optimizer state 1.00 MB instead of 2.00 MB.");
  CHECK(contains(answer({single(), zero3}, "How much memory does zero3 need?"),
                 "25 % more than single (4.00 MB). Buffers of units 3.00 MB instead of 0 B."));
  Run ddp = ranks("ddp", 0, 1'000), hub = dp();
  ddp.memory = hub.memory = single().memory;
  for (const auto& [name, at, bytes] : {std::tuple("memory", 1'000, 500), std::tuple("peak memory", 2'000, 700)})
    ddp.traces[1].events.push_back(event(TraceKind::kMemory, name, at, at, {.bytes = bytes}));
  CHECK(
      answer({single(), hub, ddp, zero1}, "What memory do the strategies need?") ==
      "Parameters take 1.00 MB, gradients 1.00 MB and the optimizer's state 2.00 MB, in total 4.00 MB, on cpu:0 of "
      "single and dp, and on each rank of ddp. In dp each other device has a copy of the parameters (1.00 MB), "
      "gradients "
      "until they are added up on cpu:0 (1.00 MB), and no optimizer's state. At its peak a step needs more than at its "
      "end, for activations, temporary tensors "
      "and, with several micro-batches, gradients that are not yet added to those of the others (up to 1.00 MB): 200 B "
      "in ddp (on the rank with most).");
  CHECK(
      answer({single(), hub, ddp}, "What memory do the strategies need?")
          .ends_with(
              "Sharding saves memory: on 2 ranks each would keep 3.00 MB (1.00 MB less) with zero1, which divides the "
              "optimizer's "
              "state, 2.50 MB (1.50 MB less) with zero2 (gradients, too), and 2.00 MB (2.00 MB less) with zero3 (FSDP: "
              "parameters, too), which also needs buffers for the layers at work."));
  zero1.memory = single().memory;
  CHECK(!is_asked({single(), zero1}, "How much memory does zero1 save?"));
  CHECK(!is_asked({single(), ranks("zero1", 0, 500)}, "How much memory does zero1 save?"));
}

TEST_CASE("the verdict names steps that are much longer than the median") {
  Run run = single();
  std::vector<TraceEvent>& events = run.traces[0].events;
  const std::vector<TraceEvent> step = events;
  const std::string first = verdict(run, last_steps(run, 20));
  CHECK(first.ends_with("other (data, bookkeeping) 0 %"));
  for (std::int64_t i = 1; i < 4; ++i)
    for (TraceEvent each : step) {
      each.begin += 100'000'000 * i, each.end += 100'000'000 * i;
      if (each.kind == TraceKind::kStep) each.labels.id += i, each.end += i == 3 ? 7'000'000 : 0;
      events.push_back(each);
    }
  CHECK(contains(verdict(run, last_steps(run, 20)),
                 "; 1 of 4 steps takes more than three times the median of 3.00 ms, the longest 10.00 ms"));
}

TEST_CASE("times of steps that differ much are said to be unsteady") {
  Run steady = single(), unsteady = single();
  const std::vector<TraceEvent> step = steady.traces[0].events;
  for (std::int64_t i = 1; i < 4; ++i)
    for (TraceEvent each : step) {
      each.begin += 100'000'000 * i, each.end += 100'000'000 * i;
      if (each.kind == TraceKind::kStep) each.labels.id += i;
      steady.traces[0].events.push_back(each);
      if (each.kind == TraceKind::kStep) each.end += 2'000'000 * i;
      unsteady.traces[0].events.push_back(each);
    }
  CHECK(!is_asked({steady}, "How steady are the times?"));
  CHECK(answer({unsteady}, "How steady are the times?") ==
        "Not very: the middle half of the traced steps takes 5.00 ms to 7.00 ms in single. If other programs ran "
        "meanwhile, repeat the run without them before you compare times.");
}

TEST_CASE("where the steps of the whole run differ from the traced ones, both are told") {
  Run alone = single(), hub = dp();
  alone.step_ns = 2'900'000;
  hub.step_ns = 2'200'000;
  const char* const question = "How long is a step in the whole run?";
  CHECK(!is_asked({alone, hub}, question));
  hub.step_ns = 1'800'000;
  CHECK(answer({alone, hub}, question) ==
        "The median step takes 2.90 ms in single and 1.80 ms in dp. In the traced steps, which the answers below are "
        "about, it takes 3.00 ms in single and 2.20 ms in dp.");
}

TEST_CASE("the bytes on more devices, only for strategies whose counters follow the formula") {
  Run hub = dp(), ddp = ranks("ddp", 0, 1'000);
  count(hub, {{0, 1, Phase::kParameters, kModel, 1}, {1, 0, Phase::kGradients, kModel, 1}});
  count(ddp, {{0, 1, Phase::kGradients, kModel, 1}, {1, 0, Phase::kGradients, kModel, 1}});
  CHECK(
      answer({hub, ddp}, "What would change on 8 devices?") ==
      "For parameters and gradients, a step would send and receive 2 (n-1) P = 14.00 MB on cpu:0 of dp (here 2.00 MB) "
      "and 4 (n-1)/n P = 3.50 MB on each rank of ddp (here 2.00 MB). P = 1.00 MB is the size of the parameters.");
  count(ddp, {{0, 1, Phase::kGradients, kModel, 1}});
  CHECK(!is_asked({hub, ddp}, "What would change on 8 devices?"));
}
