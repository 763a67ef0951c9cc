// Tensor parallelism: the time of a step with two ranks, each with a half of the slices, against one rank; the cost of
// eight slices on one rank; and the memory of a block's activations, with and without sequence parallelism.
//
// Times: two transformer blocks of width 512 with 8 heads, 4 sequences of 256 tokens, every rank with one thread on a
// core of its own (peers/torch_tensor.py has the same model and step). Each round runs all kinds in turn; a figure is the
// median over rounds of the slower rank's step.
// Memory: the bytes that a forward pass of width 128 leaves for backward, in units of 4 b s h: the difference between
// models of six and of two blocks, by four. README.md has the closed forms.
//
// With --losses FOLDER it trains the blocks with width 128 for 20 steps with four slices on two ranks, and writes the
// initial weights, the data and the losses, for peers/torch_tensor.py.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "support/blocks.h"
#include "support/losses.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace par = lockstep::parallel;

namespace {

using bench::Blocks;
using bench::Group;
using bench::kVocabulary;
using bench::Shared;

par::ParallelPlan plan_of(bool sequence) {
  par::ParallelPlan plan = {{"blocks.*.query", par::ColwiseParallel{}}, {"blocks.*.key", par::ColwiseParallel{}},
                            {"blocks.*.value", par::ColwiseParallel{}}, {"blocks.*.proj", par::RowwiseParallel{}},
                            {"blocks.*.up", par::ColwiseParallel{}},    {"blocks.*.down", par::RowwiseParallel{}}};
  if (sequence) {
    plan.push_back({"tokens", par::SequenceParallel{}});
    plan.push_back({"blocks.*.norm1", par::SequenceParallel{}});
    plan.push_back({"blocks.*.norm2", par::SequenceParallel{}});
  }
  return plan;
}

struct Variant {
  const char* name;
  int ranks, slices;
  bool sequence = false;
};
constexpr Variant kVariants[] = {{"one_slice", 1, 1}, {"two_slices", 1, 2},  {"eight_slices", 1, 8},
                                 {"two_ranks", 2, 2}, {"two_ranks_8", 2, 8}, {"two_ranks_sp", 2, 2, true}};

void cut(nn::Module& model, const par::DeviceMesh& mesh, const Variant& of) {
  par::parallelize(model, mesh,
                   {.tensor_slices = of.slices, .sequence_parallel = of.sequence, .plan = plan_of(of.sequence)});
}

// Steps of mean squared errors on `sequences` sequences of `time` tokens.
class Trainer {
 public:
  Trainer(const Group& group, const Variant& of, int layers, std::int64_t width, ls::Tensor ids, ls::Tensor target)
      : mesh_(group, {{"tp", of.ranks}}), model_(layers, width, 8), ids_(std::move(ids)), target_(std::move(target)) {
    for (const auto& [name, tensor] : model_.state_dict()) start.insert(name, tensor.clone());
    cut(model_, mesh_, of);
    run_.emplace(model_);
    optimizer_.emplace(run_->parameters(), ls::optim::AdamWOptions{.lr = 1e-3});
  }
  double step() {
    optimizer_->zero_grad();
    const ls::Tensor loss = run_->backward(
        ids_, target_, [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::square(model_(x) - y).mean(); });
    optimizer_->step();
    return loss.item<double>();
  }

  ls::StateDict start;

 private:
  par::DeviceMesh mesh_;
  Blocks model_;
  ls::Tensor ids_, target_;
  std::optional<par::GradientAccumulation> run_;
  std::optional<ls::optim::AdamW> optimizer_;
};

double time_of(const Variant& of) {
  const Shared* const shared = bench::run_group(of.ranks, [&](const Group& group, Shared& shared) {
    Trainer trainer(group, of, 2, 512, ls::randint(kVocabulary, {4, 256}), ls::randn({4, 256, 512}));
    trainer.step();
    shared.results[group->rank()][0] = bench::time_together(shared, of.ranks, [&] { trainer.step(); });
  });
  return shared->greatest(of.ranks);
}

bench::ShortRun short_run(const Group& group) {
  ls::manual_seed(0);
  const ls::Tensor x = ls::randint(kVocabulary, {4, 64}), y = ls::randn({4, 64, 128});
  Trainer trainer(group, {.name = "", .ranks = 2, .slices = 4}, 2, 128, x, y);
  bench::ShortRun run{.start = trainer.start, .losses = {}};
  run.start.insert("x", x);
  run.start.insert("y", y);
  for (int step = 0; step < 20; ++step) run.losses.push_back(trainer.step());
  return run;
}

double saved_bytes(const Group& group, const Variant& of, int layers, std::int64_t width) {
  const par::DeviceMesh mesh(group, {{"tp", of.ranks}});
  Blocks model(layers, width, 8);
  cut(model, mesh, of);
  const ls::Tensor x = ls::randint(kVocabulary, {2, 256});
  model(x).sum().backward();  // once before the baseline, so that buffers exist
  const auto bytes = [] {
    const auto stats = ls::allocator_stats();
    return static_cast<double>(stats.allocated_bytes + stats.communication_bytes);
  };
  const double before = bytes();
  const ls::Tensor out = model(x);
  return bytes() - before;
}

void print_activations(const Variant& of) {
  constexpr std::int64_t kWidth = 128;
  const Shared* const shared = bench::run_group(of.ranks, [&](const Group& group, Shared& shared) {
    const double block = (saved_bytes(group, of, 6, kWidth) - saved_bytes(group, of, 2, kWidth)) / 4;
    shared.results[group->rank()][0] = block / (4.0 * 2 * 256 * kWidth);
  });
  fmt::print("{{\"name\": \"activations_{}_ranks{}\", \"units\": {:.3f}}}\n", of.ranks, of.sequence ? "_sp" : "",
             shared->greatest(of.ranks));
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::write_losses(argc, argv, short_run)) return 0;
  if (bench::wanted("tensor_512")) bench::compare_times("tensor_512_", kVariants, time_of);
  if (!bench::wanted("activations")) return 0;
  for (const int ranks : {1, 2, 4, 8}) {
    for (const bool sequence : {false, true}) print_activations({"", ranks, 8, sequence});
  }
}
