// Eigen arrays of one register's width: vectorised arithmetic, with the same code for the tail.
#pragma once

#include <Eigen/Core>

#include <cstdint>

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

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

// The sum of a packet's lanes: its halves are added until one lane is left.
template <class T, int kLanes>
T add_halves(const Eigen::Array<T, kLanes, 1>& lanes) {
  constexpr int kHalf = kLanes / 2;
  if constexpr (kHalf == 0)
    return lanes[0];
  else
    return add_halves<T, kHalf>(lanes.template head<kHalf>() + lanes.template tail<kHalf>());
}
template <class T>
T add_lanes(const Packet<T>& packet) {
  return add_halves<T, kPacketSize<T>>(packet);
}

// The sum of f(x[i]), in an order that depends on `count` alone: four packets of partial sums in blocks of kSumBlock
// elements; block sums are added in f64.
inline constexpr std::int64_t kSumBlock = 4096;
template <class T>
inline constexpr std::int64_t kShortBlock = 128 * kPacketSize<T>;  // the same for one packet of partial sums
inline constexpr std::int64_t kRowsBetween = 64;                   // and for partial sums of one element

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

// a b + c, rounded once if the level has an FMA instruction.
template <class T>
Packet<T> multiply_add(const Packet<T>& a, const Packet<T>& b, const Packet<T>& c) {
  using Register = typename Eigen::internal::packet_traits<T>::type;
  static_assert(sizeof(Register) == sizeof(Packet<T>));
  Packet<T> out;
  Eigen::internal::pstoreu(out.data(), Eigen::internal::pmadd(Eigen::internal::ploadu<Register>(a.data()),
                                                              Eigen::internal::ploadu<Register>(b.data()),
                                                              Eigen::internal::ploadu<Register>(c.data())));
  return out;
}

// Adds to totals[r] the sum of x[r * row + i] y[i], for at most kSumBlock elements, in the order of sum_packets.
template <int kRows, class T>
void add_products(const T* x, std::int64_t row, const T* y, std::int64_t count, double* totals) {
  constexpr int kSize = kPacketSize<T>;
  Packet<T> sums[kRows][4];
  for (auto& of_row : sums) of_row[0] = of_row[1] = of_row[2] = of_row[3] = Packet<T>::Zero();
  std::int64_t i = 0;
  for (; i + 4 * kSize <= count; i += 4 * kSize) {
    for (int part = 0; part < 4; ++part) {
      const Packet<T> factor = load_packet(y + i + part * kSize);
      for (int r = 0; r < kRows; ++r)
        sums[r][part] = multiply_add<T>(load_packet(x + r * row + i + part * kSize), factor, sums[r][part]);
    }
  }
  for (; i + kSize <= count; i += kSize) {
    for (int r = 0; r < kRows; ++r)
      sums[r][0] = multiply_add<T>(load_packet(x + r * row + i), load_packet(y + i), sums[r][0]);
  }
  if (i < count) {
    const Packet<T> factor = load_tail(y + i, count - i, T(0));
    for (int r = 0; r < kRows; ++r)
      sums[r][0] = multiply_add<T>(load_tail(x + r * row + i, count - i, T(0)), factor, sums[r][0]);
  }
  for (int r = 0; r < kRows; ++r)
    totals[r] += static_cast<double>(add_lanes<T>((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3])));
}

inline constexpr int kPartials = 64;

// reduce_shares of many elements. Not inlined: the call for few elements stays small.
template <class F, class Combine>
[[gnu::noinline]] auto reduce_many(std::int64_t n, F part, Combine combine) {
  const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
  const std::int64_t share = (blocks < 2 * kPartials ? 1 : (blocks + kPartials - 1) / kPartials) * kSumBlock;
  const std::int64_t shares = (n + share - 1) / share;
  decltype(part(n, n)) partials[2 * kPartials];
  for_units(shares, share, [&partials, n, share, part](std::int64_t i) {
    const std::int64_t begin = i * share, left = n - begin;
    partials[i] = part(begin, left < share ? left : share);
  });
  for (std::int64_t i = 1; i < shares; ++i) partials[0] = combine(partials[0], partials[i]);
  return partials[0];
}

// Combines the results of part(begin, count) for shares of [0, n) in order. Several threads compute them: a block of
// kSumBlock each, or kPartials shares of many blocks. Few elements are one share.
template <class F, class Combine>
auto reduce_shares(std::int64_t n, F part, Combine combine) {
  return n < kParallelFrom ? part(std::int64_t{0}, n) : reduce_many(n, part, combine);
}

template <class F>
double sum_of_shares(std::int64_t n, F part) {
  return reduce_shares(n, part, [](double a, double b) { return a + b; });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
