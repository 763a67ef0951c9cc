// Pipelines have the bits of GradientAccumulation, with any ranks, schedule and model.
#include "tests/parallel/model_parallel/pipeline_training.h"

#include <mutex>

using namespace pipeline_training;

namespace {

constexpr par::Schedule kGPipe = par::Schedule::kGPipe, kInterleaved = par::Schedule::kInterleaved,
                        kZeroBubble = par::Schedule::kZeroBubble;

const std::vector<Layout> kJoint = {{.ranks = 2},  // B alone: schedules for models that recompute activations
                                    {.ranks = 3, .schedule = kGPipe},
                                    {.ranks = 4, .micro_batches = 6},
                                    {.ranks = 2, .chunks = 3, .schedule = kInterleaved}};

std::vector<Layout> with_zero_bubble(std::vector<Layout> layouts) {
  for (const int ranks : {2, 4}) layouts.push_back({.ranks = ranks, .micro_batches = 6, .schedule = kZeroBubble});
  return layouts;
}
const std::vector<Layout> kLayouts = with_zero_bubble(kJoint);

}  // namespace

TEST_CASE("pipeline: one to eight ranks have the bits of gradient accumulation") {
  const ModelOptions options{.dropout = 0.1};
  check_same("local", options,
             {{.ranks = 1},
              {.ranks = 1, .micro_batches = 1},
              {.ranks = 2, .micro_batches = 1},
              {.ranks = 2, .micro_batches = 8},
              {.ranks = 8, .micro_batches = 8},
              {.ranks = 4, .schedule = kGPipe},
              {.ranks = 2, .micro_batches = 6, .schedule = kGPipe},
              {.ranks = 1, .chunks = 4, .schedule = kInterleaved},
              {.ranks = 4, .micro_batches = 8, .chunks = 2, .schedule = kInterleaved},
              {.ranks = 2, .micro_batches = 6, .chunks = 4, .schedule = kInterleaved},
              {.ranks = 1, .schedule = kZeroBubble},
              {.ranks = 2, .micro_batches = 8, .schedule = kZeroBubble},
              {.ranks = 3, .micro_batches = 1, .schedule = kZeroBubble},
              {.ranks = 8, .micro_batches = 8, .schedule = kZeroBubble}});
}

TEST_CASE("pipeline: batch norm, dropout and recomputation") {
  check_same("local", {.dropout = 0.2, .norm = true, .recompute = true}, kJoint);
  check_same("local", {.dropout = 0.2, .norm = true}, kLayouts);
}
TEST_CASE("pipeline: frozen parameters, and a stage without gradients") {
  check_same("local", {.frozen = true}, kLayouts);
  check_same("local", {.unused = true}, kLayouts);
}
TEST_CASE("pipeline: mixed precision, deferred initialisation") {
  check_same("local", {.dropout = 0.1, .bf16 = true, .deferred = true}, kLayouts);
}
TEST_CASE("pipeline: a transposed boundary, two inputs") {
  check_same("local", {.turned = true, .two_inputs = true}, kLayouts);
}
TEST_CASE("pipeline: fewer samples than micro-batches, weights by samples") {
  check_same("local", {.samples = 3}, kLayouts);
  check_same("local", {.weighting = par::Weighting::kSamples, .samples = 13}, kLayouts);
}
TEST_CASE("pipeline: stages of your own") {
  check_same("local", {}, {{.ranks = 3, .split_before = {"blocks.1", "blocks.5"}}});
}

TEST_CASE("pipeline: parameters that modules of the chain share have the sums of one rank") {
  const std::vector<Layout> layouts = {{.ranks = 2},
                                       {.ranks = 3, .schedule = kGPipe},
                                       {.ranks = 4},
                                       {.ranks = 8},
                                       {.ranks = 1, .chunks = 4, .schedule = kInterleaved},
                                       {.ranks = 2, .chunks = 4, .schedule = kInterleaved}};
  check_same("local", {.dropout = 0.1, .norm = true, .recompute = true, .tied = true}, layouts);
  check_same("local", {.bf16 = true, .deferred = true, .tied = true, .samples = 13}, with_zero_bubble(layouts));
  // About the numbers of accumulation, whose sums have another order.
  const Outcome tied = train_on_rank(nullptr, {.tied = true}, {}), alone = train_alone({.tied = true}, 4);
  for (std::size_t i = 0; i < tied.losses.size(); ++i)
    CHECK(tied.losses[i] == doctest::Approx(alone.losses[i]).epsilon(1e-5));
  CHECK(tied.norms[0] == doctest::Approx(alone.norms[0]).epsilon(1e-5));
}

TEST_CASE("pipeline: bytes of the boundaries, and of a parameter that two stages share") {
  constexpr std::int64_t kRanks = 2, kRows = 4, kActivation = kRows * kTime * kWidth * 4;
  std::mutex mutex;
  std::map<par::Phase, std::int64_t> sent;
  with_group("local", kRanks, [&](const Group& group) {
    ls::manual_seed(3);
    Model model({.blocks = 4});
    dynamic_cast<nn::Linear&>(*model.head.children()[1]).weight = model.embed.tokens.weight;
    const par::DeviceMesh mesh(group, {{"pp", kRanks}});
    par::Pipeline run(model, mesh["pp"], {.chain = {"embed", "blocks.*", "head"}, .micro_batches_per_rank = 4});
    const ls::Tensor ids = ls::randint(0, kVocabulary, {4 * kRows, kTime + 1});
    call(run, {}, ids, /*evaluates=*/false);
    CHECK(run.plan().boundary_bytes == 4 * kActivation);
    const std::lock_guard lock(mutex);
    for (const par::LinkTraffic& link : run.traffic().step_links()) {
      if (link.from == group->rank()) sent[link.phase] += link.bytes;
    }
  });
  CHECK(sent[par::Phase::kActivations] == 4 * kActivation);
  CHECK(sent[par::Phase::kActivationGradients] == 4 * kActivation);
  CHECK(sent[par::Phase::kGradients] == 2 * kVocabulary * kWidth * 4);
}

TEST_CASE("pipeline: zb1p refuses to recompute twice, on all ranks") {
  with_group("local", 2, [](const Group& group) {
    std::string error;
    try {
      train_on_rank(group, {.recompute = true}, {.ranks = 2, .schedule = kZeroBubble});
    } catch (const ls::Error& caught) {
      error = caught.what();
    }
    CAPTURE(error);
    CHECK(error.find("checkpoint") != std::string::npos);
  });
}

TEST_CASE("the plan counts the activations that a rank holds, and those that also have gradients until W") {
  with_threads("local", 2, [&](const Group& group) {
    Model model({.blocks = 2});
    const par::DeviceMesh mesh(group, {{"pp", 2}});
    const par::Pipeline run(
        model, mesh["pp"],
        {.chain = {"embed", "blocks.*", "head"}, .schedule = par::Schedule::kZeroBubble, .micro_batches_per_rank = 4});
    CHECK(run.plan().in_flight == std::vector{2, 2});
    CHECK(run.plan().deferred == std::vector{1, 2});
    CHECK(contains(run.plan().to_string(), "\ndeferred  1, 2 of them between I and W, by rank: "));
  });
}
