// CUDA devices for machines that have none: memory of the host, and the kernels of tensor/cuda/ run by the calling thread.
#pragma once

#include <memory>
#include <string>

// While it lives, cuda:0 and cuda:1 are such devices, unless the machine has real ones (and LOCKSTEP_TEST_CUDA is not
// "host"), which are used then.
class TestDevices {
 public:
  TestDevices();
  ~TestDevices();
  TestDevices(const TestDevices&) = delete;
  TestDevices& operator=(const TestDevices&) = delete;

  bool are_real() const;
  int count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
