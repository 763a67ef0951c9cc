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
          Mesh{.pp = 2, .fsdp = 2, .units = {"*"}}, Mesh{.pp = 2, .fsdp = 2, .stage = 2}}) {
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
