// Parallel with the axis pp: a transformer as a chain, and a run of it on any mesh.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/parallel/model_parallel/context_training.h"

namespace mesh_pipeline {

namespace par = ls::parallel;
namespace nn = ls::nn;
using Kind = par::ContextAttention;
using Axes = std::vector<par::MeshAxis>;
using context_training::kSamples, context_training::kTime, context_training::kVocabulary, context_training::kWidth;

constexpr int kBlocks = 6, kModules = kBlocks + 2;  // of the chain

struct ModelOptions {
  double dropout = 0;
  bool norm = false;         // block 1 has a BatchNorm
  bool frozen = false;       // the embeddings
  bool ends_frozen = false;  // block 5 and the head
  bool gathers = true;       // the head is whole, or gathers its logits
  bool tied = false;         // tokens and head; the scales of a norm in the blocks 1, 2 and 5
  bool bias = true;          // of the blocks' linear layers
  bool product = false;      // block 3 has a product of two parameters, whose gradients read them
};

struct Embed : nn::Module {
  explicit Embed(const ModelOptions& options)
      : tokens(add<nn::Embedding>("tokens", kVocabulary, kWidth)),
        positions(add<nn::Embedding>("positions", kTime, kWidth)),
        dropout(add<nn::Dropout>("dropout", options.dropout)) {}
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    return dropout(tokens(in[0]) + positions(in[1]));
  }
  nn::Embedding &tokens, &positions;
  nn::Dropout& dropout;
};

struct Block : nn::Module {
  Block(const ModelOptions& options, int index)
      : inner(add<context_training::Block>(
            "inner", context_training::ModelOptions{.dropout = options.dropout, .bias = options.bias})) {
    const nn::BatchNormOptions of_norm{.all_micro_batches = true};
    if (options.norm && index == 1) norm = &add<nn::BatchNorm1d>("norm", kWidth, of_norm);
    for (const char* name : {"first", "second"})
      if (options.product && index == 3) factors.push_back(&add_parameter(name, ls::full({kWidth}, 0.9)));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = inner(x);
    if (!factors.empty()) y = y * (**factors[0] * **factors[1]);
    return norm ? (*norm)(y.transpose(1, 2)).transpose(1, 2) : y;
  }
  context_training::Block& inner;
  nn::BatchNorm1d* norm = nullptr;
  std::vector<nn::Parameter*> factors;
};

struct Model : nn::Module {
  explicit Model(const ModelOptions& options)
      : embed(add<Embed>("embed", options)), blocks(add<nn::ModuleList>("blocks")),
        head(add<nn::Linear>("head", kWidth, kVocabulary)) {
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(Block(options, i));
    if (options.tied) {
      head.weight = embed.tokens.weight;
      for (const int b : {2, 5}) block(b).norm1.weight = block(1).norm1.weight;
    }
    if (options.frozen) freeze(embed);
    if (options.ends_frozen) freeze(blocks[kBlocks - 1]), freeze(head);
  }
  ls::Tensor forward_inputs(const std::vector<ls::Tensor>& in) const override {
    ls::Tensor x = embed(in);
    for (nn::Module& block : blocks) x = block(x);
    return head(x);
  }
  static void freeze(const nn::Module& module) {
    for (const nn::Parameter& each : module.parameters()) each.master().requires_grad_(false);
  }
  context_training::Block& block(int b) { return dynamic_cast<Block&>(blocks[b]).inner; }
  Embed& embed;
  nn::ModuleList& blocks;
  nn::Linear& head;
};

inline par::ParallelPlan plan_of(const par::Partition& partition, const ModelOptions& options) {
  par::ParallelPlan plan = {{"blocks.*.inner.attention.query", par::ColwiseParallel{}},
                            {"blocks.*.inner.attention.keys", par::ColwiseParallel{.parts = 2}},
                            {"blocks.*.inner.attention.proj", par::RowwiseParallel{}},
                            {"blocks.*.inner.up", par::ColwiseParallel{}},
                            {"blocks.*.inner.down", par::RowwiseParallel{}}};
  if (partition.sequence_parallel || !options.gathers) {
    plan.emplace_back("embed.tokens", par::VocabParallel{});
    plan.emplace_back("head", par::VocabParallel{.gather_output = options.gathers});
  }
  if (!partition.sequence_parallel) return plan;
  plan.emplace_back("embed.positions", par::SequenceParallel{});
  plan.emplace_back("blocks.*.inner.norm*", par::SequenceParallel{});
  return plan;
}

// A mesh, and what of Parallel's options the bits do not depend on.
struct Mesh {
  int pp = 1, dp = 1, fsdp = 1, cp = 1, tp = 1;
  int stage = 3;
  par::Schedule schedule = par::Schedule::k1F1B;
  int chunks = 1;
  std::vector<std::string> units = {"blocks.*"};

  int ranks() const { return pp * dp * fsdp * cp * tp; }
  Axes axes() const { return {{"pp", pp}, {"dp", dp}, {"fsdp", fsdp}, {"cp", cp}, {"tp", tp}}; }
  std::string describe() const {
    return fmt::format("pp {} dp {} fsdp {} cp {} tp {}, stage {}, {} with {} chunks", pp, dp, fsdp, cp, tp, stage,
                       par::name(schedule), chunks);
  }
};

inline par::ParallelOptions options_of(const Mesh& mesh, const par::Partition& partition,
                                       const ModelOptions& options = {}) {
  return {.partition = partition,
          .plan = plan_of(partition, options),
          .chain = {"embed", "blocks.*", "head"},
          .schedule = mesh.schedule,
          .chunks_per_rank = mesh.chunks,
          .stage = mesh.stage,
          .units = mesh.units};
}

struct Outcome {
  std::vector<double> numbers;  // losses and norms
  std::map<std::string, std::vector<float>> state;
  std::uint64_t hash = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Samples of a step, and what happens in it.
struct StepOptions {
  std::int64_t samples = kSamples;
  bool accumulates = false;  // another batch before each step, in no_sync
};

constexpr int kSteps = LOCKSTEP_SLOWDOWN > 1 ? 2 : 3;

// The micro-batches of this rank: samples in equal parts, larger ones first.
inline std::vector<ls::Tensor> own_batch(const par::Parallel& run, const par::Partition& partition, int step,
                                         std::int64_t samples) {
  const std::int64_t each = samples / partition.micro_batches, rest = samples % partition.micro_batches;
  const auto begin = [&](std::int64_t m) { return m * each + std::min(m, rest); };
  const std::int64_t first = begin(run.first_micro_batch());
  const std::int64_t end = begin(run.first_micro_batch() + run.micro_batches());
  std::vector<ls::Tensor> mine;
  for (const ls::Tensor& whole : context_training::batch_of(step)) mine.push_back(whole.narrow(0, first, end - first));
  return run.split_sequence(mine);
}

template <class Criterion>
ls::Tensor call(par::Parallel& run, const std::vector<ls::Tensor>& mine, const Criterion& criterion, bool evaluates) {
  const auto loss = [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
    return criterion(run.module()(x).flatten(0, 1), y.flatten());
  };
  const std::vector<ls::Tensor> inputs = {mine[0], mine[1]};
  return evaluates ? run.evaluate(inputs, mine[2], loss) : run.backward(inputs, mine[2], loss);
}

inline void train_steps(par::Parallel& run, const par::Partition& partition, const ModelOptions& options,
                        const StepOptions& steps, Outcome& outcome) {
  const nn::CrossEntropyLoss of_whole_logits;
  std::optional<par::VocabCrossEntropyLoss> of_columns;
  if (!options.gathers) of_columns.emplace(run.module(), "head");
  const auto criterion = [&](const ls::Tensor& x, const ls::Tensor& y) {
    return of_columns ? (*of_columns)(x, y) : of_whole_logits(x, y);
  };
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-2});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    if (steps.accumulates) {
      const auto alone = run.no_sync();
      call(run, own_batch(run, partition, step + 1000, steps.samples), criterion, false);
    }
    const std::vector<ls::Tensor> mine = own_batch(run, partition, step, steps.samples);
    outcome.numbers.push_back(call(run, mine, criterion, false).item<double>());
    outcome.numbers.push_back(run.clip_grad_norm_(0.5));
    optimizer.step();
    run.module().eval();
    outcome.numbers.push_back(call(run, mine, criterion, true).item<double>());
    run.module().train();
  }
}

// On one rank; a null group: the only one.
inline Outcome train_on_rank(const Group& group, const Mesh& layout, const par::Partition& partition,
                             const ModelOptions& options = {}, const StepOptions& steps = {}) {
  ls::manual_seed(5);
  const par::DeviceMesh mesh(group, layout.axes());
  nn::DeferredInit deferred;
  Model model(options);
  deferred.end();
  par::Parallel run(model, mesh, options_of(layout, partition, options));
  Outcome outcome;
  train_steps(run, partition, options, steps, outcome);
  run.gathered([&] {
    outcome.hash = nn::parameter_hash(model.state_dict());
    for (const auto& [name, tensor] : model.state_dict()) outcome.state[name] = tensor.reshape({-1}).to_vector<float>();
  });
  if (group) group->barrier();  // no rank leaves a group of the mesh that another one still uses
  return outcome;
}

// On all ranks, as threads.
inline Outcome train(const Mesh& mesh, const par::Partition& partition, const ModelOptions& options = {},
                     const StepOptions& steps = {}) {
  if (mesh.ranks() == 1) return train_on_rank(nullptr, mesh, partition, options, steps);
  std::vector<Outcome> of_ranks(static_cast<std::size_t>(mesh.ranks()));
  with_threads("local", mesh.ranks(), [&](const Group& group) {
    of_ranks[static_cast<std::size_t>(group->rank())] = train_on_rank(group, mesh, partition, options, steps);
  });
  for (const Outcome& each : of_ranks) CHECK(each == of_ranks[0]);
  return of_ranks[0];
}

// The same from a process of its own, for programs that fork later.
inline std::uint64_t hash_of_threads_apart(const Mesh& mesh, const par::Partition& partition,
                                           const ModelOptions& options = {}, const StepOptions& steps = {}) {
  const NumberPipe box;
  check_processes(
      1, [&](int /*rank*/) { box.send(std::bit_cast<std::int64_t>(train(mesh, partition, options, steps).hash)); });
  return std::bit_cast<std::uint64_t>(box.receive());
}

// Every stage of sharding with every schedule on 2 and 4 ranks along pp, each with a random model, step and units.
struct RandomCase {
  Mesh mesh, without_stages;
  ModelOptions options;
  StepOptions steps;
  std::string describe() const {
    return fmt::format(
        "{}, units {}, dropout {}, norm {}, frozen {} {}, tied {}, bias {}, product {}, {} samples, accumulates {}",
        mesh.describe(), mesh.units[0], options.dropout, options.norm, options.frozen, options.ends_frozen,
        options.tied, options.bias, options.product, steps.samples, steps.accumulates);
  }
};

inline RandomCase random_case(std::uint32_t number, const Mesh& mesh) {
  std::mt19937 random(number);
  const auto one_of = [&](int n) { return random() % static_cast<std::uint32_t>(n) == 0; };
  RandomCase of{.mesh = mesh, .without_stages = {}, .options = {}, .steps = {}};
  const std::string units[] = {"blocks.*", "*", "blocks.*.inner.*", "blocks"};
  of.mesh.units = {units[random() % 4]};
  of.options = {.dropout = !one_of(3) ? 0.1 : 0,
                .norm = one_of(3),
                .frozen = one_of(3),
                .ends_frozen = one_of(3) && (mesh.pp == 2 || mesh.chunks > 1),  // a rank has a parameter to train
                .tied = one_of(3),
                .bias = !one_of(2),
                .product = one_of(2)};
  if (of.options.tied) of.options.frozen = of.options.ends_frozen = false;
  const std::int64_t samples[] = {kSamples, kSamples, 6, 3};
  of.steps = {.samples = samples[random() % 4], .accumulates = one_of(4)};
  if (of.steps.samples < kSamples || of.steps.accumulates) of.without_stages.dp = 2;  // the bits depend on the ranks
  return of;
}

// Instrumented programs train a third of the cases: every stage and every schedule.
inline std::vector<RandomCase> random_cases(std::uint32_t first, const std::vector<int>& ranks) {
  std::vector<RandomCase> cases;
  int i = 0;
  for (const int pp : ranks) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const auto schedule :
           {par::Schedule::kGPipe, par::Schedule::k1F1B, par::Schedule::kInterleaved, par::Schedule::kZeroBubble}) {
        const Mesh mesh{.pp = pp,
                        .fsdp = 2,
                        .stage = stage,
                        .schedule = schedule,
                        .chunks = schedule == par::Schedule::kInterleaved ? 2 : 1};
        const auto number = first + static_cast<std::uint32_t>(i++);
        if (LOCKSTEP_SLOWDOWN == 1 || (i + stage) % 3 == 0) cases.push_back(random_case(number, mesh));
      }
    }
  }
  // W reads parameters, on one rank alone: the other one has no samples.
  cases.push_back({.mesh = {.pp = 2, .fsdp = 2, .schedule = par::Schedule::kZeroBubble},
                   .without_stages = {.dp = 2},
                   .options = {.product = true},
                   .steps = {.samples = 3}});
  return cases;
}

constexpr par::Partition kOfRandom{.micro_batches = 8};

inline ls::Tensor step_of(par::Parallel& run, const par::Partition& partition, int step) {
  return call(run, own_batch(run, partition, step, kSamples), nn::CrossEntropyLoss(), false);
}

// The ranks of fsdp gather the bytes of the plan in a step.
inline void check_gathered_bytes(par::Parallel& run, const par::Partition& partition) {
  step_of(run, partition, 0);
  const std::int64_t before = run.group()->traffic().bytes(par::Phase::kParameters);
  step_of(run, partition, 1);
  const std::int64_t gathered = run.group()->traffic().bytes(par::Phase::kParameters) - before;
  const ls::Tensor all = ls::full({1}, static_cast<double>(gathered), {.dtype = ls::kFloat64});
  run.group()->all_reduce(all)->wait();
  CHECK(all.item<double>() == static_cast<double>(run.group()->size() * run.training_plan().gather_bytes));
}

inline void check_equal(const Outcome& got, const Outcome& want) {
  CHECK(std::ranges::all_of(want.numbers, [](double number) { return std::isfinite(number); }));
  CHECK(got.numbers == want.numbers);
  CHECK(got.state.size() == want.state.size());
  for (const auto& each : want.state) CHECK_MESSAGE(got.state.at(each.first) == each.second, each.first);
  CHECK(got.hash == want.hash);
}

}  // namespace mesh_pipeline
