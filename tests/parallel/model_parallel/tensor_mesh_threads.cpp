// Parallel on meshes with the axis tp: the bits of one partition on every mesh. Ranks are threads.
#include <mutex>
#include <optional>

#include "tests/parallel/model_parallel/context_training.h"
#include "tests/parallel/model_parallel/put_together.h"
#include "tests/support/files.h"

using namespace context_training;

namespace {

struct Result {
  std::vector<double> losses;
  put_together::Parameters parameters;
  std::string file;  // the checkpoint
  std::uint64_t hash = 0;
};

const par::ParallelPlan kPlan = {{"blocks.*.attention.query", par::ColwiseParallel{}},
                                 {"blocks.*.attention.keys", par::ColwiseParallel{.parts = 2}},
                                 {"blocks.*.attention.proj", par::RowwiseParallel{}},
                                 {"blocks.*.up", par::ColwiseParallel{}},
                                 {"blocks.*.down", par::RowwiseParallel{}}};

void train_on_mesh(const Group& group, const std::vector<par::MeshAxis>& axes, const par::ParallelOptions& options,
                   double dropout, Result& result, std::mutex& mutex) {
  ls::manual_seed(5);
  const par::DeviceMesh mesh(group, axes);
  nn::DeferredInit deferred;
  Model model({.dropout = dropout});
  deferred.end();
  par::Parallel run(model, mesh, options);
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  const nn::CrossEntropyLoss criterion;
  std::vector<double> losses;
  const std::int64_t each = kSamples / options.partition.micro_batches;
  for (int step = 0; step < 3; ++step) {
    std::vector<ls::Tensor> mine;
    for (const ls::Tensor& whole : batch_of(step))
      mine.push_back(whole.narrow(0, each * run.first_micro_batch(), each * run.micro_batches()));
    mine = run.split_sequence(mine);
    optimizer.zero_grad();
    const auto loss = [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
      return criterion(run.module()(x).flatten(0, 1), y.flatten());
    };
    losses.push_back(run.backward(std::vector{mine[0], mine[1]}, mine[2], loss).item<double>());
    losses.push_back(run.clip_grad_norm_(0.5));
    optimizer.step();
    losses.push_back(run.evaluate(std::vector{mine[0], mine[1]}, mine[2], loss).item<double>());
  }
  par::save_checkpoint("mesh.safetensors", {.model = &run, .optimizer = &optimizer});
  std::uint64_t hash = 0;
  run.gathered([&] { hash = nn::parameter_hash(model.state_dict()); });
  const std::lock_guard lock(mutex);
  if (result.losses.empty()) {
    result.losses = losses;
    result.file = content_of_file("mesh.safetensors");
    result.hash = hash;
  }
  CHECK(result.hash == hash);
  CHECK(result.losses == losses);
  for (const par::ShardedParameter& piece : run.named_parameters()) put_together::put(piece, result.parameters);
}

struct Mesh {
  int ranks;
  std::vector<par::MeshAxis> axes;
  int stage = 3;
};

void check_same(const par::Partition& partition, const std::vector<Mesh>& meshes, double dropout = 0.1) {
  std::optional<Result> want;
  for (const Mesh& mesh : meshes) {
    std::string text;
    for (const par::MeshAxis& axis : mesh.axes) text += fmt::format("{} {} ", axis.name, axis.size);
    CAPTURE(text);
    Result got;
    std::mutex mutex;
    const par::ParallelOptions options{
        .partition = partition, .plan = kPlan, .stage = mesh.stage, .units = {"blocks.*"}};
    if (mesh.ranks == 1)
      train_on_mesh(nullptr, mesh.axes, options, dropout, got, mutex);
    else
      with_threads("local", mesh.ranks,
                   [&](const Group& group) { train_on_mesh(group, mesh.axes, options, dropout, got, mutex); });
    if (!want) want = got;
    CHECK(got.losses == want->losses);
    CHECK(got.parameters == want->parameters);
    CHECK(got.file == want->file);
    CHECK(got.hash == want->hash);
  }
}

}  // namespace

TEST_CASE("every mesh of a partition with slices has the same bits") {
  check_same({.micro_batches = 4, .tensor_slices = 2}, {{1, {{"dp", 1}}},
                                                        {2, {{"tp", 2}}},
                                                        {4, {{"dp", 2}, {"tp", 2}}},
                                                        {4, {{"tp", 2}, {"dp", 2}}},
                                                        {4, {{"fsdp", 2}, {"tp", 2}}},
                                                        {8, {{"fsdp", 4}, {"tp", 2}}, 2},
                                                        {4, {{"fsdp", 4}}, 1}});
  check_same({.micro_batches = 4, .tensor_slices = 4}, {{1, {{"dp", 1}}},
                                                        {4, {{"tp", 4}}},
                                                        {8, {{"dp", 2}, {"tp", 4}}},
                                                        {8, {{"fsdp", 4}, {"tp", 2}}},
                                                        {8, {{"fsdp", 2}, {"tp", 4}}, 1}});
}

TEST_CASE("0 tensor slices are as many as ranks along tp, for Parallel and for parallelize") {
  for (const int ranks : {1, 2, 4}) {
    with_threads("local", ranks, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"tp", ranks}});
      const auto cut = [&](bool with_parallel, int slices) {
        ls::manual_seed(5);
        Model model({.dropout = 0.1});
        std::optional<par::Parallel> run;
        if (with_parallel)
          run.emplace(model, mesh, par::ParallelOptions{.partition = {.tensor_slices = slices}, .plan = kPlan});
        else
          par::parallelize(model, mesh["tp"], {.tensor_slices = slices, .plan = kPlan});
        std::vector<std::string> names;
        for (const auto& [name, parameter] : model.named_parameters()) names.push_back(name);
        return names;
      };
      const std::vector<std::string> want = cut(true, ranks);
      CHECK(cut(true, 0) == want);
      CHECK(cut(false, 0) == want);
      CHECK(want.size() > 0);
    });
  }
}

TEST_CASE("slices and sequence blocks") {
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    const double dropout = kind == Kind::kUlysses ? 0 : 0.1;
    check_same({.micro_batches = 4, .tensor_slices = 2, .sequence_blocks = 2, .attention = kind},
               {{2, {{"cp", 2}}},
                {4, {{"cp", 2}, {"tp", 2}}},
                {8, {{"dp", 2}, {"cp", 2}, {"tp", 2}}},
                {8, {{"fsdp", 2}, {"cp", 2}, {"tp", 2}}},
                {4, {{"fsdp", 2}, {"cp", 2}}, 1}},
               dropout);
  }
}

TEST_CASE("dropout in attention with Ulysses between layers that are cut is an error, on any number of ranks") {
  for (const int tp : {1, 2}) {
    with_threads("local", 2 * tp, [&](const Group& group) {
      const par::DeviceMesh mesh(group, {{"cp", 2}, {"tp", tp}});
      Model model({.dropout = 0.1});
      par::Parallel run(
          model, mesh,
          {.partition = {.tensor_slices = 2, .sequence_blocks = 2, .attention = Kind::kUlysses}, .plan = kPlan});
      const std::vector<ls::Tensor> mine = run.split_sequence(batch_of(0));
      const auto loss = [&](const std::vector<ls::Tensor>& x, const ls::Tensor&) { return run.module()(x).sum(); };
      CHECK_THROWS_WITH_AS(
          run.backward(std::vector{mine[0], mine[1]}, mine[2], loss),
          doctest::Contains(", whose outputs tensor parallelism has cut; with kUlysses the heads of this rank, and so "
                            "the masks, depend on the mesh: use kRingZigzag or kRing, or no dropout in attention"),
          ls::InvalidArgument);
    });
  }
}
