// The launches of launch_internal.h, which includes this file, as kernels on the current device's stream.
#pragma once

#include <algorithm>

#include "lockstep/tensor/cuda/runtime_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace detail {

inline constexpr std::int64_t kMostBlocks = 1 << 16;          // of an elementwise launch; beyond that threads loop
inline constexpr std::int64_t kMostOfGrid = (1LL << 31) - 1;  // limit of a grid's first dimension

// __grid_constant__: functors are read from the launch arguments; otherwise every thread that indexes their tables
// would copy them.
template <class F>
__global__ void __launch_bounds__(kThreads) run_elements(std::int64_t count, const __grid_constant__ F f) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  ONE_BY_ONE  // most threads have one i: an unrolled loop would first divide to find its count
      for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) f(i);
}

// The number of blocks that a multiprocessor must have registers for: the member F::kResident, if there is one.
template <class F>
constexpr int resident_blocks() {
  if constexpr (requires { F::kResident; })
    return F::kResident;
  else
    return 1;
}

template <class F>
__global__ void __launch_bounds__(kThreads, resident_blocks<F>())
    run_block(std::int64_t first, const __grid_constant__ F f) {
  f(Block(first + blockIdx.x));
}

// kernel<<<blocks, kThreads, 0, stream>>>(first, f), as a call of the runtime, which tests/cuda/simulator/ replaces.
template <class F>
void start(const char* op, std::int64_t blocks, void (*kernel)(std::int64_t, F), std::int64_t first, const F& f) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = cuda::stream();
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, first, f));  // check_launch reads its status
  cuda::check_launch(op);
}

}  // namespace detail

template <class F>
void launch_elements(const char* op, std::int64_t count, const F& f) {
  if (count == 0) return;
  const std::int64_t blocks = std::min((count + kThreads - 1) / kThreads, detail::kMostBlocks);
  detail::start(op, blocks, detail::run_elements<F>, count, f);
}

template <class F>
void launch_blocks(const char* op, std::int64_t blocks, const F& f) {
  for (std::int64_t first = 0; first < blocks; first += detail::kMostOfGrid) {
    detail::start(op, std::min(blocks - first, detail::kMostOfGrid), detail::run_block<F>, first, f);
  }
}

inline Fault* fault_record() { return static_cast<Fault*>(cuda::fault_memory()); }
inline void forbid_in_capture(const char* op) { cuda::forbid_in_capture(op); }

inline Scratch::Scratch(std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(bytes)), data_(bytes > 0 ? cuda::allocate(bytes_) : nullptr) {}
inline Scratch::~Scratch() {
  if (data_) cuda::deallocate(data_, bytes_);
}
inline void Scratch::read(void* to, std::size_t bytes) const {
  cuda::check(cudaMemcpyAsync(to, data_, bytes, cudaMemcpyDeviceToHost, cuda::stream()), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(cuda::stream()), "cudaStreamSynchronize");
}

}  // namespace lockstep::LOCKSTEP_KERNELS
