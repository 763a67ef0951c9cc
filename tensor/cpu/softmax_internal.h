// The largest element of a row, and the exponentials of its differences from it.
#pragma once

#include <type_traits>

#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

// The largest element. It may ignore a NaN, which makes every exponential sum NaN anyway.
template <class T>
T largest(const T* x, std::int64_t n) {
  constexpr int kSize = kPacketSize<T>;
  if (n < 2 * kSize) {
    T best = x[0];
    for (std::int64_t i = 1; i < n; ++i) best = x[i] > best ? x[i] : best;
    return best;
  }
  // The last two packets overlap earlier ones: a maximum may count elements twice.
  Packet<T> a = load_packet(x + n - 2 * kSize), b = load_packet(x + n - kSize);
  for (std::int64_t i = 0; i + 2 * kSize <= n; i += 2 * kSize) {
    a = a.max(load_packet(x + i));
    b = b.max(load_packet(x + i + kSize));
  }
  return a.max(b).maxCoeff();
}

// e^x for x <= 0, or NaN.
template <class T>
Packet<T> exp_up_to_0(const Packet<T>& x) {
  if constexpr (std::is_same_v<T, float>) {
    Packet<T> y;
    for (int i = 0; i < kPacketSize<T>; ++i) y[i] = math::exp_up_to_0(x[i]);
    return y;
  } else {
    return exp_packet<Packet<T>>(x);
  }
}

// y[i] = e^(x[i] - shift), with the same code for every element. No x is above the shift, unless one is NaN.
template <class T>
void shifted_exp(const T* x, T* y, std::int64_t n, T shift) {
  if constexpr (std::is_same_v<T, float>) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = math::exp_up_to_0(x[i] - shift);
  } else {
    map_packets(n, y, x, [shift](const Packet<T>& v) { return exp_packet<Packet<T>>(v - shift); });
  }
}

}  // namespace lockstep::LOCKSTEP_KERNELS
