// The order of dependent work, and caches: mistakes that a GPU would show only sometimes.
#include <cudnn.h>

#include "lockstep/tensor/memory/accelerator_internal.h"
#include "tests/cuda/simulator/simulator.h"
#include "tests/support/testing.h"

namespace {

const ls::Device kDevice("cuda:0"), kOther("cuda:1");

}  // namespace

TEST_CASE("pinned memory has been read when a copy to the device returns") {
  ls::Tensor host = ls::ones({1000});
  ls::Accelerator& accelerator = ls::accelerator(kDevice);
  REQUIRE(accelerator.pin_host(host.raw_data(), 4000));
  const ls::Tensor there = host.to(kDevice);
  host.fill_(2);
  CHECK(ls::sum(there).item<float>() == 1000);
  accelerator.unpin_host(host.raw_data());
}

TEST_CASE("a device overwrites memory only after another device has finished copying from it") {
  const ls::Tensor source = ls::ones({1000}, {.device = kOther});
  const ls::Tensor copy = source.to(kDevice);
  source.fill_(2);
  CHECK(ls::sum(source).item<float>() == 2000);  // the source's work is done first
  CHECK(ls::sum(copy).item<float>() == 1000);
}

TEST_CASE("memory that one device frees is not allocated again before another device has copied from it") {
  ls::Tensor source = ls::ones({1000}, {.device = kOther});
  const ls::Tensor copy = source.to(kDevice);
  source = {};
  const ls::Tensor next = ls::full({1000}, 3.0, {.device = kOther});
  CHECK(ls::sum(next).item<float>() == 3000);
  CHECK(ls::sum(copy).item<float>() == 1000);
}

TEST_CASE("a thread's current device does not change") {
  (void)ls::ones({3}, {.device = kDevice});
  CHECK(simulator::current_device() == 0);
  {
    const ls::Tensor elsewhere = ls::empty({3}, {.device = kOther});
    CHECK(simulator::current_device() == 0);
  }
  CHECK(simulator::current_device() == 0);
}

// cuBLASLt's choice depends on the alignment of operands; the simulator ends the process if an algorithm is used for
// others.
TEST_CASE("an algorithm is remembered for operands with the same alignment") {
  const ls::Tensor memory = numbers({16 * 40 + 1}), weight = numbers({4, 40}), bias = numbers({4});
  const auto product = [&](std::int64_t offset, const ls::Device& device) {
    const ls::Tensor x = memory.to(device).narrow(0, offset, 16 * 40).reshape({16, 40});
    return ls::linear(x, weight.to(device), bias.to(device)).to("cpu");
  };
  for (const std::int64_t offset : {0, 1, 0}) {
    INFO("offset ", offset);
    simulator::calls().clear();
    check_close(product(offset, kDevice), product(offset, "cpu"), "linear", {1e-5, 1e-6});
    CHECK(simulator::calls()["cublasLtMatmul"] == 1);
  }
}

TEST_CASE("a replay writes the device-side scalars only when they have changed") {
  ls::nn::Linear model(3, 2);
  model.to(kDevice);
  const ls::Tensor x = numbers({5, 3}).to(kDevice);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.5});
  ls::CudaGraph graph(kDevice);
  graph.capture([&] {
    optimizer.zero_grad();
    ls::sum(model(x)).backward();
    optimizer.step();
  });
  const auto launches_of_replay = [&] {
    simulator::calls().clear();
    graph.replay();
    CHECK(simulator::calls()["cudaGraphLaunch"] == 1);
    return simulator::calls()["cudaLaunchKernel"];
  };
  (void)launches_of_replay();  // later steps have other scalars
  CHECK(launches_of_replay() == 0);
  optimizer.set_lr(0.25);
  CHECK(launches_of_replay() == 1);
  CHECK(launches_of_replay() == 0);
}

TEST_CASE("a convolution that one cuDNN algorithm refuses is computed by the next one from then on") {
  const ls::Tensor x = numbers({2, 3, 6, 6}), weight = numbers({65, 3, 3, 3});  // too many channels for our own kernel
  const auto convolve = [&](const ls::Device& device) {
    const ls::Tensor leaf = x.to(device).detach(), kernel = weight.to(device).detach();
    leaf.requires_grad_();
    kernel.requires_grad_();
    ls::sum(ls::conv2d(leaf, kernel) * 0.5).backward();
    return std::pair(leaf.grad().to("cpu"), kernel.grad().to("cpu"));
  };
  const auto want = convolve("cpu");
  for (const std::string refused :
       {"cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter"}) {
    INFO(refused);
    simulator::settings().failures[refused] = {0, CUDNN_STATUS_NOT_SUPPORTED};
    simulator::calls().clear();
    const auto have = convolve(kDevice);
    CHECK(simulator::calls()[refused] == 2);
    check_close(have.first, want.first, "by the input", {1e-5, 1e-5});
    check_close(have.second, want.second, "by the weight", {1e-5, 1e-5});
    simulator::calls().clear();
    (void)convolve(kDevice);
    CHECK(simulator::calls()[refused] == 1);
    simulator::settings().failures[refused] = {0, CUDNN_STATUS_NOT_SUPPORTED};
    CHECK(contains(error_of<ls::DeviceError>([&] { (void)convolve(kDevice); }), "CUDNN_STATUS_NOT_SUPPORTED"));
  }
}
