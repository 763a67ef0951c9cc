// One file for every mesh with the axis pp: ranks with stages, slices and shards save it together. Ranks are threads.
#include "tests/parallel/model_parallel/mesh_pipeline.h"
#include "tests/support/files.h"

using namespace mesh_pipeline;

namespace {

void train_step(par::Parallel& run, const par::Partition& partition, ls::optim::Optimizer& optimizer, int step) {
  const nn::CrossEntropyLoss criterion;
  optimizer.zero_grad();
  call(run, own_batch(run, partition, step, kSamples), criterion, false);
  run.clip_grad_norm_(0.5);
  optimizer.step();
}

// Trains one step and saves, or loads `from` after another step; then trains one more and saves.
void save_twice(const Group& group, const Mesh& layout, const par::Partition& partition, const ModelOptions& options,
                const std::string& path, const std::string& from) {
  ls::manual_seed(5);
  const par::DeviceMesh mesh(group, layout.axes());
  Model model(options);
  par::Parallel run(model, mesh, options_of(layout, partition, options));
  std::vector<ls::optim::AdamWGroup> groups(2);
  for (const par::ShardedParameter& each : run.named_parameters())
    groups[each.shape.dim() > 1 ? 0 : 1].params.push_back(each.parameter);
  groups[1].weight_decay = 0;
  ls::optim::AdamW optimizer(groups, {.lr = 1e-2});
  const par::CheckpointParts parts = {.model = &run, .optimizer = &optimizer};
  train_step(run, partition, optimizer, from.empty() ? 0 : 9);
  if (from.empty())
    par::save_checkpoint(path, parts);
  else
    par::load_checkpoint(from, parts);
  train_step(run, partition, optimizer, 1);
  par::save_checkpoint(path + "_end", parts);
}

void save_on(const Mesh& layout, const par::Partition& partition, const ModelOptions& options, const std::string& path,
             const std::string& from = "") {
  if (layout.ranks() == 1) return save_twice(nullptr, layout, partition, options, path, from);
  with_threads("local", layout.ranks(),
               [&](const Group& group) { save_twice(group, layout, partition, options, path, from); });
}

// All meshes write the files of the first one, and continue from its file as it did.
void check_files(const par::Partition& partition, const ModelOptions& options, const std::vector<Mesh>& meshes) {
  save_on(meshes[0], partition, options, "of_first_mesh");
  const std::string file = content_of_file("of_first_mesh"), end = content_of_file("of_first_mesh_end");
  REQUIRE(file != end);
  for (std::size_t i = 1; i < meshes.size(); ++i) {
    CAPTURE(meshes[i].describe());
    save_on(meshes[i], partition, options, "of_mesh");
    CHECK(content_of_file("of_mesh") == file);
    CHECK(content_of_file("of_mesh_end") == end);
    save_on(meshes[i], partition, options, "of_mesh_resumed", "of_first_mesh");
    CHECK(content_of_file("of_mesh_resumed_end") == end);
  }
}

}  // namespace

TEST_CASE("meshes of stages, replicas, shards and slices write one file") {
  check_files({.micro_batches = 4, .tensor_slices = 2}, {.dropout = 0.1, .norm = true},
              {{},
               {.pp = 2},
               {.pp = 2, .dp = 2},
               {.pp = 2, .tp = 2},
               {.pp = 2, .fsdp = 2, .stage = 3},
               {.pp = 2, .dp = 2, .tp = 2},
               {.pp = 2, .fsdp = 2, .tp = 2, .stage = 1},
               {.pp = 2, .fsdp = 2, .tp = 2, .schedule = par::Schedule::kInterleaved, .chunks = 2}});
}

TEST_CASE("meshes of stages and sequence blocks write one file") {
  check_files({.micro_batches = 4, .tensor_slices = 2, .sequence_blocks = 2}, {.frozen = true},
              {{.cp = 2}, {.pp = 2, .cp = 2}, {.pp = 2, .cp = 2, .tp = 2}});
}

TEST_CASE("meshes of stages that share parameters write one file") {
  check_files({.micro_batches = 4, .tensor_slices = 2}, {.dropout = 0.1, .tied = true},
              {{}, {.dp = 2, .tp = 2}, {.pp = 4}, {.pp = 2, .dp = 2}, {.pp = 2, .fsdp = 2, .tp = 2, .stage = 3}});
}
