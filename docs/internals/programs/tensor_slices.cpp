// Training of MLPs whose matrices are cut into tensor slices: a rank's memory, and what it sends in a step.
#include <lockstep/lockstep.h>

#include <cstdio>

namespace nn = lockstep::nn;
namespace par = lockstep::parallel;
constexpr std::int64_t kWidth = 512;

struct Mlp : nn::Module {
  nn::Linear& up = add<nn::Linear>("up", kWidth, 4 * kWidth);
  nn::Linear& down = add<nn::Linear>("down", 4 * kWidth, kWidth);
  lockstep::Tensor forward(const lockstep::Tensor& x) const override { return x + down(lockstep::gelu(up(x))); }
};

int main(int, char** argv) {  // the number of tensor slices
  const auto group = par::init_process_group();
  nn::DeferredInit deferred(/*seed=*/0);  // no memory for parameters yet: Parallel makes those of this rank
  nn::Sequential model{Mlp(), Mlp(), Mlp(), Mlp()};
  deferred.end();
  const par::DeviceMesh mesh(group, {{"tp", -1}});  // one axis: its group is the whole group
  const par::ParallelPlan plan = {{"*.up", par::ColwiseParallel{}}, {"*.down", par::RowwiseParallel{}}};
  par::Parallel run(model, mesh, {.partition = {.tensor_slices = argv[1][0] - '0'}, .plan = plan});
  lockstep::optim::AdamW optimizer(run.parameters(), {.lr = 1e-3});
  const auto x = lockstep::randn({256, kWidth}), y = lockstep::randn({256, kWidth});
  double loss = 0, sent = 0;
  for (int step = 0; step < 5; ++step, optimizer.step()) {
    group->traffic().clear(), optimizer.zero_grad();
    loss = run.backward(x, y, [&](auto& x, auto& y) { return nn::mse_loss(model(x), y); }).item<double>();
  }
  for (const auto phase : {par::Phase::kActivations, par::Phase::kActivationGradients})
    sent += static_cast<double>(group->traffic().bytes(phase)) * 1e-6;
  const double peak = static_cast<double>(lockstep::allocator_stats().peak_bytes) * 1e-6;
  run.gathered([&] {  // the whole matrices, for the hash
    const std::uint64_t hash = nn::parameter_hash(model);
    if (group->rank() > 0) return;
    std::printf("loss %.5f, hash %016lx, at most %6.2f MB, sends %.2f MB\n", loss, hash, peak, sent);
  });
}
