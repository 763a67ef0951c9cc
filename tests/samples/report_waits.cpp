// The report's answers about waits, and the lanes in which they are drawn, from made-up traces.
#include "tests/samples/report_runs.h"

using namespace report_runs;

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
