// Machines without a CUDA device, and machines that wait for each kernel. Each case needs its own machine, described
// by LOCKSTEP_SIMULATED_CUDA: ctest runs one case at a time.
#include "tests/cuda/simulator/simulator.h"
#include "tests/support/testing.h"

namespace {

std::string error_on_device() {
  CHECK(ls::device_count(ls::DeviceType::kCuda) == 0);
  CHECK(ls::sum(ls::ones({3})).item<float>() == 3);
  return error_of<ls::DeviceError>([] { (void)ls::zeros({1}, {.device = "cuda:0"}); });
}

}  // namespace

TEST_CASE("machine without a driver") { CHECK(contains(error_on_device(), "this machine has no NVIDIA driver")); }

TEST_CASE("machine with too old a driver") {
  CHECK(contains(error_on_device(), "CUDA driver version is insufficient for CUDA runtime version"));
}

TEST_CASE("machine without a GPU") { CHECK(contains(error_on_device(), "no CUDA-capable device is detected")); }

TEST_CASE("machine with two GPUs: one past the last") {
  CHECK(ls::device_count(ls::DeviceType::kCuda) == 2);
  const std::string error = error_of<ls::DeviceError>([] { (void)ls::zeros({1}, {.device = "cuda:2"}); });
  CHECK(contains(error, "cuda:2"));
}

// A process uses one GPU alone: ranks that also take memory of the first GPU are a well-known nuisance.
TEST_CASE("machine with two GPUs: the other one is left alone") {
  (void)ls::sum(ls::ones({3}, {.device = "cuda:1"})).item<float>();
  CHECK(simulator::calls()["cudaSetDevice(1)"] > 0);
  CHECK(simulator::calls()["cudaSetDevice(0)"] == 0);
}

TEST_CASE("machine that waits for kernels: a fault has the name of its operation") {
  const ls::Tensor x = ls::ones({10}, {.device = "cuda:0"});
  simulator::settings().failures["cudaStreamSynchronize"] = {0, cudaErrorLaunchFailure};
  const std::string error = error_of<ls::DeviceError>([&] { (void)ls::exp(x); });
  CHECK(contains(error, "cuda:0: exp: unspecified launch failure (cudaErrorLaunchFailure)"));
}
