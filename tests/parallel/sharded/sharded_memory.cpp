// The memory of ShardedDataParallel: that of its plan by the allocator's statistics, and by those of the kernel.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "tests/support/groups.h"

namespace par = ls::parallel;

namespace {

// Layers without biases, each a unit. Their activations are small.
struct Net : ls::nn::Module {
  ls::nn::ModuleList& layers = add<ls::nn::ModuleList>("layers");
  Net(int count, std::int64_t width) {
    for (int i = 0; i < count; ++i) layers.push_back(ls::nn::Linear(width, width, {.bias = false}));
  }
  ls::Tensor forward(const ls::Tensor& x) const override {
    ls::Tensor y = x;
    for (ls::nn::Module& layer : layers) y = ls::tanh(layer(y));
    return y;
  }
};

// Bytes in live tensors and in communication memory; `peak`: their maximum.
std::int64_t held(bool peak = false) {
  const ls::AllocatorStats stats = ls::allocator_stats();
  return (peak ? stats.peak_bytes : stats.allocated_bytes) + stats.communication_bytes;
}

template <class Run, class Optimizer>
void step(Run& run, Optimizer& optimizer, const Net& net, const ls::Tensor& x) {
  run.backward(x, x, [&](const ls::Tensor& x, const ls::Tensor& y) { return ls::nn::MSELoss()(net(x), y); });
  optimizer.step();
  optimizer.zero_grad();
}

// --- one rank ------------------------------------------------------------------------------------------------------

constexpr int kLayers = 6;
constexpr std::int64_t kWidth = 250;  // a unit has padding on two and on four ranks
constexpr std::int64_t kElements = kLayers * kWidth * kWidth;

void check_plan(const Group& group, const par::ShardedDataParallelOptions& options) {
  const int each = options.micro_batches_per_rank;
  const ls::Tensor x = ls::full({each, kWidth}, 0.01);
  { Net(1, kWidth)(x); }  // the matrix product's memory of its own
  const std::int64_t before = held();
  Net net(kLayers, kWidth);
  par::ShardedDataParallel run(net, group, options);
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.01});
  step(run, optimizer, net, x);
  const par::ShardedPlan plan = run.plan();
  const std::int64_t summary = 4 * (5 + kLayers);  // five numbers, and a flag for each parameter
  const std::int64_t sets = each >= 4 ? 4 * kElements * (each >= 8 ? 2 : 1) : 0;  // in a step only
  const std::int64_t resident = held() - before;
  CHECK(resident == plan.memory_bytes() - sets + summary);
  ls::reset_peak_bytes();
  step(run, optimizer, net, x);
  CHECK(held() - before == resident);
  // Also the peak is that of the plan, with activations of 4 kWidth bytes and, while a micro-batch is added to the set of
  // the one before, one gradient.
  const std::int64_t activations = 64 * kWidth * each, gradient = each > 1 ? 4 * kWidth * kWidth : 0;
  const std::int64_t peak = held(true) - before - summary;
  CHECK(peak >= plan.memory_bytes());
  CHECK(peak <= plan.memory_bytes() + activations + gradient);
}

// --- against DistributedDataParallel -------------------------------------------------------------------------------

constexpr int kRanks = 4, kManyLayers = 60;
constexpr std::int64_t kWide = 672;  // 27.1 million parameters: what a process has besides them weighs little
constexpr std::int64_t kUnit = 4 * kWide * kWide;

// Bytes beyond those before the model was made: `allocator` of the rank with the most, `pss` the mean over the ranks.
struct Memory {
  std::int64_t allocator = 0, pss = 0, plan = 0;
};

// The proportional set size of a process: its own pages, and the k-th part of pages that k processes share.
std::int64_t pss_of(std::int64_t process) {
  std::FILE* const file = std::fopen(("/proc/" + std::to_string(process) + "/smaps_rollup").c_str(), "r");
  REQUIRE(file);
  char line[256];
  long kilobytes = -1;
  while (kilobytes < 0 && std::fgets(line, sizeof(line), file)) std::sscanf(line, "Pss: %ld kB", &kilobytes);
  std::fclose(file);
  return 1024 * kilobytes;
}

class Measurement {
 public:
  explicit Measurement(const Group& group) : group_(group), pids_(ls::zeros({group->size()}, {.dtype = ls::kInt64})) {
    group_->all_gather(pids_, ls::tensor({static_cast<std::int64_t>(getpid())}))->wait();
    before_ = now();
  }
  // All ranks call it.
  Memory growth() {
    const std::vector<Memory> after = now();
    Memory growth{};
    for (std::size_t r = 0; r < after.size(); ++r) {
      growth.allocator = std::max(growth.allocator, after[r].allocator - before_[r].allocator);
      growth.pss += (after[r].pss - before_[r].pss) / group_->size();
    }
    return growth;
  }

 private:
  std::vector<Memory> now() {
    const ls::Tensor all = ls::zeros({group_->size()}, {.dtype = ls::kInt64});
    group_->all_gather(all, ls::tensor({held(true)}))->wait();
    std::vector<Memory> memory;
    for (std::size_t r = 0; r < static_cast<std::size_t>(group_->size()); ++r)
      memory.push_back({.allocator = all.span<std::int64_t>()[r], .pss = pss_of(pids_.span<std::int64_t>()[r])});
    group_->barrier();  // nobody goes on while others measure
    return memory;
  }

  Group group_;
  ls::Tensor pids_;
  std::vector<Memory> before_;
};

template <class Run, class... Options>
void train(const Group& group, int layers, const ls::FunctionRef<void(const Run&)>& measure,
           const Options&... options) {
  Net net(layers, kWide);
  Run run(net, group, options...);
  ls::optim::AdamW optimizer(run.parameters(), {.lr = 1e-3});
  const ls::Tensor x = ls::full({1, kWide}, 0.01);
  step(run, optimizer, net, x);
  ls::reset_peak_bytes();
  step(run, optimizer, net, x);
  measure(run);
}

// Trains in its own processes. `plan`: the planned bytes.
template <class Run, class Plan, class... Options>
Memory measure(const Plan& plan, const Options&... options) {
  void* const shared = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto* const result = static_cast<Memory*>(shared);
  with_group("shm", kRanks, [&](const Group& group) {
    train<Run>(
        group, 2, [](const Run&) {}, options...);  // libraries allocate memory of their own
    ls::empty_cache();
    ls::reset_peak_bytes();
    Measurement measurement(group);
    train<Run>(
        group, kManyLayers,
        [&](const Run& run) {
          Memory growth = measurement.growth();
          growth.plan = plan(run);
          if (group->rank() == 0) *result = growth;
        },
        options...);
  });
  const Memory memory = *result;
  munmap(shared, sizeof(Memory));
  return memory;
}

}  // namespace

TEST_CASE("a rank has the memory of the plan, before a step, in it and after it") {
  for (const int ranks : {2, 4}) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (const int each : {1, 2, 4, 8}) {
        CAPTURE(ranks);
        CAPTURE(stage);
        CAPTURE(each);
        with_group("shm", ranks, [&](const Group& group) {
          const std::int64_t before = held();
          check_plan(group, {.stage = stage, .micro_batches_per_rank = each});
          CHECK(held() == before);
        });
      }
    }
  }
}

TEST_CASE("on four ranks stage 3 needs 0.27 of DistributedDataParallel's memory, by the plan, allocator and kernel" *
          doctest::skip(LOCKSTEP_SLOWDOWN > 1)) {  // sanitizers keep freed memory
  const Memory ddp = measure<par::DistributedDataParallel>(
      [](const par::DistributedDataParallel&) { return std::int64_t{4} * kManyLayers * kUnit; });
  const Memory sharded = measure<par::ShardedDataParallel>([](const par::ShardedDataParallel& run) {
    CHECK(run.plan().unit_bytes == 3 * kUnit);
    return run.plan().memory_bytes();
  });
  const auto check = [&](std::int64_t Memory::*figure) {
    const double ratio = static_cast<double>(sharded.*figure) / static_cast<double>(ddp.*figure);
    CHECK(ratio <= 0.27);
    CHECK(ratio > 0.25);
  };
  check(&Memory::plan);
  check(&Memory::allocator);
  check(&Memory::pss);
  for (const Memory& memory : {ddp, sharded}) {
    CHECK(memory.allocator >= memory.plan);
    CHECK(memory.allocator <= memory.plan + memory.plan / 100);
    CHECK(memory.pss >= memory.plan);
    CHECK(memory.pss <= memory.plan + memory.plan / 20);
  }
}
