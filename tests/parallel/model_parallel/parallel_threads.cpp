// Parallel on meshes of dp, fsdp and cp: the bits of one partition, and every error by text. Ranks are threads.
#include <filesystem>

#include "tests/parallel/model_parallel/context_training.h"

using namespace context_training;

namespace {

using Axes = std::vector<par::MeshAxis>;

Outcome train_on_mesh(const Group& group, const Axes& axes, const par::ParallelOptions& options, int steps) {
  ls::manual_seed(5);
  const par::DeviceMesh mesh(group, axes);
  Model model({.dropout = 0.1});
  par::Parallel run(model, mesh, options);
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  const nn::CrossEntropyLoss criterion;
  Outcome outcome;
  const std::int64_t each = kSamples / options.partition.micro_batches;
  for (int step = 0; step < steps; ++step) {
    std::vector<ls::Tensor> mine;
    for (const ls::Tensor& whole : batch_of(step))
      mine.push_back(whole.narrow(0, each * run.first_micro_batch(), each * run.micro_batches()));
    mine = run.split_sequence(mine);
    optimizer.zero_grad();
    const auto loss = [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
      return criterion(run.module()(x).flatten(0, 1), y.flatten());
    };
    outcome.losses.push_back(run.backward(std::vector{mine[0], mine[1]}, mine[2], loss).item<double>());
    run.clip_grad_norm_(0.5);
    optimizer.step();
    model.eval();
    outcome.losses.push_back(run.evaluate(std::vector{mine[0], mine[1]}, mine[2], loss).item<double>());
    model.train();
  }
  run.gathered([&] { outcome.hash = nn::parameter_hash(model); });
  return outcome;
}

Outcome train_mesh(int ranks, const Axes& axes, const par::ParallelOptions& options, int steps) {
  if (ranks == 1) return train_on_mesh(nullptr, axes, options, steps);
  std::vector<Outcome> of_ranks(static_cast<std::size_t>(ranks));
  with_threads("local", ranks, [&](const Group& group) {
    of_ranks[static_cast<std::size_t>(group->rank())] = train_on_mesh(group, axes, options, steps);
  });
  for (const Outcome& each : of_ranks) CHECK(each == of_ranks[0]);
  return of_ranks[0];
}

struct Mesh {
  int ranks;
  Axes axes;
  int stage = 3;
};

void check_same(const par::Partition& partition, const std::vector<Mesh>& meshes) {
  std::optional<Outcome> want;
  for (const Mesh& mesh : meshes) {
    std::string text;
    for (const par::MeshAxis& axis : mesh.axes) text += fmt::format("{} {} ", axis.name, axis.size);
    CAPTURE(text);
    const Outcome got =
        train_mesh(mesh.ranks, mesh.axes, {.partition = partition, .stage = mesh.stage, .units = {"blocks.*"}}, 5);
    if (want) CHECK(got == *want);
    want = got;
  }
}

// The error of a run on `ranks` ranks; the same on all of them.
void check_error(int ranks, const Axes& axes, const par::ParallelOptions& options, const std::string& want) {
  const auto check = [&](const Group& group) {
    const par::DeviceMesh mesh(group, axes);
    Model model({});
    CHECK_THROWS_WITH_AS(par::Parallel(model, mesh, options), want.c_str(), ls::InvalidArgument);
  };
  ranks == 1 ? check(nullptr) : with_threads("local", ranks, check);
}

}  // namespace

TEST_CASE("every mesh of a partition has the same bits") {
  check_same({.micro_batches = 4}, {{1, {{"dp", 1}}},
                                    {1, {{"pp", 1}, {"fsdp", 1}, {"tp", 1}}},
                                    {2, {{"dp", 2}}},
                                    {2, {{"dp", 2}, {"fsdp", 1}}},
                                    {4, {{"dp", 4}}},
                                    {2, {{"fsdp", 2}}},
                                    {4, {{"fsdp", 4}}, 1},
                                    {4, {{"fsdp", 4}}, 2}});
  for (const Kind kind : {Kind::kRingZigzag, Kind::kRing, Kind::kUlysses}) {
    check_same({.micro_batches = 4, .sequence_blocks = 4, .attention = kind}, {{4, {{"cp", 4}}},
                                                                               {4, {{"cp", 4}, {"fsdp", 1}}},
                                                                               {8, {{"dp", 2}, {"cp", 4}}},
                                                                               {8, {{"cp", 4}, {"dp", 2}}},
                                                                               {8, {{"fsdp", 2}, {"cp", 4}}, 3},
                                                                               {8, {{"fsdp", 2}, {"cp", 4}}, 2},
                                                                               {8, {{"fsdp", 2}, {"cp", 4}}, 1}});
    check_same({.micro_batches = 4, .sequence_blocks = 2, .attention = kind},
               {{2, {{"cp", 2}}}, {4, {{"dp", 2}, {"cp", 2}}}, {8, {{"fsdp", 4}, {"cp", 2}}}});
  }
  check_same({.micro_batches = 6}, {{1, {{"dp", 1}}}, {3, {{"dp", 3}}}, {6, {{"fsdp", 6}}}});
}

TEST_CASE("a mesh that does not fit the partition") {
  const par::Partition four{.micro_batches = 4};
  check_error(2, {{"ep", 2}}, {.partition = four}, "Parallel: axis ep is unknown; axes are pp, dp, fsdp, cp, tp");
  check_error(3, {{"dp", 3}}, {.partition = four},
              "Parallel: axis dp has 3 ranks, which do not divide the partition's 4 micro-batches; use 1, 2 or 4");
  check_error(
      2, {{"fsdp", 2}}, {.partition = {.micro_batches = 6}},
      "Parallel: axis fsdp has 2 ranks, each with 3 of the partition's 6 micro-batches, whose sum has other bits "
      "than on one rank; use 1, 3 or 6");
  check_error(2, {{"dp", 2}}, {},
              "Parallel: axis dp has 2 ranks, which do not divide the partition's 1 micro-batches; "
              "use 1");
  check_error(
      4, {{"dp", 2}, {"fsdp", 2}}, {.partition = four},
      "Parallel: axes dp and fsdp have 2 and 2 ranks, but sharding within replicas is not built yet; give all 4 "
      "ranks to one of them");
  check_error(
      2, {{"tp", 2}}, {.partition = four},
      "Parallel: axis tp has 2 ranks, but the partition has 1 tensor slice; set .partition.tensor_slices to 2, or "
      "to 0 for as many as ranks");
  check_error(
      2, {{"pp", 2}}, {.partition = four},
      "Parallel: .chain is empty and Model is not a Sequential, whose children would be the chain; name the modules "
      "in the order in which they run: .chain = {\"embed\", \"blocks.*\", \"head\"}");
  check_error(
      1, {{"dp", 1}}, {.partition = {.sequence_blocks = 4}},
      "Parallel: axis cp has 1 rank, but the partition has 4 sequence blocks; set .partition.sequence_blocks to 1");
  check_error(
      2, {{"cp", 2}}, {.partition = four},
      "Parallel: axis cp has 2 ranks, but the partition has 1 sequence block; set .partition.sequence_blocks to 2");
  check_error(1, {{"dp", 1}}, {.partition = {.micro_batches = 0}},
              "Parallel: 0 micro-batches, 1 tensor slices, 1 sequence blocks; expected 1 or more of each, or 0 tensor "
              "slices for as many as ranks of tp");
  check_error(1, {{"tp", 1}}, {.partition = {.tensor_slices = -1}},
              "Parallel: 1 micro-batches, -1 tensor slices, 1 sequence blocks; expected 1 or more of each, or 0 tensor "
              "slices for as many as ranks of tp");
  check_error(1, {{"dp", 1}}, {.chunks_per_rank = 0}, "Parallel: .chunks_per_rank is 0, expected 1 or more");
}

TEST_CASE("patterns of a plan and of a chain") {
  const auto check = [](const par::ParallelOptions& options, const std::string& want) {
    check_error(1, {{"dp", 1}}, options, want);
  };
  check({.plan = {{"blocks.*.qkv", par::ColwiseParallel{}}}},
        "Parallel: .plan: pattern \"blocks.*.qkv\" names no module; paths are those of named_parameters() without the "
        "last name");
  check({.plan = {{"blocks.*.norm1", par::RowwiseParallel{}}}},
        "Parallel: pattern \"blocks.*.norm1\" names LayerNorm; RowwiseParallel is for Linear");
  check({.plan = {{"blocks.*.up", par::AttentionParallel{}}}},
        "Parallel: pattern \"blocks.*.up\" names Linear; AttentionParallel is for MultiheadAttention");
  check({.plan = {{"blocks.*.up", par::ColwiseParallel{}}, {"blocks.1.*", par::Recompute{}}}},
        "Parallel: blocks.1.up has two styles, by the patterns \"blocks.*.up\" and \"blocks.1.*\"");
  check({.chain = {"tokens", "positions", "block.*"}},
        "Parallel: .chain: \"block.*\" names no module; paths are those of named_parameters() without the last name");
  check({.chain = {"tokens", "positions", "blocks.*", "blocks.1", "head"}},
        "Parallel: .chain names blocks.1 twice, the second time by \"blocks.1\"; name each module once");
  check({.chain = {"tokens", "blocks", "blocks.*", "head"}},
        "Parallel: .chain names blocks.0 twice, the second time by \"blocks.*\"; name each module once");
  check({.chain = {"tokens", "blocks.*", "head"}},
        "Parallel: positions has parameters and is in no module of .chain, so no stage would run it; name it in "
        ".chain, or "
        "remove it from the model");
  Model model({});
  const par::DeviceMesh mesh(nullptr, {{"dp", 1}});
  CHECK_NOTHROW(par::Parallel(model, mesh,
                              {.plan = {{"blocks.*.up", par::ColwiseParallel{}},
                                        {"blocks.*.down", par::RowwiseParallel{}},
                                        {"tokens", par::VocabParallel{}},
                                        {"blocks.*.norm1", par::SequenceParallel{}}},
                               .chain = {"tokens", "positions", "blocks.*", "head"}}));
}

TEST_CASE("a model that is context-parallel already is refused") {
  with_threads("local", 2, [](const Group& group) {
    const par::DeviceMesh mesh(group, {{"cp", 2}});
    Model model({});
    par::context_parallel(model, mesh);
    CHECK_THROWS_WITH_AS(par::Parallel(model, mesh, {.partition = {.sequence_blocks = 2}}),
                         "Parallel: the model is context-parallel already; leave context_parallel out",
                         ls::InvalidArgument);
  });
}

TEST_CASE("join and hooks are refused") {
  Model model({});
  par::Parallel run(model, par::DeviceMesh(nullptr, {{"dp", 1}}));
  CHECK_THROWS_WITH_AS(run.join([] {}),
                       "Parallel: join is not supported, because all ranks of a mesh run the same steps; use "
                       "DistributedDataParallel or ShardedDataParallel",
                       ls::InvalidArgument);
  CHECK_THROWS_WITH_AS(run.register_comm_hook(nullptr),
                       "Parallel: communication hooks are not supported; use DistributedDataParallel",
                       ls::InvalidArgument);
}

TEST_CASE("the model is context-parallel as long as the run exists") {
  with_threads("local", 2, [](const Group& group) {
    ls::manual_seed(5);
    Model model({});
    std::vector<ls::Tensor> batch = batch_of(0);
    const ls::Tensor want = model({batch[0], batch[1]}).detach();
    {
      par::Parallel run(model, par::DeviceMesh(group, {{"cp", 2}}), {.partition = {.sequence_blocks = 2}});
      const std::vector<ls::Tensor> mine = run.split_sequence(batch);
      const ls::Tensor own = run(std::vector{mine[0], mine[1]}).detach();
      CHECK(ls::max(ls::abs(own - run.split_sequence({want})[0])).item<double>() < 1e-5);
      run.gathered([&] { CHECK(same_bits(model({batch[0], batch[1]}).detach(), want)); });
      CHECK(same_bits(run(std::vector{mine[0], mine[1]}).detach(), own));
    }
    CHECK(same_bits(model({batch[0], batch[1]}).detach(), want));
  });
}

TEST_CASE("a checkpoint of one mesh continues on another, with the same bits") {
  const std::string path = std::filesystem::absolute("mesh.safetensors").string();
  const par::ParallelOptions options{.partition = {.micro_batches = 4, .sequence_blocks = 2}, .units = {"blocks.*"}};
  const auto train_part = [&](const Group& group, const Axes& axes, int first, int last, bool loads) {
    ls::manual_seed(5);
    Model model({.dropout = 0.1});
    par::Parallel run(model, par::DeviceMesh(group, axes), options);
    ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
    if (loads) par::load_checkpoint(path, {.model = &run, .optimizer = &optimizer});
    const nn::CrossEntropyLoss criterion;
    for (int step = first; step < last; ++step) {
      std::vector<ls::Tensor> mine;
      for (const ls::Tensor& whole : batch_of(step))
        mine.push_back(whole.narrow(0, 2 * run.first_micro_batch(), 2 * run.micro_batches()));
      mine = run.split_sequence(mine);
      optimizer.zero_grad();
      run.backward(std::vector{mine[0], mine[1]}, mine[2], [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
        return criterion(run.module()(x).flatten(0, 1), y.flatten());
      });
      optimizer.step();
    }
    if (!loads) par::save_checkpoint(path, {.model = &run, .optimizer = &optimizer});
    std::uint64_t hash = 0;
    run.gathered([&] { hash = nn::parameter_hash(model); });
    return hash;
  };
  const auto on = [&](int ranks, const Axes& axes, int first, int last, bool loads) {
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(ranks));
    with_threads("local", ranks, [&](const Group& group) {
      hashes[static_cast<std::size_t>(group->rank())] = train_part(group, axes, first, last, loads);
    });
    for (const std::uint64_t each : hashes) CHECK(each == hashes[0]);
    return hashes[0];
  };
  const std::uint64_t want = on(2, {{"cp", 2}}, 0, 6, false);
  on(4, {{"fsdp", 2}, {"cp", 2}}, 0, 3, false);
  CHECK(on(2, {{"cp", 2}}, 3, 6, true) == want);
  CHECK(on(4, {{"dp", 2}, {"cp", 2}}, 3, 6, true) == want);
  on(2, {{"cp", 2}, {"dp", 1}}, 0, 3, false);
  CHECK(on(8, {{"fsdp", 4}, {"cp", 2}}, 3, 6, true) == want);
}
