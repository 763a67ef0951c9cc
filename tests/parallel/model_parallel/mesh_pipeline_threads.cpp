// Parallel on meshes with the axis pp: the bits of one partition on every mesh. Ranks are threads.
#include "lockstep/tensor/random/random_draws_internal.h"
#include "tests/parallel/delayed/late_backend.h"
#include "tests/parallel/model_parallel/mesh_pipeline.h"

using namespace mesh_pipeline;

namespace {

constexpr int kRanks = 8;

// All meshes of kRanks ranks with the axis pp that the partition accepts; fsdp in stages 1 to 3. The schedules in turn.
std::vector<Mesh> meshes_of(const par::Partition& partition) {
  std::vector<Mesh> meshes;
  const auto add = [&](Mesh mesh) {
    const int micro_batches = partition.micro_batches / (mesh.dp * mesh.fsdp);
    const bool can_interleave = 2 * mesh.pp <= kModules && micro_batches % mesh.pp == 0;
    if (meshes.size() % 4 == 1) mesh.schedule = par::Schedule::kGPipe;
    if (meshes.size() % 4 == 2 && can_interleave) mesh.schedule = par::Schedule::kInterleaved, mesh.chunks = 2;
    if (meshes.size() % 4 == 3) mesh.schedule = par::Schedule::kZeroBubble;
    meshes.push_back(mesh);
  };
  for (int pp = 2; pp <= kRanks; pp *= 2) {
    for (int tp = 1; tp <= partition.tensor_slices; tp *= 2) {
      const int data = kRanks / (pp * tp * partition.sequence_blocks);
      if (data == 0 || partition.micro_batches % data != 0) continue;
      add({.pp = pp, .dp = data, .cp = partition.sequence_blocks, .tp = tp});
      for (int stage = 1; stage <= 3 && data > 1; ++stage)
        add({.pp = pp, .fsdp = data, .cp = partition.sequence_blocks, .tp = tp, .stage = stage});
    }
  }
  return meshes;
}

// Sanitizers run some of the meshes, others in each test.
void check_all_meshes(const par::Partition& partition, const ModelOptions& options) {
  const Outcome want = train({.cp = partition.sequence_blocks}, partition, options);
  const std::vector<Mesh> meshes = meshes_of(partition);
  CHECK(!meshes.empty());
  const std::size_t every = LOCKSTEP_SLOWDOWN > 1 ? 5 : 1;
  for (std::size_t i = meshes.size() % every; i < meshes.size(); i += every) {
    CAPTURE(meshes[i].describe());
    check_equal(train(meshes[i], partition, options), want);
  }
}

}  // namespace

TEST_CASE("every mesh of 8 ranks with stages has the bits of one process: two slices") {
  check_all_meshes({.micro_batches = 8, .tensor_slices = 2}, {.dropout = 0.1});
}
TEST_CASE("every mesh of 8 ranks with stages has the bits of one process: sequence parallelism") {
  check_all_meshes({.micro_batches = 4, .tensor_slices = 4, .sequence_parallel = true}, {.dropout = 0.1});
}
TEST_CASE("every mesh of 8 ranks with stages: sequence blocks and slices") {
  check_all_meshes({.micro_batches = 4, .tensor_slices = 2, .sequence_blocks = 2}, {.dropout = 0.1});
}
TEST_CASE("every mesh of 8 ranks with stages: four sequence blocks") {
  check_all_meshes({.micro_batches = 2, .sequence_blocks = 4, .attention = Kind::kUlysses}, {});
}
TEST_CASE("every mesh of 8 ranks with stages: parameters that chain modules share") {
  check_all_meshes({.micro_batches = 8, .tensor_slices = 2}, {.dropout = 0.1, .tied = true});
}
TEST_CASE("every mesh of 8 ranks with stages: a shared vocabulary in slices") {
  check_all_meshes({.micro_batches = 4, .tensor_slices = 4, .sequence_parallel = true},
                   {.gathers = false, .tied = true});
}
TEST_CASE("every mesh of 8 ranks with stages: shared parameters and sequence blocks") {
  check_all_meshes({.micro_batches = 4, .tensor_slices = 2, .sequence_blocks = 2}, {.dropout = 0.1, .tied = true});
}

TEST_CASE("random models in stages: every stage of sharding with every schedule has the bits of a run without stages") {
  std::vector<RandomCase> cases = random_cases(0, {2, 4});
  for (const RandomCase& each : random_cases(100, {2, 4})) cases.push_back(each);
  const std::size_t every = LOCKSTEP_SLOWDOWN > 1 ? 5 : 1;
  for (std::size_t i = 0; i < cases.size(); i += every) {
    const RandomCase& of = cases[i];
    CAPTURE(of.describe());
    check_equal(train(of.mesh, kOfRandom, of.options, of.steps),
                train(of.without_stages, kOfRandom, of.options, of.steps));
  }
}

// Threads of these backends share random numbers, unless each has a state of its own.
TEST_CASE("random models in stages: the bits of a run without stages where messages are late" *
          doctest::skip(!late_backend())) {
  for (const RandomCase& of : random_cases(200, {2, 4})) {
    CAPTURE(of.describe());
    const Outcome want = train(of.without_stages, kOfRandom, of.options, of.steps);
    std::vector<Group> kept(static_cast<std::size_t>(of.mesh.ranks()));  // until all ranks are done
    with_threads(late_backend(), of.mesh.ranks(),
                 [&](const Group& group) {
                   kept[static_cast<std::size_t>(group->rank())] = group;
                   const std::shared_ptr<void> own = ls::random::become_rank();
                   check_equal(train_on_rank(group, of.mesh, kOfRandom, of.options, of.steps), want);
                 },
                 {.reduction = par::Reduction::kCanonical});
  }
}
