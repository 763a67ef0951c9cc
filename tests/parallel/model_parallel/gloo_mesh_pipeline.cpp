// Stages of sharded models over gloo, where a gather is a collective: all ranks have to start the same ones in one order.
#include "tests/parallel/model_parallel/mesh_pipeline.h"

using namespace mesh_pipeline;

TEST_CASE("stages of sharded models over gloo have the bits of threads, also if a rank has no samples") {
  const par::Partition partition{.micro_batches = 4};
  for (const std::int64_t samples : {kSamples, std::int64_t{3}, std::int64_t{2}}) {
    const ModelOptions options{.dropout = 0.1, .tied = samples != 3};
    const std::uint64_t want = hash_of_threads_apart({.dp = 2}, partition, options, {.samples = samples});
    for (const Mesh& mesh :
         {Mesh{.pp = 2, .fsdp = 2}, Mesh{.pp = 2, .fsdp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2},
          Mesh{.pp = 2, .fsdp = 2, .units = {"*"}}, Mesh{.pp = 2, .fsdp = 2, .stage = 2},
          Mesh{.pp = 2, .fsdp = 2, .schedule = par::Schedule::kZeroBubble}}) {
      CAPTURE(mesh.describe());
      CAPTURE(samples);
      with_group("gloo", mesh.ranks(),
                 [&](const Group& group) {
                   CHECK(train_on_rank(group, mesh, partition, options, {.samples = samples}).hash == want);
                 },
                 {.reduction = par::Reduction::kCanonical});
    }
  }
}

TEST_CASE("random models in stages over gloo: every stage of sharding with every schedule has the bits of threads") {
  for (const RandomCase& of : random_cases(300, {2, 4})) {
    CAPTURE(of.describe());
    const std::uint64_t want = hash_of_threads_apart(of.without_stages, kOfRandom, of.options, of.steps);
    with_group(
        "gloo", of.mesh.ranks(),
        [&](const Group& group) { CHECK(train_on_rank(group, of.mesh, kOfRandom, of.options, of.steps).hash == want); },
        {.reduction = par::Reduction::kCanonical});
  }
}

// With zb1p the first stage gathers its units twice for each micro-batch, the last one three times.
TEST_CASE("stages of sharded models over gloo gather the bytes of the plan") {
  const par::Partition partition{.micro_batches = 4};
  const auto planned = [&](par::Schedule schedule) {
    const Mesh layout{.pp = 2, .fsdp = 2, .schedule = schedule};
    const NumberPipe first, last;
    with_group("gloo", layout.ranks(), [&](const Group& group) {
      const par::DeviceMesh mesh(group, layout.axes());
      Model model({});
      par::Parallel run(model, mesh, options_of(layout, partition));
      check_gathered_bytes(run, partition);
      if (mesh["fsdp"].rank() == 0) (mesh["pp"].rank() == 0 ? first : last).send(run.training_plan().gather_bytes);
    });
    return std::pair(first.receive(), last.receive());
  };
  const auto whole = planned(par::Schedule::k1F1B), split = planned(par::Schedule::kZeroBubble);
  CHECK(split.first == whole.first);
  CHECK(2 * split.second == 3 * whole.second);
}
