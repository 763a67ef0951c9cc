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

TEST_CASE("random models in stages in processes: every stage of sharding with every schedule has the bits of threads") {
  for (const RandomCase& of : random_cases(400, {2, 4})) {
    CAPTURE(of.describe());
    const std::uint64_t want = hash_of_threads_apart(of.without_stages, kOfRandom, of.options, of.steps);
    with_group("shm", of.mesh.ranks(), [&](const Group& group) {
      CHECK(train_on_rank(group, of.mesh, kOfRandom, of.options, of.steps).hash == want);
    });
  }
}

// Larger activations than what a send keeps: before there are outboxes, the bytes move only while their sender waits, be it
// for other slices.
TEST_CASE("stages in slices with large activations, in the first steps, have the bits of one process") {
  constexpr std::int64_t kWide = 16 * 1024;
  const auto train_wide = [](const Group& group, const Mesh& layout) {
    ls::manual_seed(5);
    nn::Sequential model;
    for (int layer = 0; layer < 4; ++layer) {
      model.push_back(nn::Linear(kWide, 4));
      model.push_back(nn::Linear(4, kWide));
    }
    const par::DeviceMesh mesh(group, layout.axes());
    par::ParallelOptions options = {.partition = {.micro_batches = 4, .tensor_slices = 2},
                                    .chain = {"*"},
                                    .schedule = layout.schedule,
                                    .chunks_per_rank = layout.chunks};
    for (int layer = 0; layer < 8; ++layer)
      options.plan.emplace_back(fmt::format("{}", layer), layer % 2 == 0 ? par::ParallelStyle(par::ColwiseParallel{})
                                                                         : par::ParallelStyle(par::RowwiseParallel{}));
    par::Parallel run(model, mesh, options);
    const ls::Tensor x = ls::randn({run.micro_batches(), kWide});
    ls::optim::SGD optimizer(run.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      run.backward(x, x, [&](const ls::Tensor& in, const ls::Tensor& y) { return nn::mse_loss(model(in), y); });
      optimizer.step();
    }
    std::uint64_t hash = 0;
    run.gathered([&] { hash = nn::parameter_hash(model.state_dict()); });
    return hash;
  };
  const NumberPipe box;
  check_processes(1, [&](int /*rank*/) { box.send(std::bit_cast<std::int64_t>(train_wide(nullptr, {}))); });
  const auto want = std::bit_cast<std::uint64_t>(box.receive());
  for (const Mesh& mesh : {Mesh{.pp = 2, .tp = 2}, Mesh{.pp = 4, .tp = 2},
                           Mesh{.pp = 2, .tp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2}}) {
    CAPTURE(mesh.describe());
    with_group("shm", mesh.ranks(), [&](const Group& group) { CHECK(train_wide(group, mesh) == want); });
  }
}
