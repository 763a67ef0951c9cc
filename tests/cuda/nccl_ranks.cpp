// nccl with two ranks, each a process that lockstep-run starts (ctest's cuda.nccl_ranks): on two GPUs, or both on one.
#include "tests/cuda/nccl_ranks.h"

namespace {

namespace nn = ls::nn;

struct Net : nn::Module {
  nn::Linear& hidden = add<nn::Linear>("hidden", 6, 48);
  nn::Linear& out = add<nn::Linear>("out", 48, 4);
  ls::Tensor forward(const ls::Tensor& x) const override { return out(ls::relu(hidden(x))); }
};

// Ten steps on twelve rows; `backward` takes its part of them.
template <class Backward>
std::vector<ls::Tensor> train(Net& net, Backward backward) {
  ls::optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    backward(numbers({12, 6}, {}, 50 + step), numbers({12, 4}, {}, 80 + step));
    optimizer.step();
  }
  std::vector<ls::Tensor> out;
  for (const nn::Parameter& parameter : net.parameters()) out.push_back(parameter.tensor().detach().to("cpu"));
  return out;
}

}  // namespace

TEST_CASE("nccl ranks: collectives" * doctest::skip()) {
  const par::InitOptions options = options_of_rank();
  const Group group = par::init_process_group(options);
  for (const ls::DType dtype : kAllDTypes) check_collectives(group, 5, dtype, false, *options.device);
  check_collectives(group, 20'000, ls::kFloat32, true, *options.device);
  for (const ls::DType dtype : kAllDTypes) check_parts(group, 37, dtype, *options.device);
  check_parts(group, 70'001, ls::kBFloat16, *options.device);
  check_collectives(group, 5, ls::kFloat32, false);  // host tensors, which are copied to the GPU and back
  check_uneven_and_products(group, *options.device);
  check_bools(group, *options.device);
  const ls::Tensor memory = group->empty({2, 30'000}, ls::kFloat32, *options.device);
  memory.fill_(group->rank() + 1.0);
  group->all_reduce(memory[1], par::ReduceOp::kAvg)->wait();
  CHECK(memory[1].max().item<double>() == 1.5);
  CHECK(memory[0].max().item<double>() == group->rank() + 1);
  for (const ls::DType dtype : {ls::kFloat16, ls::kBFloat16, ls::kFloat32, ls::kFloat64}) {
    const ls::Tensor t = ls::full({5}, group->rank() + 1.0, {.dtype = dtype, .device = *options.device});
    group->all_reduce_scaled(t, 0.25)->wait();
    CHECK(t.to(ls::kFloat64).max().item<double>() == 0.75);
  }
  const Group duplicate = group->duplicate();
  duplicate->barrier();
}

TEST_CASE("nccl ranks: DistributedDataParallel" * doctest::skip()) {
  const par::InitOptions options = options_of_rank();
  const Group group = par::init_process_group(options);
  ls::manual_seed(5);
  Net here, there;
  there.load_state_dict(here.state_dict());
  there.to(*options.device);
  par::GradientAccumulation alone(here, {.micro_batches = 2});
  const auto want = train(here, [&](const ls::Tensor& x, const ls::Tensor& y) {
    alone.backward(x, y, [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::mse_loss(here(x), y); });
  });
  par::DistributedDataParallel ddp(there, group, {.bucket_cap_mb = 0.0003, .check_every = 5});
  const auto have = train(there, [&](const ls::Tensor& x, const ls::Tensor& y) {
    ddp.backward(x.narrow(0, 6 * group->rank(), 6).to(*options.device),
                 y.narrow(0, 6 * group->rank(), 6).to(*options.device),
                 [&](const ls::Tensor& x, const ls::Tensor& y) { return nn::mse_loss(there(x), y); });
  });
  CHECK(ddp.stats().copies == 0);
  for (std::size_t i = 0; i < want.size(); ++i) check_close(have[i], want[i], "nccl", {1e-4, 1e-5});
}

TEST_CASE("nccl ranks: a rank that does not arrive" * doctest::skip()) {
  par::InitOptions options = options_of_rank();
  const Group other = par::init_process_group(options);
  options.timeout = std::chrono::seconds(2);
  options.group_name = "late";
  const Group group = par::init_process_group(options);
  const ls::Tensor t = ls::ones({5}, {.device = *options.device});
  if (group->rank() == 0) {
    const std::string error = error_of<ls::CommTimeout>([&] { group->all_reduce(t)->wait(); });
    CHECK(contains(error, "all_reduce"));
    CHECK(contains(error, "rank 1 has started"));
  }
  other->barrier();
  if (group->rank() == 1) {  // what rank 0 sent before it gave up may be enough for one
    const std::string error = error_of<ls::CommError>([&] {
      group->all_reduce(t)->wait();
      group->all_reduce(t)->wait();
    });
    CHECK_MESSAGE(contains(error, "rank 0"), error);
  }
}

TEST_CASE("nccl ranks: ranks that disagree about an operation wait until the time-out" * doctest::skip()) {
  par::InitOptions options = options_of_rank();
  const Group other = par::init_process_group(options);
  options.timeout = std::chrono::seconds(2);
  options.group_name = "disagree";
  const Group group = par::init_process_group(options);
  const ls::Tensor in = ls::ones({5}, {.device = *options.device});
  const std::string error =
      error_of<ls::CommError>([&] { group->recv(in, 1 - group->rank())->wait(); });  // nobody sends
  CHECK_MESSAGE(contains(error, "recv"), error);
  other->barrier();
}

TEST_CASE("nccl ranks: two ranks on one GPU are refused" * doctest::skip()) {
  par::InitOptions options = options_of_rank();
  options.device = "cuda:0";
  options.backend_options = {};
  CHECK(contains(error_of<ls::InvalidArgument>([&] { par::init_process_group(options); }), "ranks 0 and 1"));
}
