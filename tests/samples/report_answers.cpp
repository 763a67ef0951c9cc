// The report's answers: each sentence and its numbers follow from made-up traces, and are left out where they do not hold.
#include <tuple>

#include "tests/samples/report_runs.h"

using namespace report_runs;

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
  Run loads = dp();
  loads.traces[0].events[0].end += 100'000;
  CHECK(contains(
      answer({loads, ranks("ddp", 0, 1'000)}, "Why is ddp faster than dp?"),
      "0.10 ms of loading data and bookkeeping, as in dp cpu:0 loads the batches of all devices (0.00 ms instead "
      "of 0.10 ms)"));
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
      "Backward overlaps with all-reduces: over all traced steps and ranks, 50 % of the bytes are all-reduced before "
      "the "
      "rank's last gradient is ready. In the median step, where rank "
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
  CHECK(contains(
      answer({run}, "What overlaps in dp?"),
      "take, on all devices together, 0.20 ms in the median step: 0.10 ms for gradients and 0.10 ms for "
      "parameters. 50 % of that time overlaps "
      "with another device's forward or backward: mainly 0.10 ms for parameters during cpu:0's forward. Gradients"));
}

TEST_CASE("what memory a strategy saves, and what it needs") {
  Run zero1 = ranks("zero1", 0, 500), zero3 = ranks("zero3", 0, 500);
  zero1.memory = {kModel, kModel, kModel, 0};
  zero3.memory = {kModel / 2, kModel / 2, kModel, 3 * kModel};
  CHECK(answer({single(), zero1}, "How much memory does zero1 save?") ==
        "Each rank holds 3.00 MB of parameters, gradients, optimizer state and buffers of units, 25 % less than single "
        "(4.00 MB). Optimizer state: 1.00 MB instead of 2.00 MB.");
  CHECK(contains(answer({single(), zero3}, "How much memory does zero3 need?"),
                 "25 % more than single (4.00 MB). Buffers of units: 3.00 MB instead of 0 B."));
  Run ddp = ranks("ddp", 0, 1'000), hub = dp();
  ddp.memory = hub.memory = single().memory;
  for (const auto& [name, at, bytes] : {std::tuple("memory", 1'000, 500), std::tuple("peak memory", 2'000, 700)})
    ddp.traces[1].events.push_back(event(TraceKind::kMemory, name, at, at, {.bytes = bytes}));
  CHECK(
      answer({single(), hub, ddp, zero1}, "What memory do the strategies need?") ==
      "Parameters take 1.00 MB, gradients 1.00 MB and optimizer state 2.00 MB: 4.00 MB in total, on cpu:0 in single "
      "and "
      "dp, and on each rank in ddp. In dp, each other device holds a copy of the parameters (1.00 MB), gradients until "
      "they are summed on cpu:0 (1.00 MB), and no optimizer state. At its peak, a step needs more memory than at its "
      "end, for activations, temporary tensors and, with several micro-batches, gradients that have not been summed "
      "yet (up to 1.00 MB): 200 B more in ddp (on the rank that needs most). In single, activations use the memory of "
      "the gradients until backward needs it; in ddp, each rank keeps that memory in buckets.");
  CHECK(
      answer({single(), hub, ddp}, "What memory do the strategies need?")
          .ends_with(
              "Sharding saves memory: of 2 ranks, each would keep 3.00 MB (1.00 MB less) with zero1, which shards the "
              "optimizer state; 2.50 MB (1.50 MB less) with zero2, which also shards the gradients; and 2.00 MB "
              "(2.00 MB less) with zero3 (FSDP), which also shards the parameters, and needs buffers for the layers "
              "that are being computed."));
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
