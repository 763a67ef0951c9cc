#include "tests/cuda/simulator/nccl_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace simulator {
namespace {

template <class F>
void with_type(ncclDataType_t type, F function) {
  switch (type) {
    case ncclInt8:
      return function(std::int8_t{});
    case ncclUint8:
      return function(std::uint8_t{});
    case ncclInt32:
      return function(std::int32_t{});
    case ncclUint32:
      return function(std::uint32_t{});
    case ncclInt64:
      return function(std::int64_t{});
    case ncclUint64:
      return function(std::uint64_t{});
    case ncclFloat16:
      return function(__half{});
    case ncclFloat32:
      return function(float{});
    case ncclFloat64:
      return function(double{});
    case ncclBfloat16:
      return function(__nv_bfloat16{});
    default:
      return;
  }
}

// The type of the computation; halves are rounded once, at the end.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, float, T>;

template <class W>
W combine(ncclRedOp_t op, W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if (op == ncclMax) return std::fmax(a, b);
    if (op == ncclMin) return std::fmin(a, b);
    return op == ncclProd ? a * b : a + b;
  } else {
    if (op == ncclMax) return std::max(a, b);
    if (op == ncclMin) return std::min(a, b);
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);  // integers wrap around
    return static_cast<W>(op == ncclProd ? x * y : x + y);
  }
}

template <class T>
T read(const unsigned char* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

template <class T>
void reduce_as(const Reduction& reduction, const std::vector<unsigned char>& parts, int ranks, unsigned char* out) {
  using W = Wide<T>;
  const std::size_t bytes = parts.size() / static_cast<std::size_t>(ranks);
  const bool averages = reduction.op == ncclAvg, is_whole = std::is_integral_v<W>;
  W factor = reduction.has_factor ? static_cast<W>(read<T>(reduction.factor.data())) : W{1};
  if (averages && !is_whole) factor = W{1} / static_cast<W>(ranks);  // NCCL also multiplies first
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    const auto input = [&](int rank) {
      const W value = static_cast<W>(read<T>(parts.data() + static_cast<std::size_t>(rank) * bytes + at));
      return combine(ncclProd, value, factor);
    };
    W total = input(0);
    for (int rank = 1; rank < ranks; ++rank) total = combine(reduction.op, total, input(rank));
    if (averages && is_whole) total = static_cast<W>(total / static_cast<W>(ranks));
    const T rounded = static_cast<T>(total);
    std::memcpy(out + at, &rounded, sizeof(T));
  }
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto value) { bytes = sizeof(value); });
  return bytes;
}

void reduce(const Reduction& reduction, const std::vector<unsigned char>& parts, int ranks, void* out) {
  with_type(reduction.type,
            [&](auto value) { reduce_as<decltype(value)>(reduction, parts, ranks, static_cast<unsigned char*>(out)); });
}

}  // namespace simulator
