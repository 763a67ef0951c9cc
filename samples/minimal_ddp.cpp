// Trains in any number of processes: ./minimal_ddp for one, lockstep-run -n 4 ./minimal_ddp for four.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <memory>

namespace ls = lockstep;

struct Mlp : ls::nn::Module {
  ls::nn::Linear& hidden = add<ls::nn::Linear>("hidden", 20, 64);  // constructed, registered, owned
  ls::nn::Linear& out = add<ls::nn::Linear>("out", 64, 1);
  ls::Tensor forward(const ls::Tensor& x) const override { return out(ls::relu(hidden(x))); }
};

int main() {
  auto group = ls::parallel::init_process_group();  // one rank, with a warning, if no launcher started it
  ls::manual_seed(0);
  const ls::Tensor x = ls::randn({1000, 20}), y = ls::sin(ls::sum(x, {1}, true));
  auto sampler = std::make_shared<ls::data::DistributedSampler>(1000, group->size(), group->rank());
  ls::data::DataLoader loader(std::make_shared<ls::data::TensorDataset>(x, y), {.batch_size = 50, .sampler = sampler});

  Mlp net;
  ls::parallel::DistributedDataParallel model(net, group);  // all ranks start from rank 0's parameters
  ls::optim::AdamW optimizer(model.parameters(), {.lr = 0.01});
  ls::nn::MSELoss criterion;
  for (int epoch = 0; epoch < 20; ++epoch) {
    sampler->set_epoch(epoch);
    for (const auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      ls::Tensor loss = criterion(model(inputs), targets);  // 50 examples per rank
      loss.backward();                                      // meanwhile the gradients are averaged over all ranks
      optimizer.step();
    }
  }
  const unsigned long long hash = ls::nn::parameter_hash(net);
  std::printf("rank %d of %d: parameters %016llx\n", group->rank(), group->size(), hash);  // the same on all ranks
  if (group->rank() == 0) ls::save(net.state_dict(), "net.safetensors");
}
