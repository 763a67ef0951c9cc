// The launches of launch.h as kernels on the current device's stream.
#pragma once

#include <algorithm>

#include "lockstep/tensor/cuda/launch.h"
#include "lockstep/tensor/cuda/runtime.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

namespace detail {

inline constexpr std::int64_t kMostBlocks = 1 << 16;  // of elements: each thread then takes several

template <class F>
__global__ void __launch_bounds__(kThreads) run_elements(std::int64_t count, const F f) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) f(i);
}

template <class F>
__global__ void __launch_bounds__(kThreads) run_block(const F f) {
  f(Block());
}

}  // namespace detail

template <class F>
void launch_elements(const char* op, std::int64_t count, const F& f) {
  if (count == 0) return;
  const std::int64_t blocks = std::min((count + kThreads - 1) / kThreads, detail::kMostBlocks);
  detail::run_elements<<<static_cast<unsigned>(blocks), kThreads, 0, cuda::stream()>>>(count, f);
  cuda::check_launch(op);
}

template <class F>
void launch_blocks(const char* op, std::int64_t blocks, const F& f) {
  if (blocks == 0) return;
  detail::run_block<<<static_cast<unsigned>(blocks), kThreads, 0, cuda::stream()>>>(f);
  cuda::check_launch(op);
}

inline Fault* fault_record() { return static_cast<Fault*>(cuda::fault_memory()); }

inline Scratch::Scratch(std::int64_t bytes)
    : bytes_(static_cast<std::size_t>(bytes)), data_(bytes > 0 ? cuda::allocate(bytes_) : nullptr) {}
inline Scratch::~Scratch() {
  if (data_) cuda::deallocate(data_, bytes_);
}
inline void Scratch::read(void* to, std::size_t bytes) const {
  cuda::check(cudaMemcpyAsync(to, data_, bytes, cudaMemcpyDeviceToHost, cuda::stream()), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(cuda::stream()), "cudaStreamSynchronize");
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
