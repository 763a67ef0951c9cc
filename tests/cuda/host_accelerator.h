// CUDA devices for machines without a GPU: host memory, and the kernels of tensor/cuda/ run by the calling thread.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/device.h"

// Provides cuda:0 to cuda:3 as such devices for its lifetime, unless the machine has real ones; then those are used,
// except where LOCKSTEP_TEST_CUDA is "host".
class TestDevices {
 public:
  TestDevices();
  ~TestDevices();
  TestDevices(const TestDevices&) = delete;
  TestDevices& operator=(const TestDevices&) = delete;

  bool are_real() const;  // of CUDA, also simulated
  bool are_gpus() const;  // and not simulated: products by tensor cores are fast
  int count() const;
  // cuda:0, cuda:1, ..., modulo the number of devices.
  lockstep::Device operator[](int index) const;
  int pinned() const;  // blocks of pinned memory, counted by simulated devices

 private:
  struct State;
  std::unique_ptr<State> state_;
};
