// Parallel on meshes with the axis pp, whose ranks are processes: the bits of one process.
#include "tests/parallel/model_parallel/mesh_pipeline.h"

using namespace mesh_pipeline;

TEST_CASE("ranks with stages, replicas and slices in processes have the bits of threads") {
  const auto check = [](const par::Partition& partition, const std::vector<Mesh>& meshes, bool is_tied = false) {
    const ModelOptions options{.dropout = 0.1, .tied = is_tied};
    const std::uint64_t want = hash_of_threads_apart({.cp = partition.sequence_blocks}, partition, options);
    for (const Mesh& mesh : meshes) {
      CAPTURE(mesh.describe());
      with_group("shm", mesh.ranks(),
                 [&](const Group& group) { CHECK(train_on_rank(group, mesh, partition, options).hash == want); });
    }
  };
  check({.micro_batches = 4, .tensor_slices = 2}, {{.pp = 2, .dp = 2, .tp = 2}, {.pp = 2, .fsdp = 2}}, true);
  check({.micro_batches = 4, .tensor_slices = 2},
        {{.pp = 2, .dp = 2, .tp = 2},
         {.pp = 2, .fsdp = 2, .tp = 2},
         {.pp = 2, .fsdp = 2, .stage = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2},
         {.pp = 4}});
  check({.micro_batches = 4, .tensor_slices = 2, .sequence_blocks = 2},
        {{.pp = 2, .dp = 2, .cp = 2}, {.pp = 2, .fsdp = 2, .cp = 2}});
  check({.micro_batches = 4, .tensor_slices = 2, .sequence_parallel = true}, {{.pp = 4, .tp = 2}});
}
