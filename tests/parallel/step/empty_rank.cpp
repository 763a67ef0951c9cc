// DistributedDataParallel over a model with BatchNorm, where a rank has no samples in a step.
#include "tests/support/groups.h"

namespace nn = ls::nn;
using ls::parallel::DistributedDataParallel;

namespace {

struct Net : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", 2, 3, 2);
  nn::BatchNorm2d& norm = add<nn::BatchNorm2d>("norm", 3);
  nn::Linear& head = add<nn::Linear>("head", 3, 2);

  Net() {
    for (const auto& [name, p] : named_parameters())
      p.master().detach().copy_(numbers(p->shape(), {}, static_cast<std::uint32_t>(name.size())));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return head(ls::mean(ls::relu(norm(conv(x))), {2, 3})); }
};

// The samples of a rank: rank 0 has four, every other one none.
ls::Tensor samples(int rank) { return numbers({4, 2, 3, 3}).narrow(0, 0, rank == 0 ? 4 : 0); }

// The gradients of one process on the samples of rank 0, divided by the number of ranks.
ls::StateDict expected(const Net& net, int ranks) {
  ls::sum(ls::square(net(samples(0)))).backward();
  ls::StateDict gradients;
  for (const auto& [name, p] : net.named_parameters()) gradients.insert(name, p->grad() / ranks);
  return gradients;
}

void check_gradients(const Net& net, const ls::StateDict& want) {
  for (const auto& [name, p] : net.named_parameters()) check_close(p->grad(), want.at(name), name);
}

}  // namespace

TEST_CASE("a rank without samples takes part with gradients of 0, and its BatchNorm keeps the running statistics") {
  for (const int ranks : {2, 3}) {
    with_group("shm", ranks, [&](const Group& group) {
      const Net reference;
      const ls::StateDict want = expected(reference, ranks);
      Net net;
      DistributedDataParallel ddp(net, group, {.sync_buffers = false});
      for (int step = 0; step < 3; ++step) {
        net.zero_grad();
        ls::sum(ls::square(ddp(samples(group->rank())))).backward();
        check_gradients(net, want);
      }
      CHECK(net.norm.num_batches_tracked->item<std::int64_t>() == 3);
      if (group->rank() > 0) {
        CHECK(ls::equal(*net.norm.running_mean, ls::zeros({3})));
        CHECK(ls::equal(*net.norm.running_var, ls::ones({3})));
      }
      CHECK(ddp.unused_parameters().empty());
    });
  }
}

TEST_CASE("a training step skips the micro-batches that have no samples, and buffers are those of rank 0") {
  with_group("shm", 2, [](const Group& group) {
    Net reference, net;
    DistributedDataParallel ddp(net, group, {.sync_buffers = true});
    const auto loss_of = [](const Net& net) {
      return [&net](const ls::Tensor& x, const ls::Tensor&) { return ls::sum(ls::square(net(x))); };
    };
    const ls::Tensor x = samples(group->rank());
    ddp.backward(x, x, loss_of(net));
    const ls::StateDict want = expected(reference, 1);
    check_gradients(net, want);
    check_close(*net.norm.running_mean, reference.norm.running_mean->detach(), "running_mean");
    check_close(*net.norm.running_var, reference.norm.running_var->detach(), "running_var");
  });
}
