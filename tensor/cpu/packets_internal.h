// Eigen arrays of one register's width: vectorised arithmetic, with the same code for the tail.
#pragma once

#include <Eigen/Core>

#include <cstdint>

#include "lockstep/tensor/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

inline constexpr int kPacketBytes = EIGEN_MAX_STATIC_ALIGN_BYTES > 16 ? EIGEN_MAX_STATIC_ALIGN_BYTES : 16;
template <class T>
inline constexpr int kPacketSize = kPacketBytes / static_cast<int>(sizeof(T));
template <class T>
using Packet = Eigen::Array<T, kPacketSize<T>, 1>;

template <class T>
Packet<T> load_packet(const T* from) {
  return Eigen::Map<const Packet<T>>(from);
}
template <class T>
void store_packet(T* to, const Packet<T>& value) {
  Eigen::Map<Packet<T>>{to} = value;
}
// Loads the last `count` elements, padded with `padding`. Not inlined: a separate function compiles to one masked
// load.
template <class T>
[[gnu::noinline]] Packet<T> load_tail(const T* from, std::int64_t count, T padding) {
  alignas(kPacketBytes) T lanes[kPacketSize<T>];
  for (int i = 0; i < kPacketSize<T>; ++i) lanes[i] = i < static_cast<int>(count) ? from[i] : padding;
  return load_packet(lanes);
}
template <class T>
[[gnu::noinline]] void store_tail(T* to, const Packet<T>& value, std::int64_t count) {
  alignas(kPacketBytes) T lanes[kPacketSize<T>];
  store_packet<T>(lanes, value);
  for (int i = 0; i < kPacketSize<T>; ++i) {
    if (i < static_cast<int>(count)) to[i] = lanes[i];
  }
}

// A packet, or the last `count` elements if there are fewer.
template <class T>
Packet<T> load_part(const T* from, std::int64_t count, T padding) {
  return count >= kPacketSize<T> ? load_packet(from) : load_tail(from, count, padding);
}
template <class T>
void store_part(T* to, const Packet<T>& value, std::int64_t count) {
  count >= kPacketSize<T> ? store_packet<T>(to, value) : store_tail<T>(to, value, count);
}

// out[i] = f(in[i]) packet by packet.
template <class T, class F>
void map_packets(std::int64_t count, T* out, const T* in, F f) {
  constexpr int kSize = kPacketSize<T>;
  std::int64_t i = 0;
  for (; i + kSize <= count; i += kSize) store_packet<T>(out + i, f(load_packet(in + i)));
  if (i < count) store_tail<T>(out + i, f(load_tail(in + i, count - i, T(0))), count - i);
}

// The sum of a packet's lanes, added in pairs.
template <class T>
T add_lanes(const Packet<T>& packet) {
  T lanes[kPacketSize<T>];
  store_packet<T>(lanes, packet);
  for (int half = kPacketSize<T> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The largest element (NaN if there is one), computed per lane first.
template <class T>
T max_of(const T* x, std::int64_t count) {
  constexpr int kLanes = 4 * kPacketSize<T>;
  const auto better = [](T a, T b) { return ((a > b) | (a != a)) ? a : b; };
  T best = x[0];
  std::int64_t i = 0;
  if (count >= kLanes) {
    T lanes[kLanes];
    for (int j = 0; j < kLanes; ++j) lanes[j] = x[j];
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) lanes[j] = better(x[i + j], lanes[j]);
    }
    for (int j = 0; j < kLanes; ++j) best = better(lanes[j], best);
  }
  for (; i < count; ++i) best = better(x[i], best);
  return best;
}

// The sum of f(x[i]), in an order that depends on `count` alone: four packets of partial sums in blocks of kSumBlock
// elements; block sums are added in f64.
inline constexpr std::int64_t kSumBlock = 4096;

template <class T, class F>
double sum_packets(const T* x, std::int64_t count, F f) {
  constexpr int kSize = kPacketSize<T>;
  double total = 0;
  for (std::int64_t block = 0; block < count; block += kSumBlock) {
    const std::int64_t length = count - block < kSumBlock ? count - block : kSumBlock;
    const T* at = x + block;
    Packet<T> a = Packet<T>::Zero(), b = a, c = a, d = a;
    std::int64_t i = 0;
    for (; i + 4 * kSize <= length; i += 4 * kSize) {
      a += f(load_packet(at + i));
      b += f(load_packet(at + i + kSize));
      c += f(load_packet(at + i + 2 * kSize));
      d += f(load_packet(at + i + 3 * kSize));
    }
    for (; i + kSize <= length; i += kSize) a += f(load_packet(at + i));
    if (i < length) {
      Packet<T> tail = f(load_tail(at + i, length - i, T(0)));
      for (std::int64_t j = length - i; j < kSize; ++j) tail[j] = 0;
      a += tail;
    }
    total += static_cast<double>(add_lanes<T>((a + b) + (c + d)));
  }
  return total;
}

}  // namespace lockstep::LOCKSTEP_KERNELS
