// Tests the model of a link: fits latency and bandwidth of shared memory to two sizes of all_reduce, predicts the time
// of other sizes and of a training step on two ranks, and compares with measurements. Goal: within 15 %.
#include "lockstep/parallel/simulate/simulate.h"

#include "support/ranks.h"
#include "support/timing.h"

namespace ls = lockstep;
namespace par = lockstep::parallel;

namespace {

using bench::Group;
using bench::Shared;

constexpr std::int64_t kSmall = 65'536, kLarge = 4'194'304;  // bytes; the link is fitted to these sizes
constexpr std::int64_t kAsked[] = {131'072, 524'288, 1'048'576, 2'097'152};

struct Mlp : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 784, 512);
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 512, 256);
  ls::nn::Linear& fc3 = add<ls::nn::Linear>("fc3", 256, 10);
  ls::Tensor forward(const ls::Tensor& x) const override { return fc3(ls::relu(fc2(ls::relu(fc1(x))))); }
};

// The wall-clock time of an undisturbed call of `work`: nine of ten calls take longer.
template <class Work>
double quick_time(int calls, Work work) {
  for (int i = 0; i < calls / 5 + 1; ++i) work();
  std::vector<double> samples;
  for (int i = 0; i < calls; ++i) {
    const double start = bench::seconds_now();
    work();
    samples.push_back(bench::seconds_now() - start);
  }
  std::ranges::nth_element(samples, samples.begin() + calls / 10);
  return samples[static_cast<std::size_t>(calls / 10)];
}

double time_all_reduce(const Group& group, std::int64_t bytes) {
  const ls::Tensor t = group->empty({bytes / 4}, ls::kFloat32);
  t.fill_(0);
  return quick_time(1000, [&] { group->all_reduce(t)->wait(); });
}

double time_step(const Group& group) {
  Mlp model;
  par::DistributedDataParallel ddp(model, group);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  ls::nn::CrossEntropyLoss criterion;
  const ls::Tensor x = ls::randn({128, 784}), y = ls::randint(0, 10, {128});
  return quick_time(150, [&] {
    criterion(ddp(x), y).backward();
    optimizer.step();
    optimizer.zero_grad();
  });
}

Group alone() {
  return par::init_process_group(
      {.backend = "local", .world_size = 1, .rank = 0, .store = std::make_shared<par::InProcessStore>()});
}

void print(const char* what, double predicted, double measured) {
  std::printf("%-24s predicted %9.1f us   measured %9.1f us   predicted/measured %.3f\n", what, predicted * 1e6,
              measured * 1e6, predicted / measured);
}

}  // namespace

int main() {
  const Shared& links = *bench::run_group(2, [](const Group& group, Shared& shared) {
    double* const row = shared.results[group->rank()];
    row[0] = time_all_reduce(group, kSmall);
    row[1] = time_all_reduce(group, kLarge);
    for (std::size_t i = 0; i < std::size(kAsked); ++i) row[2 + i] = time_all_reduce(group, kAsked[i]);
  });
  // Two steps of half the bytes each: 2 latency + bytes / bandwidth.
  const double* const times = links.results[0];
  const double bandwidth = (kLarge - kSmall) / (times[1] - times[0]);
  const par::Link link{.latency = std::max(0.0, (times[0] - kSmall / bandwidth) / 2), .bandwidth = bandwidth};
  std::printf("shm, two ranks: latency %.2f us, bandwidth %.2f GB/s (from %ld and %ld bytes)\n", link.latency * 1e6,
              link.bandwidth / 1e9, static_cast<long>(kSmall), static_cast<long>(kLarge));
  for (std::size_t i = 0; i < std::size(kAsked); ++i) {
    std::vector<double> ends(2, 0.0);
    const par::HopPlan plan(par::Algorithm::kRing, 2, kAsked[i] / 4);
    par::simulate(
        link, plan.steps(), [&](int step) { return plan.step(step); }, 4, ends);
    print(("all_reduce of " + std::to_string(kAsked[i])).c_str(), ends[0], times[2 + i]);
  }
  // The profile of one rank while the other one computes too, because they share caches and memory.
  const Shared& steps = *bench::run_ranks(2, [](int rank, Shared& shared) {
    shared.meet(2);
    shared.results[rank][0] = time_step(alone());
  });
  const Shared& together = *bench::run_group(
      2, [](const Group& group, Shared& shared) { shared.results[group->rank()][0] = time_step(group); });
  double bytes = 0;
  Mlp model;
  for (const auto& parameter : model.parameters()) bytes += static_cast<double>(parameter->numel()) * 4;
  const double step = (steps.results[0][0] + steps.results[1][0]) / 2;
  const par::StepProfile profile{.forward = step, .buckets = {{bytes, 0}}};
  print("DDP step, MLP, 128 rows", par::predict_step(profile, {.link = link, .overlap = false}, 2).ddp,
        together.results[0][0]);
}
