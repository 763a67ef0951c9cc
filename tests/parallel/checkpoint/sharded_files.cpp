// Checkpoints of sharded models: the file of gradient accumulation, byte for byte, and continued with any ranks.

#include "tests/parallel/sharded/sharded.h"
#include "tests/support/files.h"

namespace par = ls::parallel;
using namespace sharded_test;

namespace {

constexpr int kMicroBatches = 8;
constexpr int kSteps = 3;  // before the save, and after it

// A run of one rank of `ranks`: model, optimizer and data, with the same seed everywhere.
template <class Run>
struct Training {
  template <class Options>
  Training(int rank, int ranks, const Options& options, const Group& group)
      : rank(rank), ranks(ranks), run(make_run(options, group)),
        optimizer(run->parameters(), {.lr = 0.01, .amsgrad = true}) {}

  template <class Options>
  std::unique_ptr<Run> make_run(const Options& options, const Group& group) {
    if constexpr (std::is_same_v<Run, par::GradientAccumulation>)
      return std::make_unique<Run>(model, options);
    else
      return std::make_unique<Run>(model, group, options);
  }
  void steps(Result& result) {
    const int each = kMicroBatches / ranks;
    Result more;
    train(*run, model, optimizer, dataset, kMicroBatches, rank * each, each, kSteps, more);
    result.losses.insert(result.losses.end(), more.losses.begin(), more.losses.end());
  }
  void save(const std::string& path) { par::save_checkpoint(path, {.model = run.get(), .optimizer = &optimizer}); }
  void load(const std::string& path) { par::load_checkpoint(path, {.model = run.get(), .optimizer = &optimizer}); }

  struct Seed {
    Seed() { ls::manual_seed(7); }
  } seed;
  int rank, ranks;
  std::shared_ptr<ls::data::TensorDataset> dataset = make_dataset();
  Model model;
  std::unique_ptr<Run> run;
  ls::optim::AdamW optimizer;
};

using Accumulation = Training<par::GradientAccumulation>;
using Distributed = Training<par::DistributedDataParallel>;
using Sharded = Training<par::ShardedDataParallel>;

Sharded sharded(const Group& group, int stage) {
  return {group->rank(), group->size(),
          par::ShardedDataParallelOptions{.stage = stage, .micro_batches_per_rank = kMicroBatches / group->size()},
          group};
}

}  // namespace

TEST_CASE("every mode, stage and number of ranks writes the same file, and continues from it with the same bits") {
  Result want;
  {
    Accumulation reference(0, 1, par::GradientAccumulationOptions{.micro_batches = kMicroBatches}, nullptr);
    reference.steps(want);
    ls::save_checkpoint("want.safetensors", {.model = &reference.model, .optimizer = &reference.optimizer});
    reference.save("accumulate.safetensors");
    reference.steps(want);
    ls::save_checkpoint("want_end.safetensors", {.model = &reference.model, .optimizer = &reference.optimizer});
  }
  const std::string file = content_of_file("want.safetensors"), end = content_of_file("want_end.safetensors");
  CHECK(content_of_file("accumulate.safetensors") == file);

  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    with_group("shm", ranks, [&](const Group& group) {
      Distributed ddp(group->rank(), ranks,
                      par::DistributedDataParallelOptions{.micro_batches_per_rank = kMicroBatches / ranks}, group);
      Result result;
      ddp.steps(result);
      ddp.save("ddp.safetensors");
      CHECK(content_of_file("ddp.safetensors") == file);
    });
    for (int stage = 1; stage <= 3; ++stage) {
      CAPTURE(stage);
      with_group("shm", ranks, [&](const Group& group) {
        Sharded training = sharded(group, stage);
        Result result;
        training.steps(result);
        training.save("sharded.safetensors");
        CHECK(content_of_file("sharded.safetensors") == file);
      });
    }
  }
  for (const int ranks : {1, 2, 8}) {
    for (int stage = 1; stage <= 3; ++stage) {
      with_group("shm", ranks, [&](const Group& group) {
        Sharded training = sharded(group, stage);
        training.load("want.safetensors");
        Result result;
        training.steps(result);
        CHECK(std::equal(result.losses.begin(), result.losses.end(), want.losses.begin() + kSteps));
        training.save("end.safetensors");
        CHECK(content_of_file("end.safetensors") == end);
      });
    }
  }
  Accumulation again(0, 1, par::GradientAccumulationOptions{.micro_batches = kMicroBatches}, nullptr);
  again.load("sharded.safetensors");
  Result result;
  again.steps(result);
  CHECK(std::equal(result.losses.begin(), result.losses.end(), want.losses.begin() + kSteps));
}
