// Checkpoints of models in stages: one file, on any number of ranks and in any mode.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "tests/parallel/model_parallel/pipeline_training.h"

namespace pipeline_training {

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

constexpr int kHalf = 2;  // steps before the save, and after it

// One step of rank `d` of `replicas`, which share the samples.
template <class Run>
void train_step(Run& run, ls::optim::Optimizer& optimizer, const ModelOptions& options, int step, int d, int replicas) {
  const std::int64_t rows = options.samples / replicas;
  const ls::Tensor ids = (ls::arange(options.samples * (kTime + 1)) * (step + 5) % kVocabulary)
                             .reshape({-1, kTime + 1})
                             .narrow(0, d * rows, rows);
  optimizer.zero_grad();
  call(run, options, ids, /*evaluates=*/false);
  run.clip_grad_norm_(0.5);
  optimizer.step();
}

// Weights decay, other parameters do not. A stage may have no parameters of a group.
template <class Group, class Run>
std::vector<Group> groups_of(Run& run) {
  std::vector<Group> groups(2);
  for (const par::ShardedParameter& each : run.named_parameters())
    groups[each.shape.dim() > 1 ? 0 : 1].params.push_back(each.parameter);
  groups[1].weight_decay = 0;
  return groups;
}
struct WithAdamW : ls::optim::AdamW {
  template <class Run>
  explicit WithAdamW(Run& run) : AdamW(groups_of<ls::optim::AdamWGroup>(run), {.lr = 1e-2}) {}
};
struct WithMomentum : ls::optim::SGD {
  template <class Run>
  explicit WithMomentum(Run& run)
      : SGD(groups_of<ls::optim::SGDGroup>(run), {.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1}) {}
};

struct Files {
  std::string path;       // the file of the middle; that of the end is path + "_end"
  std::string from = {};  // a file to load in the middle; empty: train up to there
};

// Trains to the middle and saves, or loads there after a step that leaves other values; trains to the end and saves.
template <class AnOptimizer, class Run>
void save_twice(Run& run, const ModelOptions& options, const Files& files, int d = 0, int replicas = 1) {
  AnOptimizer optimizer(run);
  ls::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 10});
  ls::StateDict extra{{"note", ls::tensor({1.0f, 2.0f})}};
  const par::CheckpointParts parts = {.model = &run, .optimizer = &optimizer, .scheduler = &schedule, .extra = &extra};
  const auto train = [&](int first, int end) {
    for (int step = first; step < end; ++step) {
      train_step(run, optimizer, options, step, d, replicas);
      schedule.step();
    }
  };
  if (files.from.empty()) {
    train(0, kHalf);
    par::save_checkpoint(files.path, parts);
  } else {
    train(9, 10);
    par::load_checkpoint(files.from, parts);
  }
  train(kHalf, 2 * kHalf);
  par::save_checkpoint(files.path + "_end", parts);
}

template <class AnOptimizer>
void save_alone(const ModelOptions& options, int micro_batches, const Files& files) {
  ls::manual_seed(3);
  Model model(options);
  par::GradientAccumulation run(model, {.micro_batches = micro_batches});
  save_twice<AnOptimizer>(run, options, files);
}

// On one rank of the layout; a null group: the only one.
template <class AnOptimizer>
void save_in_stages(const Group& group, const ModelOptions& options, const Layout& layout, const Files& files) {
  ls::manual_seed(3);
  Model model(options);
  const par::DeviceMesh mesh(group, {{"pp", layout.ranks}});
  par::Pipeline run(model, mesh["pp"],
                    {.chain = {"embed", "blocks.*", "head"},
                     .split_before = layout.split_before,
                     .schedule = layout.schedule,
                     .micro_batches_per_rank = layout.micro_batches,
                     .chunks_per_rank = layout.chunks});
  save_twice<AnOptimizer>(run, options, files);
}

template <class AnOptimizer>
void save_on_ranks(const std::string& backend, const ModelOptions& options, const Layout& layout, const Files& files) {
  if (layout.ranks == 1) return save_in_stages<AnOptimizer>(nullptr, options, layout, files);
  with_group(backend, layout.ranks,
             [&](const Group& group) { save_in_stages<AnOptimizer>(group, options, layout, files); });
}

// All layouts write the files of GradientAccumulation, and continue from its file as it did.
template <class AnOptimizer>
void check_files(const std::string& backend, const ModelOptions& options, const std::vector<Layout>& layouts) {
  int micro_batches = 0;
  std::string file, end;
  for (const Layout& layout : layouts) {
    CAPTURE(layout.describe());
    if (layout.micro_batches != micro_batches) {
      micro_batches = layout.micro_batches;
      save_alone<AnOptimizer>(options, micro_batches, {"alone_" + backend});
      file = bytes_of("alone_" + backend);
      end = bytes_of("alone_" + backend + "_end");
      REQUIRE(file.size() == end.size());
      REQUIRE(file != end);
    }
    save_on_ranks<AnOptimizer>(backend, options, layout, {"stages_" + backend});
    CHECK(bytes_of("stages_" + backend) == file);
    CHECK(bytes_of("stages_" + backend + "_end") == end);
    save_on_ranks<AnOptimizer>(backend, options, layout, {"resumed_" + backend, "alone_" + backend});
    CHECK(bytes_of("resumed_" + backend + "_end") == end);
  }
}

}  // namespace pipeline_training
