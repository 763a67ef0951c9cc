// NAdam, RAdam, Muon and Adafactor in every mode of training: the parameters and the checkpoint of one process, or a
// refusal where the update needs whole parameters.
#include "tests/support/groups.h"

namespace {

namespace par = ls::parallel;
namespace optim = ls::optim;

constexpr int kMicroBatches = 4;

struct Net : ls::nn::Module {
  ls::nn::Linear& fc1 = add<ls::nn::Linear>("fc1", 3, 8, ls::nn::LinearOptions{.bias = false});
  ls::nn::Linear& fc2 = add<ls::nn::Linear>("fc2", 8, 2, ls::nn::LinearOptions{.bias = false});
  Net() {
    std::uint32_t salt = 0;
    const ls::NoGradGuard no_grad;
    for (const ls::nn::Parameter& p : parameters()) p->copy_(numbers(p->shape(), {}, ++salt));
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return fc2(ls::tanh(fc1(x))); }
};

// Trains 2 steps, saves, loads into a second optimizer, and trains 2 more. Returns the last checkpoint
// without the random state.
template <class Optimizer, class Mode>
ls::StateDict train(Mode& run, const std::string& name, int rank = 0, int ranks = 1) {
  Optimizer first(run.parameters()), second(run.parameters());
  const std::int64_t rows = 24 / ranks;
  const ls::Tensor x = numbers({24, 3}, {}, 7).narrow(0, rank * rows, rows),
                   y = numbers({24, 2}, {}, 8).narrow(0, rank * rows, rows);
  const ls::nn::MSELoss criterion;
  const std::string file = name + ".safetensors";
  for (optim::Optimizer* optimizer :
       {static_cast<optim::Optimizer*>(&first), static_cast<optim::Optimizer*>(&second)}) {
    if (optimizer == &second) par::load_checkpoint(file, {.model = &run, .optimizer = optimizer});
    for (int step = 0; step < 2; ++step) {
      optimizer->zero_grad();
      run.backward(x, y, [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(run.module()(in), out); });
      optimizer->step();
    }
    par::save_checkpoint(file, {.model = &run, .optimizer = optimizer});
  }
  ls::StateDict entries;
  for (const auto& [key, tensor] : ls::load(file)) {
    if (!key.starts_with("random.")) entries.insert(key, tensor);
  }
  return entries;
}

bool same_entries(const ls::StateDict& a, const ls::StateDict& b) {
  bool same = a.size() == b.size() && a.size() > 4;
  for (const auto& [key, tensor] : a) same = same && b.contains(key) && same_bits(tensor, b.at(key));
  return same;
}

template <class Optimizer>
ls::StateDict of_one_process() {
  Net model;
  par::GradientAccumulation run(model, {.micro_batches = kMicroBatches});
  const ls::StateDict entries = train<Optimizer>(run, "accumulate");
  // Four steps without a checkpoint in between give the same parameters.
  Net other;
  par::GradientAccumulation plain(other, {.micro_batches = kMicroBatches});
  Optimizer optimizer(plain.parameters());
  const ls::nn::MSELoss criterion;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    plain.backward(numbers({24, 3}, {}, 7), numbers({24, 2}, {}, 8),
                   [&](const ls::Tensor& in, const ls::Tensor& out) { return criterion(other(in), out); });
    optimizer.step();
  }
  CHECK(same_bits(other.fc1.weight, model.fc1.weight));
  CHECK(same_bits(other.fc2.weight, model.fc2.weight));
  return entries;
}

template <class Optimizer>
void check_ddp(const ls::StateDict& expected) {
  for (const int ranks : {2, 4}) {
    INFO("ranks ", ranks);
    with_threads("local", ranks, [&](const Group& group) {
      Net model;
      par::DistributedDataParallel run(model, group, {.micro_batches_per_rank = kMicroBatches / ranks});
      CHECK(same_entries(train<Optimizer>(run, "ddp", group->rank(), ranks), expected));
    });
  }
}

template <class Optimizer>
void check_sharded(const ls::StateDict& expected) {
  for (const int stage : {1, 2, 3}) {
    INFO("stage ", stage);
    with_threads("local", 2, [&](const Group& group) {
      Net model;
      par::ShardedDataParallel run(model, group, {.stage = stage, .micro_batches_per_rank = 2});
      CHECK(same_entries(train<Optimizer>(run, "sharded", group->rank(), 2), expected));
    });
  }
}

template <class Optimizer>
void check_refused(const std::string& name) {
  for (const int stage : {1, 2, 3}) {
    with_threads("local", 2, [&](const Group& group) {
      Net model;
      par::ShardedDataParallel run(model, group, {.stage = stage});
      CHECK(contains(error_of([&] { Optimizer optimizer(run.parameters()); }),
                     name + ": a parameter is distributed over the ranks, but the algorithm needs whole ones"));
      CHECK(contains(error_of([&] { Optimizer optimizer(model.parameters()); }), "distributed over the ranks"));
    });
  }
  with_threads("local", 2, [&](const Group& group) {
    Net model;
    par::DeviceMesh mesh(group, {{"tp", 2}});
    par::parallelize(model, mesh["tp"], {.plan = {{"fc1", par::ColwiseParallel()}, {"fc2", par::RowwiseParallel()}}});
    CHECK(contains(error_of([&] { Optimizer optimizer(model.parameters()); }),
                   name + ": fc1.weight[" + std::to_string(group->rank()) + "/2] is slice"));
  });
}

}  // namespace

TEST_CASE("NAdam and RAdam: replicas and shards give the parameters and the checkpoint of one process") {
  const ls::StateDict nadam = of_one_process<optim::NAdam>(), radam = of_one_process<optim::RAdam>();
  check_ddp<optim::NAdam>(nadam), check_ddp<optim::RAdam>(radam);
  check_sharded<optim::NAdam>(nadam), check_sharded<optim::RAdam>(radam);
}

TEST_CASE("Muon and Adafactor: replicas give the parameters and the checkpoint of one process") {
  check_ddp<optim::Muon>(of_one_process<optim::Muon>());
  check_ddp<optim::Adafactor>(of_one_process<optim::Adafactor>());
}

TEST_CASE("Muon and Adafactor refuse shards and slices") {
  check_refused<optim::Muon>("Muon");
  check_refused<optim::Adafactor>("Adafactor");
}
