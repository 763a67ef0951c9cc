// CUDA devices for machines that have none: memory of the host, and the kernels of tensor/cuda/ run by the calling thread.
#pragma once

#include <memory>
#include <string>

#include "lockstep/tensor/device.h"

// While it lives, cuda:0 to cuda:3 are such devices, unless the machine has real ones (and LOCKSTEP_TEST_CUDA is not
// "host"), which are used then.
class TestDevices {
 public:
  TestDevices();
  ~TestDevices();
  TestDevices(const TestDevices&) = delete;
  TestDevices& operator=(const TestDevices&) = delete;

  bool are_real() const;
  int count() const;
  // cuda:0, cuda:1, ..., and again from cuda:0 where there are fewer.
  lockstep::Device operator[](int index) const;
  int pinned() const;  // pieces of host memory, by devices that are not real

 private:
  struct State;
  std::unique_ptr<State> state_;
};
