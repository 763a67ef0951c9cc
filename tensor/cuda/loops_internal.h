// Runs functors over the loop nests that raw ops build.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "lockstep/tensor/cuda/divisor_internal.h"
#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// Several elements that are loaded or stored together.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

namespace detail {

inline constexpr int kPackBytes = 16;

template <class Out, class... In>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(std::max({sizeof(Out), sizeof(In)...}));

// The offset of element i of the nest in operand k.
template <int N>
struct Places {
  int dims;
  Divisor shape[kMaxDims];  // the first one is not needed
  std::int64_t strides[N][kMaxDims];

  explicit Places(const Loop<N>& loop) : dims(loop.dims) {
    for (int d = 0; d < dims; ++d) {
      if (d > 0) shape[d] = Divisor(loop.shape[d]);
      for (int k = 0; k < N; ++k) strides[k][d] = loop.strides[k][d];
    }
  }
  HOST_DEVICE void find(std::int64_t i, std::int64_t* places) const {
    for (int k = 0; k < N; ++k) places[k] = 0;
    for (int d = dims - 1; d > 0; --d) {
      const Quotient left = shape[d].divide(i);
      for (int k = 0; k < N; ++k) places[k] += left.rest * strides[k][d];
      i = left.whole;
    }
    for (int k = 0; k < N; ++k) places[k] += i * strides[k][0];
  }
};

template <class F, class Out, class... In>
struct StridedLoop {
  F f;
  void* data[1 + sizeof...(In)];
  Places<1 + sizeof...(In)> places;

  template <std::size_t... K>
  HOST_DEVICE void run(std::int64_t i, std::index_sequence<K...>) const {
    std::int64_t at[1 + sizeof...(In)];
    places.find(i, at);
    static_cast<Out*>(data[0])[at[0]] = static_cast<Out>(f(static_cast<const In*>(data[K + 1])[at[K + 1]]...));
  }
  HOST_DEVICE void operator()(std::int64_t i) const { run(i, std::index_sequence_for<In...>{}); }
};

// As StridedLoop, N elements at a time: N neighbours in the last dimension, or one element that repeats.
template <class F, int N, class Out, class... In>
struct PackedLoop {
  F f;
  void* data[1 + sizeof...(In)];
  bool repeats[1 + sizeof...(In)];
  Places<1 + sizeof...(In)> places;  // of packs

  template <class T>
  HOST_DEVICE Pack<T, N> load(int k, std::int64_t at) const {
    const T* from = static_cast<const T*>(data[k]) + at;
    if (!repeats[k]) return *reinterpret_cast<const Pack<T, N>*>(from);
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) out.values[j] = *from;
    return out;
  }
  HOST_DEVICE void store(Out* to, const Pack<In, N>&... packs) const {
    Pack<Out, N> out;
    for (int j = 0; j < N; ++j) out.values[j] = static_cast<Out>(f(packs.values[j]...));
    *reinterpret_cast<Pack<Out, N>*>(to) = out;
  }
  template <std::size_t... K>
  HOST_DEVICE void run(std::int64_t i, std::index_sequence<K...>) const {
    std::int64_t at[1 + sizeof...(In)];
    places.find(i, at);
    store(static_cast<Out*>(data[0]) + at[0], load<In>(static_cast<int>(K) + 1, at[K + 1])...);
  }
  HOST_DEVICE void operator()(std::int64_t i) const { run(i, std::index_sequence_for<In...>{}); }
};

// Contiguous operands, N elements at a time. Scalars (stride 0) are loaded once per call. A call takes two packs, a
// block of threads apart, and loads both before it stores one: enough bytes in flight to hide the memory's latency.
template <class F, int N, class Out, class... In>
struct DenseLoop {
  F f;
  void* data[1 + sizeof...(In)];
  bool repeats[1 + sizeof...(In)];
  std::int64_t count;

  template <class T>
  HOST_DEVICE Pack<T, N> load(int k, std::int64_t pack) const {
    const T* from = static_cast<const T*>(data[k]);
    if (!repeats[k]) return reinterpret_cast<const Pack<T, N>*>(from)[pack];
    Pack<T, N> out;
    for (int j = 0; j < N; ++j) out.values[j] = *from;
    return out;
  }
  template <class T>
  HOST_DEVICE T load_one(int k, std::int64_t i) const {
    return static_cast<const T*>(data[k])[repeats[k] ? 0 : i];
  }
  template <class... Packs>
  HOST_DEVICE Pack<Out, N> apply(const Packs&... packs) const {
    Pack<Out, N> out;
    for (int j = 0; j < N; ++j) out.values[j] = static_cast<Out>(f(packs.values[j]...));
    return out;
  }
  HOST_DEVICE void run_two(std::int64_t pack, const Pack<In, N>&... first, const Pack<In, N>&... second) const {
    auto* const out = static_cast<Pack<Out, N>*>(data[0]);
    out[pack] = apply(first...);
    out[pack + kThreads] = apply(second...);
  }
  // One pack, or the remaining elements.
  template <std::size_t... K>
  HOST_DEVICE void run_one(std::int64_t pack, std::index_sequence<K...>) const {
    Out* const out = static_cast<Out*>(data[0]);
    if ((pack + 1) * N <= count) {
      reinterpret_cast<Pack<Out, N>*>(out)[pack] = apply(load<In>(static_cast<int>(K) + 1, pack)...);
      return;
    }
    for (std::int64_t i = pack * N; i < count; ++i)
      out[i] = static_cast<Out>(f(load_one<In>(static_cast<int>(K) + 1, i)...));
  }
  template <std::size_t... K>
  HOST_DEVICE void run(std::int64_t pack, std::index_sequence<K...> operands) const {
    if ((pack + kThreads + 1) * N <= count)
      return run_two(pack, load<In>(static_cast<int>(K) + 1, pack)...,
                     load<In>(static_cast<int>(K) + 1, pack + kThreads)...);
    run_one(pack, operands);
    run_one(pack + kThreads, operands);
  }
  HOST_DEVICE void operator()(std::int64_t i) const {
    run(i / kThreads * (2 * kThreads) + i % kThreads, std::index_sequence_for<In...>{});
  }
  // The number of calls needed.
  std::int64_t calls() const { return (count + 2 * kThreads * N - 1) / (2 * kThreads * N) * kThreads; }
};

}  // namespace detail

namespace detail {

// Whether the operand's last dimension can be read or written in packs of `pack` elements of `size` bytes: it is
// contiguous and aligned, or repeats one element.
template <int N>
bool takes_packs(const Loop<N>& loop, int k, std::int64_t pack, std::size_t size) {
  const int last = loop.dims - 1;
  if (loop.strides[k][last] == 0) return k > 0;
  bool takes = loop.strides[k][last] == 1 &&
               reinterpret_cast<std::uintptr_t>(loop.data[k]) % (static_cast<std::size_t>(pack) * size) == 0;
  for (int d = 0; d < last; ++d) takes = takes && loop.strides[k][d] % pack == 0;
  return takes;
}

// The same nest over packs.
template <int N>
Loop<N> of_packs(Loop<N> loop, std::int64_t pack) {
  const int last = loop.dims - 1;
  loop.numel /= pack;
  loop.shape[last] /= pack;
  for (int k = 0; k < N; ++k) loop.strides[k][last] *= pack;
  return loop;
}

}  // namespace detail

// Whether all operands of a nest are contiguous and aligned, or repeat one element.
template <class Out, class... In, int N>
bool is_dense(const Loop<N>& loop) {
  const std::size_t sizes[N] = {sizeof(Out), sizeof(In)...};
  bool dense = loop.dims == 1;
  for (int k = 0; k < N; ++k) dense = dense && detail::takes_packs(loop, k, detail::kPackOf<Out, In...>, sizes[k]);
  return dense;
}

// out = f(in...) for every element of a dense nest.
template <class Out, class... In, int N, class F>
void run_dense_loop(const char* op, const Loop<N>& loop, const F& f) {
  detail::DenseLoop<F, detail::kPackOf<Out, In...>, Out, In...> body{f, {}, {}, loop.numel};
  for (int k = 0; k < N; ++k) {
    body.data[k] = loop.data[k];
    body.repeats[k] = loop.strides[k][0] == 0;
  }
  launch_elements(op, body.calls(), body);
}

// out = f(in...) for every element of the nest.
template <class Out, class... In, int N, class F>
void run_loop(const char* op, const Loop<N>& loop, const F& f) {
  static_assert(N == 1 + sizeof...(In));
  if (is_dense<Out, In...>(loop)) return run_dense_loop<Out, In...>(op, loop, f);
  detail::StridedLoop<F, Out, In...> body{f, {}, detail::Places<N>(loop)};
  for (int k = 0; k < N; ++k) body.data[k] = loop.data[k];
  launch_elements(op, loop.numel, body);
}

// The same, for operations whose operands are often views: a third kernel moves packs of them.
template <class Out, class... In, int N, class F>
void run_view_loop(const char* op, const Loop<N>& loop, const F& f) {
  constexpr int kPack = detail::kPackOf<Out, In...>;
  const std::size_t sizes[N] = {sizeof(Out), sizeof(In)...};
  const int last = loop.dims - 1;
  bool packed = loop.dims > 1 && loop.shape[last] % kPack == 0;
  for (int k = 0; k < N; ++k) packed = packed && detail::takes_packs(loop, k, kPack, sizes[k]);
  if (!packed) return run_loop<Out, In...>(op, loop, f);
  const Loop<N> packs = detail::of_packs(loop, kPack);
  detail::PackedLoop<F, kPack, Out, In...> body{f, {}, {}, detail::Places<N>(packs)};
  for (int k = 0; k < N; ++k) {
    body.data[k] = loop.data[k];
    body.repeats[k] = loop.strides[k][last] == 0;
  }
  launch_elements(op, packs.numel, body);
}

}  // namespace lockstep::LOCKSTEP_KERNELS
