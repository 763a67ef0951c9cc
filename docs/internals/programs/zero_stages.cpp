// DDP (stage 0) or ZeRO on one model: planned and measured bytes of rank 0. Arguments: stage, micro-batches of a rank.
#include <lockstep/lockstep.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>
namespace ls = lockstep;
namespace par = ls::parallel;

int main(int, char** argv) {
  const auto group = par::init_process_group();
  std::ostream out(group->rank() == 0 ? std::cout.rdbuf() : nullptr);
  const int stage = std::atoi(argv[1]), each = std::atoi(argv[2]), first = 1024 * each * group->rank();
  const ls::Tensor x = ls::sin(ls::arange(first, first + 1024.0 * each)).reshape({-1, 128});  // 8 samples each
  ls::manual_seed(1);
  ls::nn::Sequential net;
  for (int i = 0; i < 9; ++i) net.push_back(ls::nn::Linear(128, i < 8 ? 128 : 10));
  const auto train = [&](auto& run) {
    ls::optim::AdamW optimizer(run.parameters(), {.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      run.backward(x, x.narrow(1, 0, 10), [&](auto& in, auto& y) { return ls::nn::MSELoss()(net(in), y); });
      std::int64_t sent = 0, state = -ls::allocator_stats().allocated_bytes;
      for (const par::LinkTraffic& link : group->traffic().step_links()) sent += link.from == 0 ? link.bytes : 0;
      optimizer.step();
      state += ls::allocator_stats().allocated_bytes;
      if (step == 0) out << "measured: " << sent << " bytes sent, " << state << " of optimizer state\n";
      optimizer.zero_grad();
    }
  };
  out.fill('0');
  const auto print = [&] { out << std::hex << std::setw(16) << ls::nn::parameter_hash(net) << '\n'; };
  if (stage == 0) {
    par::DistributedDataParallel run(net, group, {.micro_batches_per_rank = each});
    return train(run), print(), 0;
  }
  par::ShardedDataParallel run(net, group, {.stage = stage, .units = {"*"}, .micro_batches_per_rank = each});
  out << run.plan().to_string();
  train(run);
  run.gathered(print);
}
