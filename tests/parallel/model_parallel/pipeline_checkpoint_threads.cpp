// One file for every pipeline: the one that gradient accumulation writes. Ranks are threads.
#include "tests/parallel/model_parallel/pipeline_checkpoint.h"

using namespace pipeline_training;

namespace {

constexpr par::Schedule kGPipe = par::Schedule::kGPipe, kInterleaved = par::Schedule::kInterleaved;

const std::vector<Layout> kFewLayouts = {{.ranks = 2}, {.ranks = 2, .chunks = 3, .schedule = kInterleaved}};

}  // namespace

TEST_CASE("pipelines of all ranks, chunks and schedules write the file of gradient accumulation and continue from it") {
  check_files<WithAdamW>("local", {.dropout = 0.1, .norm = true},
                         {{.ranks = 1},
                          {.ranks = 2},
                          {.ranks = 3, .schedule = kGPipe},
                          {.ranks = 2, .chunks = 3, .schedule = kInterleaved},
                          {.ranks = 8, .micro_batches = 8},
                          {.ranks = 4, .micro_batches = 8, .chunks = 2, .schedule = kInterleaved}});
}

TEST_CASE("files of pipelines with momentum, frozen parameters and bfloat16") {
  check_files<WithMomentum>("local", {.dropout = 0.1, .frozen = true}, kFewLayouts);
  check_files<WithAdamW>("local", {.frozen = true, .unused = true}, kFewLayouts);
  check_files<WithAdamW>("local", {.dropout = 0.1, .bf16 = true}, kFewLayouts);
}

TEST_CASE("a stage without parameters of a group takes its options from the file") {
  // The first stage has weights only. Its rank saves the options of both groups.
  check_files<WithAdamW>("local", {}, {{.ranks = 3, .split_before = {"blocks.0", "head"}}});
}

TEST_CASE("every mode continues from a pipeline's file") {
  const ModelOptions options{.dropout = 0.1};
  const Layout layout{.ranks = 3, .schedule = kGPipe};
  save_on_ranks<WithAdamW>("local", options, layout, {"of_stages"});
  const std::string end = bytes_of("of_stages_end");
  save_alone<WithAdamW>(options, layout.micro_batches, {"in_one", "of_stages"});
  CHECK(bytes_of("in_one_end") == end);
  const par::DistributedDataParallelOptions two{.micro_batches_per_rank = 2};
  with_threads("local", 2, [&](const Group& group) {
    ls::manual_seed(3);
    Model model(options);
    par::DistributedDataParallel run(model, group, two);
    save_twice<WithAdamW>(run, options, {"in_ddp", "of_stages"}, group->rank(), 2);
  });
  CHECK(bytes_of("in_ddp_end") == end);
  for (const int stage : {1, 3}) {
    with_threads("local", 2, [&](const Group& group) {
      ls::manual_seed(3);
      Model model(options);
      par::ShardedDataParallel run(model, group, {.stage = stage, .units = {"blocks.*"}, .micro_batches_per_rank = 2});
      save_twice<WithAdamW>(run, options, {"in_shards", "of_stages"}, group->rank(), 2);
    });
    CHECK(bytes_of("in_shards_end") == end);
    save_on_ranks<WithAdamW>("local", options, {.ranks = 2}, {"from_shards", "of_stages"});
    CHECK(bytes_of("from_shards_end") == end);
  }
}
