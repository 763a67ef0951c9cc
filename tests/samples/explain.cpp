// Computes lanes, shares and sentences from events: pure functions, on events that are defined here.
#include "support/explain.h"

#include <doctest/doctest.h>

#include "support/explain_mesh.h"
#include "tools/report/lanes.h"

namespace {

using lockstep::Trace;
using lockstep::TraceEvent;
using lockstep::TraceKind;
using report::Run;
using report::StepView;

// A rank of DistributedDataParallel: one step of 10 us, which starts at `zero`; its bucket is launched at `launch`.
Trace rank(int r, std::int64_t zero, std::int64_t launch) {
  const auto event = [&](TraceKind kind, const char* name, std::int64_t begin, std::int64_t end,
                         lockstep::TraceLabels labels = {}) {
    return TraceEvent{.kind = kind, .name = name, .begin = zero + begin, .end = zero + end, .labels = labels};
  };
  return {.process = "ddp",
          .rank = r,
          .clock_error = r == 0 ? 0 : 50,
          .events = {event(TraceKind::kStep, "step", 0, 10'000, {.id = 7}),
                     event(TraceKind::kForward, "model", 1'000, 3'000), event(TraceKind::kForward, "fc", 1'500, 2'500),
                     event(TraceKind::kForward, "loss", 3'000, 3'200),
                     event(TraceKind::kBackward, "backward", 4'000, launch + 500),
                     event(TraceKind::kBucketReady, "fc.bias", launch - 10, launch - 10, {.bytes = 2048, .id = 0}),
                     event(TraceKind::kBucketLaunched, "fc.bias", launch, launch, {.bytes = 2048, .id = 0}),
                     event(TraceKind::kCollective, "all_reduce", launch, 9'000, {.bytes = 2048, .from = r, .id = 12}),
                     event(TraceKind::kWait, "all_reduce", launch + 600, 9'000, {.id = 12}),
                     event(TraceKind::kBucketDone, "fc.bias", 9'000, 9'000, {.bytes = 2048, .id = 0}),
                     event(TraceKind::kOptimizer, "SGD", 9'200, 9'700)}};
}

// A GPT of 2 layers and width 16 on texts of 16 characters, with 4 micro-batches.
samples::Options on_mesh(const std::string& mesh, const std::string& attention) {
  samples::Options options;
  options.gpt = samples::GptOptions{.layers = 2, .heads = 4, .width = 16, .context = 16};
  options.strategy = "parallel";
  options.micro_batches = 4;
  options.mesh = mesh;
  options.attention = attention;
  return options;
}

// A step of two ranks, in which each sends 10 bytes of keys, 20 of their gradients and 30 of gradients of parameters.
StepView step_with_messages() {
  using lockstep::parallel::Phase;
  StepView step;
  for (int rank = 0; rank < 2; ++rank) {
    report::Lane& lane = step.lanes.emplace_back();
    const auto add = [&](TraceKind kind, std::int64_t bytes, Phase phase, const char* name = "") {
      lane.events.push_back(
          {.event = {.kind = kind, .name = name, .labels = {.bytes = bytes, .phase = static_cast<int>(phase)}}});
    };
    add(TraceKind::kCollective, 10, Phase::kKeysValues);
    add(TraceKind::kCollective, 20, Phase::kActivationGradients);
    add(TraceKind::kCollective, 30, Phase::kGradients, "all_reduce");
    add(TraceKind::kCollective, 8, Phase::kGradients, "all_reduce norm");
    add(TraceKind::kWait, 0, Phase::kKeysValues);
  }
  return step;
}

Run two_ranks() { return {.mode = "ddp", .traces = {rank(0, 1'000'000, 5'000), rank(1, 1'000'000, 7'000)}}; }

}  // namespace

TEST_CASE("a message between two ranks is not mistaken for the collective with the same number") {
  Run timeline = two_ranks();
  const auto event = [](TraceKind kind, lockstep::TraceLabels labels) {
    return TraceEvent{.kind = kind, .name = "send", .begin = 1'008'000, .end = 1'008'500, .labels = labels};
  };
  timeline.traces[0].events.push_back(event(TraceKind::kCollective, {.from = 0, .to = 1, .id = 12}));
  timeline.traces[0].events.push_back(event(TraceKind::kWait, {.to = 1, .id = 12}));
  const std::vector<StepView> steps = report::last_steps(timeline, 20);
  REQUIRE(steps.size() == 1);
  REQUIRE(steps[0].arrivals.size() == 1);
  CHECK(steps[0].arrivals[0].last == 1);
  CHECK(steps[0].arrivals[0].late == 2'000);
  CHECK(samples::explain("ddp", steps[0]).find("waits 500 ns for a message to reach rank 1\n") != std::string::npos);
}

TEST_CASE("a rank waits until the last one has launched, and communicates from then on") {
  const std::vector<StepView> steps = report::last_steps(two_ranks(), 20);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].number == 7);
  REQUIRE(steps[0].lanes.size() == 2);
  const report::Shares &first = steps[0].lanes[0].shares, &second = steps[0].lanes[1].shares;
  CHECK(first.compute == 2'000 + 200 + 1'500 + 500);
  CHECK(first.waiting == 7'000 - 5'600);
  CHECK(first.communication == 9'000 - 7'000);
  CHECK(first.all() == 10'000);
  CHECK(second.compute == 2'000 + 200 + 3'500 + 500);
  CHECK(second.waiting == 0);
  CHECK(second.communication == 9'000 - 7'600);
  CHECK(second.all() == 10'000);
  REQUIRE(steps[0].arrivals.size() == 1);
  CHECK(steps[0].arrivals[0].last == 1);
  CHECK(steps[0].arrivals[0].late == 2'000);
  CHECK(steps[0].arrivals[0].is_certain);
}

TEST_CASE(
    "the overlap of a step is the sum over its ranks, of buckets that were done before the last gradient was ready") {
  Run timeline = two_ranks();
  CHECK(report::last_steps(timeline, 1).at(0).overlap.bytes == 2 * 2048);
  CHECK(report::last_steps(timeline, 1).at(0).overlap.early_bytes == 0);
  CHECK(report::last_steps(timeline, 1).at(0).overlap.early_seconds == 0);
  // Rank 1 has a second bucket, which is done while backward computes the gradients of the first one.
  const auto moment = [&](TraceKind kind, std::int64_t begin) {
    timeline.traces[1].events.push_back(
        {.kind = kind, .begin = begin, .end = begin, .labels = {.bytes = 1024, .id = 1}});
  };
  moment(TraceKind::kBucketReady, 1'005'000);
  moment(TraceKind::kBucketLaunched, 1'005'000);
  moment(TraceKind::kBucketDone, 1'006'000);
  const lockstep::parallel::CommunicationOverlap overlap = report::last_steps(timeline, 1).at(0).overlap;
  CHECK(overlap.bytes == 2 * 2048 + 1024);
  CHECK(overlap.early_bytes == 1024);
  CHECK(overlap.early_seconds == doctest::Approx(1e-6));
  CHECK(overlap.seconds == doctest::Approx(4e-6 + 2e-6 + 1e-6));
}

TEST_CASE("events that overlap are drawn in separate rows") {
  const auto lane = report::last_steps(two_ranks(), 1).at(0).lanes.at(0);
  std::vector<int> depths;
  for (const auto& each : lane.events) depths.push_back(each.depth);
  CHECK(depths == std::vector<int>{0, 1, 0, 0, -1, -1, -1, 0, -1, 0});
}

TEST_CASE("the last rank to arrive is uncertain if the clocks differ by more than the delay") {
  Run timeline = two_ranks();
  timeline.traces[1].clock_error = 2'000;
  CHECK(!report::last_steps(timeline, 1).at(0).arrivals.at(0).is_certain);
}

TEST_CASE("only the last steps that all ranks have are shown") {
  Run timeline = two_ranks();
  for (int i = 8; i < 12; ++i)
    timeline.traces[0].events.push_back({.kind = TraceKind::kStep, .begin = i, .end = i + 1, .labels = {.id = i}});
  REQUIRE(report::last_steps(timeline, 20).size() == 1);
  for (int i = 8; i < 11; ++i)
    timeline.traces[1].events.push_back({.kind = TraceKind::kStep, .begin = i, .end = i + 1, .labels = {.id = i}});
  const auto steps = report::last_steps(timeline, 2);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].number == 9);
  CHECK(steps[1].number == 10);
}

TEST_CASE("DataParallel: events belong to the replica that they work for, which otherwise waits") {
  Run timeline{.mode = "dp"};
  timeline.traces.push_back(
      {.events = {{.kind = TraceKind::kStep, .thread = 0, .begin = 0, .end = 100, .labels = {.id = 1}},
                  {.kind = TraceKind::kWait, .name = "replicas", .thread = 0, .begin = 10, .end = 60},
                  {.kind = TraceKind::kReplica, .thread = 1, .begin = 12, .end = 40, .labels = {.id = 0}},
                  {.kind = TraceKind::kForward, .name = "model", .thread = 1, .begin = 12, .end = 40},
                  {.kind = TraceKind::kReplica, .thread = 2, .begin = 15, .end = 55, .labels = {.id = 1}},
                  {.kind = TraceKind::kCopy,
                   .name = "inputs",
                   .thread = 2,
                   .begin = 20,
                   .end = 25,
                   .labels = {.bytes = 8, .from = 0, .to = 1}}}});
  const auto lanes = report::last_steps(timeline, 1).at(0).lanes;
  REQUIRE(lanes.size() == 2);
  CHECK(lanes[0].shares.compute == 28);
  CHECK(lanes[0].shares.waiting == 50 - 28);
  CHECK(lanes[0].shares.other == 50);
  CHECK(lanes[1].shares.communication == 5);
  CHECK(lanes[1].shares.other == 35);
  CHECK(lanes[1].shares.waiting == 60);
}

TEST_CASE("a gather of a sharded model, which has no single receiver, is described without one") {
  Run timeline = two_ranks();
  timeline.traces[0].events.push_back({.kind = TraceKind::kCopy,
                                       .name = "unit blocks.1",
                                       .begin = 1'000'100,
                                       .end = 1'000'400,
                                       .labels = {.bytes = 640, .from = 0}});
  const std::string text = samples::explain("zero3", report::last_steps(timeline, 1).at(0));
  CHECK_MESSAGE(
      text.find("100 ns  gathers unit blocks.1 from the other ranks' memory: 640 B counted as sent, 300 ns\n") !=
          std::string::npos,
      text);
  CHECK(text.find("-1") == std::string::npos);
}

TEST_CASE("a step is described in sentences") {
  CHECK(samples::explain("ddp", report::last_steps(two_ranks(), 1).at(0)) ==
        R"(Step 7 in mode ddp: 10.0 us
rank 0: compute 42 %, communication 20 %, waiting 14 %, other 24 %
     1.0 us  forward, 2.0 us
     3.0 us  computes the loss, 200 ns
     4.0 us  backward, 1.5 us
     5.0 us  bucket 0 is full after fc.bias: 2.0 KiB
     5.0 us  bucket 0 is launched 1.0 us into backward, after the last gradient: nothing is left to overlap with
     5.6 us  waits 3.4 us for all_reduce #12: rank 1 launched it last, 2.0 us after the first rank
     9.0 us  bucket 0 holds the mean over all ranks, 4.0 us after its launch
     9.2 us  updates the parameters (SGD), 500 ns
rank 1: compute 62 %, communication 14 %, waiting 0 %, other 24 %
     1.0 us  forward, 2.0 us
     3.0 us  computes the loss, 200 ns
     4.0 us  backward, 3.5 us
     7.0 us  bucket 0 is full after fc.bias: 2.0 KiB
     7.0 us  bucket 0 is launched 3.0 us into backward, after the last gradient: nothing is left to overlap with
     7.6 us  waits 1.4 us for all_reduce #12: rank 1 launched it last, 2.0 us after the first rank
     9.0 us  bucket 0 holds the mean over all ranks, 2.0 us after its launch
     9.2 us  updates the parameters (SGD), 500 ns
)");
}

TEST_CASE("the ranks of a mesh are described: what each has, what attention sends, and the sum of the gradients") {
  CHECK(samples::explain_mesh(on_mesh("dp=2,cp=2", "zigzag"), 4, 3, step_with_messages()) ==
        R"(Mesh of 4 ranks; dp divides the micro-batches; cp divides each text (zigzag)
rank 0: micro-batches 0 and 1 of 4; characters 0 to 3 and 12 to 15 of each text (half blocks 0 and 3 of 4)
rank 1: micro-batches 0 and 1 of 4; characters 4 to 7 and 8 to 11 of each text (half blocks 1 and 2 of 4)
rank 2: micro-batches 2 and 3 of 4; characters 0 to 3 and 12 to 15 of each text (half blocks 0 and 3 of 4)
rank 3: micro-batches 2 and 3 of 4; characters 4 to 7 and 8 to 11 of each text (half blocks 1 and 2 of 4)
Before forward, the ranks along cp compare their texts (all_gather split_sequence). In a layer's
attention, a rank sends for each micro-batch of 3 texts (C = 2 sequence blocks; B = 1536 bytes of
keys, and as many of values; G = 1536 bytes of gradients of keys, in f32):
  forward   keys and values, C - 1 times to the next rank along cp: 2 (C - 1) B = 3072 bytes
  backward  keys and values once more: 2 (C - 1) B = 3072 bytes
            their gradients, C times, until each is back on the rank of its keys: 2 C G = 6144 bytes
In this step, with 2 layers and 2 micro-batches on each of 4 ranks, all ranks sent
  keys and values: 20 bytes, by the formulas 98304
  their gradients: 40 bytes, by the formulas 98304
In backward of the last micro-batch, an all-reduce for each bucket sums the gradients of parameters over all
n = 4 ranks, along cp and dp together. Each rank sends 2 (n - 1)/n of the bytes; in this step rank 0 sent 30 bytes.
)");
}

TEST_CASE("the ranks of other meshes are described by the order of the axes and the kind of attention") {
  const auto text = [](const std::string& mesh, const std::string& attention, int ranks) {
    return samples::explain_mesh(on_mesh(mesh, attention), ranks, 3, step_with_messages());
  };
  const auto has = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  const std::string ring = text("cp=2,fsdp=2", "ring", 4);
  has(ring, "\nrank 1: micro-batches 2 and 3 of 4; characters 0 to 7 of each text (sequence block 0 of 2)\n");
  has(ring, "\nrank 2: micro-batches 0 and 1 of 4; characters 8 to 15 of each text (sequence block 1 of 2)\n");
  has(ring, "a reduce-scatter for each unit sums the gradients");
  has(ring, "along cp and fsdp together. Each rank sends (n - 1)/n of the bytes");
  const std::string ulysses = text("cp=4", "ulysses", 4);  // 3 texts x 4 characters x 16 numbers x 4 bytes
  has(ulysses, "\nrank 3: micro-batches 0 to 3 of 4; characters 12 to 15 of each text (sequence block 3 of 4)\n");
  has(ulysses, "B = 768 bytes of\nqueries, and as many of keys, of values and of results):");
  has(ulysses, "exchange sequence blocks for heads, and back: 4 (C - 1)/C B = 2304 bytes\n");
  has(ulysses, "n = 4 ranks, along cp. Each rank");
  CHECK(text("dp=4", "zigzag", 4).find("attention") == std::string::npos);
  CHECK(text("dp=1", "zigzag", 1) == "Mesh of 1 rank\nrank 0: micro-batches 0 to 3 of 4; whole texts\n");
}

TEST_CASE("the ranks of a mesh with tensor slices are described: what each has, and the sums over them") {
  samples::Options options = on_mesh("dp=2,tp=2", "zigzag");
  options.tensor_slices = 4;
  StepView step = step_with_messages();
  for (report::Lane& lane : step.lanes) {
    using lockstep::parallel::Phase;
    for (const auto& [name, phase] : {std::pair("all_reduce tensor exit", Phase::kActivations),
                                      std::pair("all_reduce tensor entry", Phase::kActivationGradients)})
      lane.events.push_back({.event = {.kind = TraceKind::kCollective,
                                       .name = name,
                                       .labels = {.bytes = 7, .phase = static_cast<int>(phase)}}});
  }
  CHECK(samples::explain_mesh(options, 4, 3, step) ==
        R"(Mesh of 4 ranks; dp divides the micro-batches; tp divides the matrices (4 tensor slices)
rank 0: micro-batches 0 and 1 of 4; whole texts; tensor slices 0 and 1 of 4
rank 1: micro-batches 0 and 1 of 4; whole texts; tensor slices 2 and 3 of 4
rank 2: micro-batches 2 and 3 of 4; whole texts; tensor slices 0 and 1 of 4
rank 3: micro-batches 2 and 3 of 4; whole texts; tensor slices 2 and 3 of 4
All ranks along tp compute the same texts. They sum over the tensor slices, for each micro-batch of 3 texts
(A = 3072 bytes: a vector of 16 numbers for each character, in f32):
  forward   the vectors of tokens, and in each layer the outputs of attention.proj and proj:
            (1 + 2 layers) A = 15360 bytes
            three numbers of the loss for each character: 576 bytes
  backward  the gradients of the inputs of head, and in each layer of attention.qkv and fc:
            (1 + 2 layers) A = 15360 bytes
Of each sum over t = 2 ranks, a rank sends 2 (t - 1)/t of the bytes.
In this step, with 2 layers and 2 micro-batches on each of 4 ranks, all ranks sent
  sums in forward: 14 bytes, by the formulas 127488
  sums of gradients: 14 bytes, by the formulas 122880
In backward of the last micro-batch, an all-reduce for each bucket sums the gradients of parameters over groups of
n = 2 ranks, along dp. Each rank sends 2 (n - 1)/n of the bytes; in this step rank 0 sent 30 bytes.
)");
  options.mesh = "tp=1";
  CHECK(samples::explain_mesh(options, 1, 3, step) ==
        "Mesh of 1 rank; matrices are cut (4 tensor slices)\nrank 0: micro-batches 0 to 3 of 4; whole texts; tensor "
        "slices 0 to 3 of 4\n");
  CHECK(samples::slice_bytes(options, 1, 3).forward == 0);
}
