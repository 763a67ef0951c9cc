// The modes of data parallelism on GPUs compared with the same micro-batches on the CPU: equal within rounding.
#include "tests/cuda/host_accelerator.h"
#include "tests/support/groups.h"

namespace {

namespace nn = ls::nn;
namespace optim = ls::optim;
namespace par = ls::parallel;

constexpr int kSteps = 4;
constexpr std::int64_t kRows = 12;

struct Net : nn::Module {
  nn::Linear& hidden = add<nn::Linear>("hidden", 6, 48);
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", ls::Shape{48});
  nn::Dropout& dropout = add<nn::Dropout>("dropout", 0.25);
  nn::Linear& out = add<nn::Linear>("out", 48, 4);
  nn::Linear& unused = add<nn::Linear>("unused", 3, 3);
  ls::Tensor forward(const ls::Tensor& x) const override { return out(dropout(norm(ls::gelu(hidden(x))))); }
};

// Layers on two devices, as in contract program 04.
struct SplitNet : nn::Module {
  ls::Device second;
  nn::Linear& first_half = add<nn::Linear>("first_half", 6, 48);
  nn::Linear& second_half = add<nn::Linear>("second_half", 48, 4);
  SplitNet(ls::Device d0, ls::Device d1) : second(d1) {
    first_half.to(d0);
    second_half.to(d1);
  }
  ls::Tensor forward(const ls::Tensor& x) const override { return second_half(ls::relu(first_half(x)).to(second)); }
};

// The rows of step `step`, on the CPU.
ls::Tensor inputs(int step) { return numbers({kRows, 6}, {}, 100 + step); }
ls::Tensor labels(int step) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < kRows; ++i) values.push_back((i * 7 + step) % 4);
  return ls::tensor(values);
}

ls::StateDict initial(const nn::Module& module) {
  ls::StateDict state;
  int seed = 0;
  for (const auto& [name, parameter] : module.named_parameters())
    state.insert(name, numbers(parameter.tensor().shape(), {}, ++seed) * 0.3);
  return state;
}

struct Trained {
  std::vector<ls::Tensor> parameters;
  std::vector<double> losses;
};

// Trains `net` with `backward(x, y)`, which accumulates gradients and returns the mean loss.
template <class Backward>
Trained train(nn::Module& net, Backward backward) {
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Trained out;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    out.losses.push_back(backward(inputs(step), labels(step)).template item<double>());
    optimizer.step();
  }
  for (const nn::Parameter& parameter : net.parameters())
    out.parameters.push_back(parameter.tensor().detach().to("cpu"));
  return out;
}

template <class Module = Net, class... Args>
Trained reference(int micro_batches, Args... args) {
  Module net(args...);
  net.load_state_dict(initial(net));
  par::GradientAccumulation run(net, {.micro_batches = micro_batches});
  ls::manual_seed(3);
  return train(net, [&](const ls::Tensor& x, const ls::Tensor& y) {
    return run.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); });
  });
}

void check_same(const Trained& have, const Trained& want, const std::string& what) {
  REQUIRE(have.parameters.size() == want.parameters.size());
  for (std::size_t i = 0; i < have.parameters.size(); ++i)
    check_close(have.parameters[i], want.parameters[i], what, {1e-4, 1e-5});
  for (std::size_t i = 0; i < have.losses.size(); ++i)
    CHECK(have.losses[i] == doctest::Approx(want.losses[i]).epsilon(1e-4));
}

Trained train_data_parallel(const std::vector<ls::Device>& devices, bool verb) {
  Net net;
  net.load_state_dict(initial(net));
  net.to(devices[0]);
  par::DataParallel run(net, devices);
  ls::manual_seed(3);
  return train(net, [&](const ls::Tensor& x, const ls::Tensor& y) {
    const ls::Tensor here = x.to(devices[0]), want = y.to(devices[0]);
    if (verb)
      return run.backward(here, want,
                          [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); });
    ls::Tensor loss = nn::cross_entropy(run(here), want);
    loss.backward();
    return loss;
  });
}

// Trains on this rank's rows in `group`, on `device`.
Trained train_distributed(const Group& group, nn::Module& net, const ls::Device& in, const ls::Device& out,
                          const par::DistributedDataParallelOptions& options = {},
                          std::shared_ptr<par::CommHook> hook = nullptr) {
  net.load_state_dict(initial(net));
  par::DistributedDataParallel run(net, group, options);
  if (hook) run.register_comm_hook(std::move(hook));
  group->barrier();  // ranks may be threads of one process
  ls::manual_seed(3);
  group->barrier();
  return train(net, [&](const ls::Tensor& x, const ls::Tensor& y) {
    const std::int64_t rows = kRows / group->size();
    return run.backward(x.narrow(0, group->rank() * rows, rows).to(in), y.narrow(0, group->rank() * rows, rows).to(out),
                        [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); });
  });
}

}  // namespace

TEST_CASE("DataParallel on one GPU twice, and on several") {
  const TestDevices devices;
  const Trained two = reference(2), three = reference(3);
  for (const bool verb : {true, false}) {
    CAPTURE(verb);
    check_same(train_data_parallel({devices[0], devices[0]}, verb), two, "{0, 0}");
    check_same(train_data_parallel({devices[0], devices[1]}, verb), two, "{0, 1}");
    check_same(train_data_parallel({devices[1], devices[0], devices[1]}, verb), three, "{1, 0, 1}");
  }
}

TEST_CASE("DataParallel records the bytes between two GPUs") {
  const TestDevices devices;
  if (devices.count() < 2) return;
  Net net;
  net.to(devices[0]);
  par::DataParallel run(net, {devices[0], devices[1]});
  std::int64_t bytes = 0;
  for (const nn::Parameter& parameter : net.parameters()) bytes += parameter.tensor().numel() * 4;
  const std::int64_t unused = (3 * 3 + 3) * 4;
  run.backward(inputs(0).to(devices[0]), labels(0).to(devices[0]),
               [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::cross_entropy(net(x), y); });
  CHECK(run.traffic().bytes(par::Phase::kParameters) == bytes);
  CHECK(run.traffic().bytes(par::Phase::kGradients) == bytes - unused);
}

TEST_CASE("DistributedDataParallel with a GPU for each rank") {
  const TestDevices devices;
  const Trained want = reference(2);
  for (const double cap_mb : {25.0, 0.0003}) {  // one bucket, or many
    with_threads("local", 2, [&](const Group& group) {
      Net net;
      net.to(devices[group->rank()]);
      check_same(
          train_distributed(group, net, devices[group->rank()], devices[group->rank()], {.bucket_cap_mb = cap_mb}),
          want, "ddp");
    });
  }
  if (devices.are_real()) return;  // a process that has used CUDA cannot be forked
  with_group("shm", 2, [&](const Group& group) {
    Net net;
    net.to(devices[group->rank()]);
    check_same(train_distributed(group, net, devices[group->rank()], devices[group->rank()]), want, "ddp over shm");
  });
}

TEST_CASE("DistributedDataParallel: micro-batches of a rank, hooks, and traffic counters") {
  const TestDevices devices;
  const Trained two = reference(2), four = reference(4);
  with_threads("local", 2, [&](const Group& group) {
    const ls::Device device = devices[group->rank()];
    Net net;
    net.to(device);
    check_same(train_distributed(group, net, device, device, {.micro_batches_per_rank = 2}), four,
               "two micro-batches a rank");
    Net hooked;
    hooked.to(device);
    check_same(train_distributed(group, hooked, device, device, {}, par::allreduce_hook()), two, "hook");
    std::int64_t down = 0, up = 0;
    for (const par::LinkTraffic& link : group->traffic().step_links()) {
      if (link.phase != par::Phase::kGradients) continue;
      down += link.from == -1 - group->rank() ? link.bytes : 0;
      up += link.to == -1 - group->rank() ? link.bytes : 0;
    }
    std::int64_t elements = 0;
    for (const nn::Parameter& parameter : hooked.parameters()) elements += parameter.tensor().numel();
    CHECK(down == up);
    CHECK(down >= elements * 4);
    CHECK(down < elements * 4 * 2);
  });
}

TEST_CASE("DistributedDataParallel of a model whose layers are on several GPUs") {
  const TestDevices devices;
  const Trained want = reference<SplitNet>(2, ls::Device(), ls::Device());
  with_threads("local", 2, [&](const Group& group) {
    const ls::Device d0 = devices[2 * group->rank()], d1 = devices[2 * group->rank() + 1];
    SplitNet net(d0, d1);
    check_same(train_distributed(group, net, d0, d1), want, "two GPUs a rank");
  });
}

TEST_CASE("one rank on the host and one on a GPU train one model") {
  const TestDevices devices;
  const Trained want = reference(2);
  with_threads("local", 2, [&](const Group& group) {
    const ls::Device device = group->rank() == 0 ? ls::Device() : devices[0];
    Net net;
    net.to(device);
    check_same(train_distributed(group, net, device, device), want, "mixed");
  });
}
