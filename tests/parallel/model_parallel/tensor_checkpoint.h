// Checkpoints of models that are cut: one file, on any mesh and in any mode.
#pragma once

#include <filesystem>

#include "tests/parallel/model_parallel/tensor_training.h"
#include "tests/support/files.h"

namespace tensor_training {

// A tied parameter and a buffer besides the layers that are cut.
struct TiedModel : Model {
  explicit TiedModel(const ModelOptions& options) : Model(options) {
    head.weight = tokens.weight;
    add_buffer("scale", ls::full({3}, 2.0));
  }
};

constexpr int kHalf = 2;  // before the save, and after it

// Two groups of parameters: those that decay, and the others. Slices are in the group of their parameter.
template <class Run>
std::vector<ls::optim::AdamWGroup> groups_of(Run& run) {
  std::vector<ls::optim::AdamWGroup> groups(2);
  for (const par::ShardedParameter& each : run.named_parameters())
    groups[each.shape.dim() > 1 ? 0 : 1].params.push_back(each.parameter);
  groups[1].weight_decay = 0;
  return groups;
}

// Trains to the save and saves `path`, trains on and saves `path`_end. With `from`, loads this file instead of the first
// half, after a step that leaves other values.
template <class AModel, class Run>
void save_twice(Run& run, AModel& model, const Layout& layout, const ModelOptions& options, int d,
                const std::string& path, const std::string& from = "") {
  Outcome outcome;
  ls::optim::AdamW optimizer(groups_of(run), {.lr = 1e-2});
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 10});
  ls::StateDict extra{{"note", ls::tensor({1.0f, 2.0f})}};
  const par::CheckpointParts parts = {.model = &run, .optimizer = &optimizer, .scheduler = &schedule, .extra = &extra};
  const auto train = [&](int first, int end) {
    for (int step = first; step < end; ++step) {
      train_steps(run, optimizer, layout, options, d, step, step + 1, outcome);
      schedule.step();
    }
  };
  if (from.empty()) {
    train(0, kHalf);
    for (const auto& [name, buffer] : model.named_buffers()) buffer.master().fill_(4);
    par::save_checkpoint(path, parts);
  } else {
    train(7, 8);
    par::load_checkpoint(from, parts);
  }
  train(kHalf, 2 * kHalf);
  par::save_checkpoint(path + "_end", parts);
}

template <class AModel>
void save_on(const Group& group, int slices, const Layout& layout, const ModelOptions& options, const std::string& path,
             const std::string& from = "") {
  on_mesh<AModel>(group, slices, layout, options,
                  [&](auto& run, AModel& model, int d) { save_twice(run, model, layout, options, d, path, from); });
}

// The file is that of an uncut model with the same state: it loads into one, which saves it again.
template <class AModel>
void check_loads_uncut(const ModelOptions& options, const std::string& path) {
  AModel model(options);
  par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
  ls::optim::AdamW optimizer(groups_of(run), {.lr = 1e-2});
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 10});
  ls::StateDict extra;
  const ls::CheckpointParts parts = {.model = &model, .optimizer = &optimizer, .scheduler = &schedule, .extra = &extra};
  ls::load_checkpoint(path, parts);
  CHECK(same_bits(model.norm.weight->detach(), ls::load(path).at("model.norm.weight")));
  ls::save_checkpoint(path + "_uncut", parts);
  CHECK(content_of_file(path + "_uncut") == content_of_file(path));
}

// All meshes write the files of the first, and continue from its file as it did.
template <class AModel = Model>
void check_files(int slices, const ModelOptions& options, const std::vector<Layout>& layouts,
                 const std::string& backend = "local") {
  const auto on_all = [&](const Layout& layout, const std::string& path, const std::string& from) {
    if (layout.ranks() == 1) return save_on<AModel>(nullptr, slices, layout, options, path, from);
    with_group(backend, layout.ranks(),
               [&](const Group& group) { save_on<AModel>(group, slices, layout, options, path, from); });
  };
  const std::string path = "first_" + backend;
  on_all(layouts[0], path, "");
  const std::string file = content_of_file(path), end = content_of_file(path + "_end");
  CHECK(file != end);
  for (const auto& each : ls::load(path)) CHECK_MESSAGE(!contains(each.first, "["), each.first);  // no name of a slice
  check_loads_uncut<AModel>(options, path);
  for (const Layout& layout : layouts) {
    CAPTURE(slices);
    CAPTURE(layout.describe());
    on_all(layout, "other_" + backend, "");
    CHECK(content_of_file("other_" + backend) == file);
    CHECK(content_of_file("other_" + backend + "_end") == end);
    on_all(layout, "resumed_" + backend, path);
    CHECK(content_of_file("resumed_" + backend + "_end") == end);
  }
}

}  // namespace tensor_training
