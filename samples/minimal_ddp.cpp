// The smallest program that trains on any number of processes: ./minimal_ddp, or lockstep-run -n 4 ./minimal_ddp
#include <lockstep/lockstep.h>

#include <cstdio>
#include <memory>

namespace ls = lockstep;

struct Mlp : ls::nn::Module {
  ls::nn::Linear& hidden = add<ls::nn::Linear>("hidden", 20, 64);
  ls::nn::Linear& out = add<ls::nn::Linear>("out", 64, 1);
  ls::Tensor forward(const ls::Tensor& x) const override { return out(ls::relu(hidden(x))); }
};

int main() {
  auto group = ls::parallel::init_process_group();  // started alone, a group of one
  ls::manual_seed(0);
  const ls::Tensor x = ls::randn({1000, 20}), y = ls::sin(ls::sum(x, {1}, true));
  auto sampler = std::make_shared<ls::data::DistributedSampler>(1000, group->size(), group->rank());
  ls::data::DataLoader loader(std::make_shared<ls::data::TensorDataset>(x, y), {.batch_size = 50, .sampler = sampler});

  Mlp net;
  ls::parallel::DistributedDataParallel model(net, group);
  ls::optim::AdamW optimizer(model.parameters(), {.lr = 0.01});
  ls::Tensor loss;
  for (int epoch = 0; epoch < 20; ++epoch) {
    sampler->set_epoch(epoch);
    for (const auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      loss = ls::nn::MSELoss()(model(inputs), targets);
      loss.backward();  // meanwhile the gradients are averaged over all ranks
      optimizer.step();
    }
  }
  std::printf("rank %d of %d: loss %.4f\n", group->rank(), group->size(), loss.item<double>());
  if (group->rank() == 0) ls::save(net.state_dict(), "net.safetensors");
}
