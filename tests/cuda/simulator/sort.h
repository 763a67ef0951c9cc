// CUB's sorting and Thrust's iterators, as far as Lockstep uses them; include/ provides them under their own names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/cuda/simulator/simulator.h"

namespace thrust {

inline std::int64_t make_counting_iterator(std::int64_t first) { return first; }

template <class F>
struct TransformIterator {
  std::int64_t place;
  F function;
  auto operator[](std::int64_t i) const { return function(place + i); }
  TransformIterator operator+(std::int64_t i) const { return {place + i, function}; }
};
template <class F>
TransformIterator<F> make_transform_iterator(std::int64_t first, F function) {
  return {first, function};
}

}  // namespace thrust

namespace simulator {

constexpr std::size_t kSortBytes = 1000;  // workspace that a sort requests

// Sorts the segments [first(i), end(i)) of the keys, stably, together with their values.
template <class Key, class Value, class First, class End>
cudaError_t sort_pairs(void* memory, std::size_t& bytes, const Key* keys, Key* sorted, const Value* values,
                       Value* order, std::int64_t segments, First first, End end, cudaStream_t stream) {
  if (!memory) {
    bytes = kSortBytes;
    return cudaSuccess;
  }
  const std::lock_guard lock(mutex());
  if (bytes < kSortBytes || !is_device_memory(memory, bytes)) return cudaErrorInvalidValue;
  if (is_captured(stream)) return cudaErrorStreamCaptureUnsupported;
  return enqueue(stream, [=] {
    std::memset(memory, 0x5a, bytes);
    for (std::int64_t segment = 0; segment < segments; ++segment) {
      const std::int64_t from = first[segment];
      std::vector<std::int64_t> places(static_cast<std::size_t>(end[segment] - from));
      std::iota(places.begin(), places.end(), from);
      std::stable_sort(places.begin(), places.end(), [&](std::int64_t a, std::int64_t b) { return keys[a] < keys[b]; });
      for (std::size_t i = 0; i < places.size(); ++i) {
        sorted[from + static_cast<std::int64_t>(i)] = keys[places[i]];
        order[from + static_cast<std::int64_t>(i)] = values[places[i]];
      }
    }
    return true;
  });
}

}  // namespace simulator

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* memory, std::size_t& bytes, const Key* keys, Key* sorted, const Value* values,
                               Value* order, std::int64_t n, int begin_bit, int end_bit, cudaStream_t stream) {
    if (begin_bit != 0 || end_bit != static_cast<int>(8 * sizeof(Key))) return cudaErrorNotSupported;
    const auto bound = [n](std::int64_t i) { return i * n; };
    const thrust::TransformIterator<decltype(bound)> bounds{0, bound};
    return simulator::sort_pairs(memory, bytes, keys, sorted, values, order, 1, bounds, bounds + 1, stream);
  }
};

struct DeviceSegmentedSort {
  template <class Key, class Value, class First, class End>
  static cudaError_t StableSortPairs(void* memory, std::size_t& bytes, const Key* keys, Key* sorted,
                                     const Value* values, Value* order, std::int64_t, std::int64_t segments,
                                     First first, End end, cudaStream_t stream) {
    return simulator::sort_pairs(memory, bytes, keys, sorted, values, order, segments, first, end, stream);
  }
};

}  // namespace cub
