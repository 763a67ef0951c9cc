// Adam whose state is sharded over the ranks (ZeRO stage 1), compared with Adam on every rank (DDP).
#include <lockstep/lockstep.h>

#include <cstdio>

namespace ls = lockstep;
namespace par = ls::parallel;

constexpr int kParameters = 1200, kSteps = 5;

int main() {
  const auto group = par::init_process_group();
  const int rank = group->rank(), size = group->size(), own = kParameters / size;  // 1200 is divisible by 1 to 6
  const ls::nn::Parameter whole(ls::sin(ls::arange(kParameters, {.dtype = ls::kFloat32})));  // for DDP
  const ls::nn::Parameter gathered(whole->detach().clone());                                 // for forward and backward
  const ls::nn::Parameter shard(
      gathered->detach().slice(0, rank * own, (rank + 1) * own).clone());  // for the optimizer
  ls::optim::Adam everywhere({whole}, {.lr = 0.1}), sharded({shard}, {.lr = 0.1});
  const ls::Tensor x = ls::cos(ls::arange(8 * kParameters, {.dtype = ls::kFloat32}) + rank).reshape({8, kParameters});
  const auto backward = [&](const ls::nn::Parameter& w) {
    w->set_grad({});
    ls::mean(ls::pow(ls::matmul(x, w) - 1, 2)).backward();
  };
  for (int step = 0; step < kSteps; ++step) {
    backward(whole);
    group->all_reduce(whole->grad(), par::ReduceOp::kAvg)->wait();
    everywhere.step();

    backward(gathered);
    const ls::Tensor mean = ls::zeros({own});
    group->reduce_scatter(mean, gathered->grad(), par::ReduceOp::kAvg)->wait();
    shard->set_grad(mean);
    sharded.step();
    group->all_gather(gathered->detach(), shard->detach())->wait();
  }
  if (rank != 0) return 0;
  std::printf("Adam's state on each rank: %d bytes with DDP, %d bytes if sharded\n", 8 * kParameters, 8 * own);
  std::printf("parameters after %d steps: %s\n", kSteps,
              ls::equal(whole->detach(), gathered->detach()) ? "bitwise identical" : "different");
}
