// Sorting: elements are mapped to unsigned keys of the same order; CUB sorts the keys, stably.
#include <bit>
#include <cstdint>
#include <type_traits>

#include "lockstep/tensor/cuda/launch_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"

#ifdef __CUDACC__
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>
#else
#include <algorithm>
#include <numeric>
#include <vector>
#endif

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class T>
using KeyOf = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

// NaN counts as the largest value; -0 is 0.
template <class T>
HOST_DEVICE KeyOf<T> key_of(T x, bool descending) {
  using Key = KeyOf<T>;
  constexpr Key kTop = Key{1} << (sizeof(Key) * 8 - 1);
  Key key;
  if constexpr (std::is_floating_point_v<T>) {
    const Key bits = std::bit_cast<Key>(x + T(0));
    key = x != x ? ~Key{0} : bits & kTop ? ~bits : bits | kTop;
  } else if constexpr (std::is_signed_v<T>) {
    key = static_cast<Key>(x) ^ kTop;
  } else {
    key = x;
  }
  return descending ? ~key : key;
}

template <class T>
struct Prepare {
  const T* in;
  KeyOf<T>* keys;
  std::int64_t* places;
  std::int64_t n;
  bool descending;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    keys[i] = key_of(in[i], descending);
    places[i] = i % n;
  }
};

#ifdef __CUDACC__
struct RowStart {
  std::int64_t n;
  HOST_DEVICE std::int64_t operator()(std::int64_t row) const { return row * n; }
};

// A single row is sorted by the whole device, a segment by one block of threads.
template <class Key>
void sort_rows(const Key* keys, Key* sorted, const std::int64_t* places, std::int64_t* order, std::int64_t outer,
               std::int64_t n) {
  const auto starts = thrust::make_transform_iterator(thrust::make_counting_iterator(std::int64_t{0}), RowStart{n});
  std::size_t bytes = 0;
  const auto sort = [&](void* memory) {
    if (outer == 1)
      return cuda::check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, places, order, n, 0,
                                                         static_cast<int>(sizeof(Key) * 8), cuda::stream()),
                         "cub::DeviceRadixSort");
    cuda::check(cub::DeviceSegmentedSort::StableSortPairs(memory, bytes, keys, sorted, places, order, outer * n, outer,
                                                          starts, starts + 1, cuda::stream()),
                "cub::DeviceSegmentedSort");
  };
  sort(nullptr);  // queries the size of the workspace
  const Scratch memory(std::max<std::int64_t>(static_cast<std::int64_t>(bytes), 1));
  sort(memory.as<void>());
  cuda::check_launch("sort");
}
#else
template <class Key>
void sort_rows(const Key* keys, Key*, const std::int64_t*, std::int64_t* order, std::int64_t outer, std::int64_t n) {
  std::vector<std::int64_t> row(
      static_cast<std::size_t>(n));  // on the host, since std:: algorithms cannot run on device memory
  for (; outer > 0; --outer, keys += n, order += n) {
    std::iota(row.begin(), row.end(), 0);
    std::stable_sort(row.begin(), row.end(), [&](std::int64_t a, std::int64_t b) { return keys[a] < keys[b]; });
    for (std::int64_t i = 0; i < n; ++i) order[i] = row[static_cast<std::size_t>(i)];
  }
}
#endif

}  // namespace

void sort(const void* in, std::int64_t* order, std::int64_t outer, std::int64_t n, std::int64_t /*keep*/, DType dtype,
          bool descending) {
  forbid_in_capture("sort");  // CUB reads the lengths of the rows on the host
  for_number(dtype, [&]<class T>(T) {
    using Key = KeyOf<T>;
    const std::int64_t count = outer * n;
    const Scratch keys(count * static_cast<std::int64_t>(sizeof(Key))),
        sorted(count * static_cast<std::int64_t>(sizeof(Key))),
        places(count * static_cast<std::int64_t>(sizeof(std::int64_t)));
    launch_elements("sort", count,
                    Prepare<T>{static_cast<const T*>(in), keys.as<Key>(), places.as<std::int64_t>(), n, descending});
    sort_rows(keys.as<Key>(), sorted.as<Key>(), places.as<std::int64_t>(), order, outer, n);
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
