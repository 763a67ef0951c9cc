// Context parallelism: the time of a step with two ranks, each with a sequence block, against one rank; and the longest
// sequence that four ranks can train on with the memory of one. And the time to make a mesh of 2 x 2 x 2 ranks.
//
// Times: a GPT of width 512 with two blocks and 8 heads, 4 sequences of 256 tokens, every rank with one thread on a core
// of its own. Each round runs all kinds in turn; a figure is the median over rounds of the slower rank's step.
// Memory: a GPT of width 128 with four blocks, one sequence; the allocator's peak in a step, with communication memory,
// of the rank that has most. "longest_..." is in tokens. Positions are counted modulo 64: a table of all positions would
// be a parameter, of which each rank has a copy.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "support/gpt.h"  // of the samples
#include "support/gpt_shapes.h"
#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

using bench::Group;
using bench::Shared;
using Kind = par::ContextAttention;

struct Variant {
  const char* name;
  int ranks;
  Kind kind = Kind::kRingZigzag;
  bool gathers = false;
};
constexpr Variant kVariants[] = {{"one_rank", 1},
                                 {"zigzag", 2, Kind::kRingZigzag},
                                 {"zigzag_gathered", 2, Kind::kRingZigzag, true},
                                 {"ring", 2, Kind::kRing},
                                 {"ulysses", 2, Kind::kUlysses}};

// Steps on `sequences` sequences of `time` tokens.
class Trainer {
 public:
  Trainer(const Group& group, const Variant& of, const samples::GptOptions& shape, std::int64_t sequences,
          std::int64_t time)
      : mesh_(group, {{"cp", of.ranks}}), model_(bench::kGptVocabulary, shape) {
    par::context_parallel(model_, mesh_, {.attention = of.kind, .gather_keys = of.gathers});
    run_ = std::make_unique<par::DistributedDataParallel>(model_, group);
    optimizer_ = std::make_unique<ls::optim::AdamW>(run_->parameters(), ls::optim::AdamWOptions{.lr = 1e-3});
    const ls::Tensor ids = ls::randint(bench::kGptVocabulary, {sequences, time}),
                     positions = (ls::arange(time) % shape.context).expand(ids.shape());
    batch_ = par::split_sequence({ids, positions, ids}, mesh_, of.kind);
  }
  void step() {
    optimizer_->zero_grad();
    run_->backward(std::vector{batch_[0], batch_[1]}, batch_[2],
                   [&](const std::vector<ls::Tensor>& x, const ls::Tensor& y) {
                     return samples::next_character_loss(model_(x), y);
                   });
    optimizer_->step();
  }

 private:
  par::DeviceMesh mesh_;
  samples::Gpt model_;
  std::unique_ptr<par::DistributedDataParallel> run_;
  std::unique_ptr<ls::optim::AdamW> optimizer_;
  std::vector<ls::Tensor> batch_;
};

double time_of(const Variant& of) {
  const Shared* const shared = bench::run_group(of.ranks, [&](const Group& group, Shared& shared) {
    Trainer trainer(group, of, {.layers = 2, .heads = 8, .width = 512, .context = 256}, 4, 256);
    trainer.step();
    shared.results[group->rank()][0] = bench::time_together(shared, of.ranks, [&] { trainer.step(); });
  });
  return shared->greatest(of.ranks);
}

double memory_of(const Variant& of, std::int64_t time) {
  const Shared* const shared = bench::run_group(of.ranks, [&](const Group& group, Shared& shared) {
    Trainer trainer(group, of, {.layers = 4, .heads = 4, .width = 128, .context = 64}, 1, time);
    trainer.step();
    ls::reset_peak_bytes();
    trainer.step();
    const auto stats = ls::allocator_stats();
    shared.results[group->rank()][0] = static_cast<double>(stats.peak_bytes + stats.communication_bytes);
  });
  return shared->greatest(of.ranks);
}

// The slowest rank's time to make the groups of three axes, in seconds.
double mesh_time() {
  constexpr int kRanks = 8;
  const Shared* const shared = bench::run_group(kRanks, [&](const Group& group, Shared& shared) {
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      group->barrier();
      const double start = bench::seconds_now();
      const par::DeviceMesh mesh(group, {{"pp", 2}, {"dp", 2}, {"tp", 2}});
      seconds.push_back(bench::seconds_now() - start);
    }
    shared.results[group->rank()][0] = bench::median(seconds);
  });
  return shared->greatest(kRanks);
}

void find_longest(const Variant& of) {
  constexpr std::int64_t kAlone = 2048, kUnit = 64;
  const double budget = memory_of({"one_rank", 1}, kAlone);
  std::int64_t fits = kAlone, fails = kAlone * of.ranks * 2;
  while (fails - fits > kUnit) {
    const std::int64_t middle = (fits + fails) / 2 / kUnit * kUnit;
    (memory_of(of, middle) <= budget ? fits : fails) = middle;
  }
  fmt::print("{{\"name\": \"longest_{}_{}\", \"tokens\": {}, \"of_one_rank\": {}, \"ratio\": {:.2f}, \"bytes\": {}}}\n",
             of.name, of.ranks, fits, kAlone, static_cast<double>(fits) / kAlone, budget);
}

}  // namespace

int main() {
  if (bench::wanted("mesh_2x2x2")) bench::print_row("mesh_2x2x2", mesh_time());
  if (bench::wanted("context_512")) bench::compare_times("context_512_", kVariants, time_of);
  for (const Variant& of : kVariants) {
    Variant four = of;
    four.ranks = 4;
    if (of.ranks > 1 && bench::wanted(fmt::format("longest_{}", of.name))) find_longest(four);
  }
}
