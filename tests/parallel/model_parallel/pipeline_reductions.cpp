// When the gradients of stages are reduced over replicas, on ranks that share memory.
#include "tests/parallel/model_parallel/pipeline_reductions.h"

#include "lockstep/parallel/model_parallel/pipeline_stages_internal.h"

using namespace pipeline_reductions;

TEST_CASE("a chunk's gradients are reduced from the end of its last backward, before the last backward of others") {
  check_cases("shm", {{.axis = "dp"},
                      {.axis = "dp", .samples = 0},
                      {.axis = "dp", .schedule = par::Schedule::kZeroBubble},
                      {.axis = "dp", .schedule = par::Schedule::kInterleaved, .chunks = 2},
                      {.axis = "dp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .samples = 2},
                      {.axis = "fsdp", .stage = 1},
                      {.axis = "fsdp", .schedule = par::Schedule::kZeroBubble, .stage = 2},
                      {.axis = "fsdp", .schedule = par::Schedule::kZeroBubble, .stage = 3},
                      {.axis = "fsdp", .schedule = par::Schedule::kZeroBubble, .stage = 3, .samples = 2},
                      {.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 2},
                      {.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 3}});
}

// A fifth small bucket, or the 33rd operation, would wait for the first one, and meanwhile other stages for this rank.
TEST_CASE("in the middle of a schedule a rank launches what the group accepts without waiting") {
  with_group("shm", 4, [](const Group& group) {
    constexpr int kLayers = 3;  // of a chunk, each with two buckets
    const par::DeviceMesh mesh(group, {{"pp", 2}, {"dp", 2}});
    Layers model(4 * kLayers, 8);
    const par::PipelineOptions options{.chain = {"list.*"},
                                       .schedule = par::Schedule::kInterleaved,
                                       .micro_batches_per_rank = kMicroBatches,
                                       .chunks_per_rank = 2};
    par::cut_into_stages("Pipeline", model, mesh["pp"], options);
    par::DistributedDataParallel run(model, mesh["dp"].group(),
                                     {.bucket_cap_mb = 1e-6, .micro_batches_per_rank = kMicroBatches});
    const ls::Tensor x = ls::ones({kMicroBatches, 8});
    par::TrafficStats& traffic = run.group()->traffic();
    for (int step = 0; step < 3; ++step) {
      traffic.clear();
      ls::start_trace();
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
      const ls::Trace trace = ls::stop_trace();
      CHECK(traffic.bytes(par::Phase::kGradients) == run.plan().bytes_per_step);
      const std::vector<TraceEvent> launches = select(trace, is_launch);
      REQUIRE(launches.size() == 4 * kLayers);
      const int rank = mesh["pp"].rank();
      CHECK(launches[3].begin < action(trace, fmt::format("{}B{}", rank, kMicroBatches - 1)).begin);
      CHECK(launches[4].begin > action(trace, fmt::format("{}REDUCE_GRAD", rank)).end);
    }
  });
  with_group("shm", 4, [](const Group& group) {
    constexpr int kLayers = 17;  // of a chunk, each a unit
    const par::DeviceMesh mesh(group, {{"pp", 2}, {"fsdp", 2}});
    Layers model(4 * kLayers, 8);
    par::Parallel run(model, mesh,
                      options_of({.axis = "fsdp", .schedule = par::Schedule::kInterleaved, .chunks = 2, .stage = 2}));
    const ls::Tensor x = ls::ones({kMicroBatches, 8});
    ls::start_trace();
    run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
    const ls::Trace trace = ls::stop_trace();
    const std::vector<TraceEvent> launches = select(trace, is_launch);
    REQUIRE(launches.size() == 2 * kLayers);
    const TraceEvent last = action(trace, fmt::format("{}REDUCE_GRAD", mesh["pp"].rank()));
    CHECK(launches[31].begin < last.end);
    CHECK(launches[32].begin > last.end);
  });
}

TEST_CASE("an exception after the first reductions of a step ends the step on all ranks, and they name it") {
  check_exceptions("shm");
}

TEST_CASE("a rank that ends or stops after the first reductions of a step is named by the others") {
  check_ends("shm");
  check_faults("shm", {{"dp", SIGSTOP, 1}, {"fsdp", SIGSTOP, 2}});
}
