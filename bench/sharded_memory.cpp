// Memory of a rank in DistributedDataParallel (stage 0) and in the stages of ShardedDataParallel, on four ranks: planned
// bytes, the allocator's peak with communication memory, and the growth of the process's PSS (proportional set size),
// which counts a page that k processes share as 1/k. Each stage runs in new processes. README.md defines the figures.
#include <fmt/format.h>

#include "support/gpt.h"  // of the samples
#include "support/gpt_shapes.h"
#include "support/ranks.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

using bench::Group;
using bench::Shared;

constexpr int kRanks = 4;
constexpr samples::GptOptions kShape{.layers = 80, .heads = 4, .width = 176, .context = 2};

enum Figure : std::uint8_t { kPlan, kTransient, kAllocator, kPss };

double pss_bytes() {
  std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  long kilobytes = 0;
  while (file && std::fgets(line, sizeof(line), file)) {
    if (std::sscanf(line, "Pss: %ld kB", &kilobytes) == 1) break;
  }
  if (file) std::fclose(file);
  return 1024.0 * static_cast<double>(kilobytes);
}

double communication_bytes() { return static_cast<double>(ls::allocator_stats().communication_bytes); }

template <class Run>
void train(Run& run, samples::Gpt& model, int micro_batches, ls::FunctionRef<void()> measure) {
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-3});
  const ls::Tensor x = ls::randint(bench::kGptVocabulary, {micro_batches, kShape.context});
  const auto step = [&] {
    run.backward(x, x,
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return samples::next_character_loss(model(x), y); });
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  ls::reset_peak_bytes();
  step();
  measure();
}

// Trains `shape` in a stage. Returns planned bytes: all, and of these those of unit buffers.
std::pair<double, double> train_stage(const Group& group, int stage, int micro_batches,
                                      const samples::GptOptions& shape, ls::FunctionRef<void()> measure) {
  samples::Gpt model(bench::kGptVocabulary, shape);
  if (stage > 0) {
    par::ShardedDataParallel run(model, group, {.stage = stage, .micro_batches_per_rank = micro_batches});
    train(run, model, micro_batches, measure);
    const par::ShardedPlan plan = run.plan();
    return {plan.memory_bytes(), plan.unit_bytes};
  }
  std::int64_t elements = 0;
  for (const ls::nn::Parameter& parameter : model.parameters()) elements += parameter->numel();
  par::DistributedDataParallel run(model, group, {.micro_batches_per_rank = micro_batches});
  train(run, model, micro_batches, measure);
  const int sets = std::bit_width(static_cast<unsigned>(micro_batches + 1) / 2) - 1;
  return {4.0 * static_cast<double>(elements * (4 + sets)), 0};
}

void measure(const Group& group, Shared& shared, int stage, int micro_batches) {
  samples::GptOptions small = kShape;  // runs all code once before the baseline
  small.layers = 2;
  train_stage(group, stage, micro_batches, small, [] {});
  ls::empty_cache();
  group->barrier();
  const double pss = pss_bytes();
  const double held = static_cast<double>(ls::allocator_stats().allocated_bytes) + communication_bytes();
  group->barrier();
  double* const results = shared.results[group->rank()];
  const auto [plan, transient] = train_stage(group, stage, micro_batches, kShape, [&] {
    group->barrier();
    results[kAllocator] = static_cast<double>(ls::allocator_stats().peak_bytes) + communication_bytes() - held;
    results[kPss] = pss_bytes() - pss;
    group->barrier();
  });
  results[kPlan] = plan;
  results[kTransient] = transient;
}

// The mean over the ranks: which of the ranks that share a page have touched it depends on their timing.
double mean(const Shared* shared, Figure figure) {
  double sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) sum += shared->results[rank][figure];
  return sum / kRanks;
}

}  // namespace

// Arguments: numbers of micro-batches per rank.
int main(int argc, char** argv) {
  std::vector<int> numbers;
  for (int i = 1; i < argc; ++i) numbers.push_back(std::atoi(argv[i]));
  if (numbers.empty()) numbers = {1, 4};
  for (const int micro_batches : numbers) {
    double ddp[4] = {};
    for (int stage = 0; stage <= 3; ++stage) {
      const Shared* const shared = bench::run_group(
          kRanks, [&](const Group& group, Shared& shared) { measure(group, shared, stage, micro_batches); });
      const double plan = mean(shared, kPlan), allocator = mean(shared, kAllocator), pss = mean(shared, kPss);
      if (stage == 0) ddp[kPlan] = plan, ddp[kAllocator] = allocator, ddp[kPss] = pss;
      fmt::print(
          "{{\"name\": \"sharded_memory_{}_stage_{}\", \"plan\": {:.0f}, \"of_these_unit_buffers\": {:.0f}, "
          "\"allocator\": {:.0f}, \"pss\": {:.0f}, \"plan_to_ddp\": {:.4f}, \"allocator_to_ddp\": {:.4f}, "
          "\"pss_to_ddp\": {:.4f}}}\n",
          micro_batches, stage, plan, mean(shared, kTransient), allocator, pss, plan / ddp[kPlan],
          allocator / ddp[kAllocator], pss / ddp[kPss]);
    }
  }
}
