// Kernels for CUDA are written as functors over elements or over blocks of threads. nvcc compiles them to kernels, any
// other compiler to plain loops, so they are also tested on machines without a GPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "lockstep/tensor/cuda/fault_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

#ifdef __CUDACC__
#define DEVICE_ONLY __device__
#define UNROLL _Pragma("unroll 4")
#define UNROLL_BY_2 _Pragma("unroll 2")
#define UNROLL_ALL _Pragma("unroll")
#define ONE_BY_ONE _Pragma("unroll 1")
#define BLOCK_SHARED __shared__  // of a local array: all threads of a block have the same one
#else
#define DEVICE_ONLY
#define UNROLL
#define UNROLL_BY_2
#define UNROLL_ALL
#define ONE_BY_ONE
#define BLOCK_SHARED
#endif

namespace lockstep::LOCKSTEP_KERNELS {

inline constexpr int kThreads = 256;  // threads of a block
inline constexpr int kWarp = 32;
static_assert(kThreads % kWarp == 0);

// One value per thread of a block, for code in several steps.
#ifdef __CUDACC__
template <class T>
struct PerThread {
  T value;
  __device__ T& operator[](int) { return value; }
  __device__ const T& operator[](int) const { return value; }
};
#else
template <class T>
struct PerThread {
  T values[kThreads];
  T& operator[](int thread) { return values[thread]; }
  const T& operator[](int thread) const { return values[thread]; }
};
#endif

#ifdef __CUDACC__
namespace detail {

// The value of another thread of the warp, word by word: shuffle(word) returns that thread's word.
template <class T, class Shuffle>
__device__ T shuffled(const T& value, Shuffle shuffle) {
  static_assert(sizeof(T) % sizeof(int) == 0);
  int words[sizeof(T) / sizeof(int)];
  memcpy(words, &value, sizeof(T));
  UNROLL_ALL
  for (int& word : words) word = shuffle(word);
  T out;
  memcpy(&out, words, sizeof(T));
  return out;
}
// The value of the thread `distance` lanes further in the warp.
template <class T>
__device__ T from_further(const T& value, int distance) {
  return shuffled(value, [=](int word) { return __shfl_down_sync(0xffffffffu, word, distance); });
}
// The value of the thread whose lane differs in the bits of `bits`.
template <class T>
__device__ T from_partner(const T& value, int bits) {
  return shuffled(value, [=](int word) { return __shfl_xor_sync(0xffffffffu, word, bits); });
}
// The value of the warp's first thread.
template <class T>
__device__ T from_first(const T& value) {
  return shuffled(value, [](int word) { return __shfl_sync(0xffffffffu, word, 0); });
}

}  // namespace detail
#endif

// The threads of one block.
class Block {
 public:
  DEVICE_ONLY explicit Block(std::int64_t index) : index_(index) {}
  DEVICE_ONLY std::int64_t index() const { return index_; }
#ifdef __CUDACC__
  // Runs step(thread) for all threads, then synchronises them.
  template <class F>
  __device__ void each(F step) const {
    step(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  // Runs step(thread) for all threads, without a barrier: for steps whose results only the same thread reads.
  template <class F>
  __device__ void each_alone(F step) const {
    step(static_cast<int>(threadIdx.x));
  }
#else
  template <class F>
  void each(F step) const {
    for (int thread = 0; thread < kThreads; ++thread) step(thread);
  }
  template <class F>
  void each_alone(F step) const {
    each(step);
  }
#endif

  // Joins all threads' values in pairs, in a fixed order: within a warp 16 apart, 8, 4, 2, 1, then the warps likewise.
  // Every thread gets the result. The size of `T` is a multiple of a word.
  template <class T, class Join>
  DEVICE_ONLY T reduce(PerThread<T>& values, Join join) const;
  // The same within each warp.
  template <class T, class Join>
  DEVICE_ONLY void reduce_warps(PerThread<T>& values, Join join) const;
  // The same for each of `lanes` (a power of two) groups of threads that are equal modulo `lanes`: 128 apart, 64, ...
  // The first `lanes` threads get the results.
  template <class T, class Join>
  DEVICE_ONLY void reduce_lanes(PerThread<T>& values, int lanes, Join join) const;
  // The same for each group of `kGroup` consecutive threads (a power of two, at most a warp), without a barrier. Every
  // thread gets the result of its group; join(a, b) equals join(b, a).
  template <int kGroup, class T, class Join>
  DEVICE_ONLY void reduce_groups(PerThread<T>& values, Join join) const;
  // Replaces every thread's value by the sum of the values of the threads before it.
  template <class T>
  DEVICE_ONLY void sum_before(PerThread<T>& values) const;

 private:
  std::int64_t index_;
};

#ifdef __CUDACC__
template <class T, class Join>
__device__ T Block::reduce(PerThread<T>& values, Join join) const {
  constexpr int kWarps = kThreads / kWarp;
  // The total has its own place: where one lane wrote it, the others of its warp may still read.
  alignas(16) __shared__ unsigned char memory[(kWarps + 1) * sizeof(T)];
  T* const of_warps = reinterpret_cast<T*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  T value = values.value;
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = join(value, detail::from_further(value, distance));
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = of_warps[lane < kWarps ? lane : 0];
    for (int distance = kWarps / 2; distance > 0; distance /= 2)
      value = join(value, detail::from_further(value, distance));
    if (lane == 0) of_warps[kWarps] = value;
  }
  __syncthreads();
  return of_warps[kWarps];  // the next reduction writes it after a barrier, when all threads have read it
}

template <class T, class Join>
__device__ void Block::reduce_warps(PerThread<T>& values, Join join) const {
  T value = values.value;
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = join(value, detail::from_further(value, distance));
  values.value = detail::from_first(value);
}

template <class T, class Join>
__device__ void Block::reduce_lanes(PerThread<T>& values, int lanes, Join join) const {
  alignas(16) __shared__ unsigned char memory[kThreads * sizeof(T)];
  T* const all = reinterpret_cast<T*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  all[thread] = values.value;
  __syncthreads();
  for (int distance = kThreads / 2; distance >= lanes; distance /= 2) {
    if (thread < distance) all[thread] = join(all[thread], all[thread + distance]);
    __syncthreads();
  }
  values.value = all[thread];
  __syncthreads();  // the next reduction reuses the memory
}

template <int kGroup, class T, class Join>
__device__ void Block::reduce_groups(PerThread<T>& values, Join join) const {
  UNROLL_ALL
  for (int distance = kGroup / 2; distance > 0; distance /= 2)
    values.value = join(values.value, detail::from_partner(values.value, distance));
}

template <class T>
__device__ void Block::sum_before(PerThread<T>& values) const {
  alignas(16) __shared__ unsigned char memory[kThreads * sizeof(T)];
  T* const all = reinterpret_cast<T*>(memory);
  all[threadIdx.x] = values.value;
  __syncthreads();
  if (threadIdx.x == 0) {
    T sum = 0;
    for (int i = 0; i < kThreads; ++i) {
      const T value = all[i];
      all[i] = sum;
      sum = static_cast<T>(sum + value);
    }
  }
  __syncthreads();
  values.value = all[threadIdx.x];
  __syncthreads();  // the next call reuses the memory
}
#else
namespace detail {
// Joins `count` values, `step` apart; the first one gets the result.
template <class T, class Join>
void halve(PerThread<T>& values, Join join, int first, int count, int step) {
  for (int distance = count / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i)
      values[first + i * step] = join(values[first + i * step], values[first + (i + distance) * step]);
  }
}
}  // namespace detail

template <class T, class Join>
T Block::reduce(PerThread<T>& values, Join join) const {
  for (int warp = 0; warp < kThreads; warp += kWarp) detail::halve(values, join, warp, kWarp, 1);
  detail::halve(values, join, 0, kThreads / kWarp, kWarp);
  return values[0];
}

template <class T, class Join>
void Block::reduce_warps(PerThread<T>& values, Join join) const {
  for (int warp = 0; warp < kThreads; warp += kWarp) {
    detail::halve(values, join, warp, kWarp, 1);
    for (int lane = 1; lane < kWarp; ++lane) values[warp + lane] = values[warp];
  }
}

template <class T, class Join>
void Block::reduce_lanes(PerThread<T>& values, int lanes, Join join) const {
  for (int distance = kThreads / 2; distance >= lanes; distance /= 2) {
    for (int i = 0; i < distance; ++i) values[i] = join(values[i], values[i + distance]);
  }
}

template <int kGroup, class T, class Join>
void Block::reduce_groups(PerThread<T>& values, Join join) const {
  for (int distance = kGroup / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < kThreads; ++i) {
      if ((i & distance) == 0) values[i] = values[i ^ distance] = join(values[i], values[i ^ distance]);
    }
  }
}

template <class T>
void Block::sum_before(PerThread<T>& values) const {
  T sum = 0;
  for (int i = 0; i < kThreads; ++i) {
    const T value = values[i];
    values[i] = sum;
    sum = static_cast<T>(sum + value);
  }
}
#endif

// Launches f(i) for i = 0 ... count - 1, in any order. `op` is for messages.
template <class F>
void launch_elements(const char* op, std::int64_t count, const F& f);
// Launches f(block) for that many blocks.
template <class F>
void launch_blocks(const char* op, std::int64_t blocks, const F& f);

using cuda::Fault;
// The fault record of the device to which this thread launches; kernels may write it.
Fault* fault_record();

DEVICE_ONLY inline void report(Fault* fault, Fault::Kind kind, std::int64_t place, std::int64_t value,
                               std::int64_t limit) {
#ifdef __CUDA_ARCH__
  if (atomicCAS(&fault->kind, 0, static_cast<int>(kind)) != 0) return;
#else
  if (fault->kind != 0) return;
  fault->kind = kind;
#endif
  fault->place = place;
  fault->value = value;
  fault->limit = limit;
}

// Throws while a graph is captured: `op` waits for the device.
void forbid_in_capture(const char* op);

// Temporary memory for some launches.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  // Waits for the launches and copies to the host.
  void read(void* to, std::size_t bytes) const;

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace lockstep::LOCKSTEP_KERNELS

#ifdef __CUDACC__
#include "lockstep/tensor/cuda/launch_device_internal.h"
#else
#include "lockstep/tensor/cuda/launch_host_internal.h"
#endif
