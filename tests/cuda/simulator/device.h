// The names that nvcc provides to kernels, for a compiler of the host. Included before every .cu file of the simulated module.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "tests/cuda/simulator/simulator.h"

#undef __host__
#undef __device__
#undef __global__
#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __host__
#define __device__
#define __global__
#define __shared__ static  // one block runs at a time
#define __launch_bounds__(...)
#define __grid_constant__

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900

// Indices of the running thread (block.cpp).
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 gridDim;

void __syncthreads();
int __shfl_down_sync(unsigned mask, int value, unsigned distance);
int __shfl_xor_sync(unsigned mask, int value, int bits);
int __shfl_sync(unsigned mask, int value, int lane);

template <class T>
T atomicAdd(T* place, T value) {
  const T before = *place;
  *place = static_cast<T>(before + value);
  return before;
}
template <class T>
T atomicCAS(T* place, T expected, T value) {
  const T before = *place;
  if (before == expected) *place = value;
  return before;
}

namespace simulator {
// Starts the grid on the stream with the arguments that `run` holds. `bytes`: the size of all arguments.
cudaError_t launch(const cudaLaunchConfig_t& config, std::size_t bytes, std::function<void()> thread);
}  // namespace simulator

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  std::tuple<std::remove_cv_t<Parameters>...> held(arguments...);
  return simulator::launch(*config, (sizeof(Parameters) + ... + 0),
                           [kernel, held = std::move(held)] { std::apply(kernel, held); });
}
