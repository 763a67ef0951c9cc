// Dual numbers a + b e with e^2 = 0: evaluating a functor's derivative on a dual number also gives the second
// derivative. Included by kernels only, inside their namespace, so that each instruction-set level has its own copy.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/tensor/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

template <class T>
struct Dual {
  T value;
  T tangent = 0;

  HOST_DEVICE Dual(T value) : value(value) {}  // NOLINT: a number is a constant dual
  HOST_DEVICE Dual(T value, T tangent) : value(value), tangent(tangent) {}

  friend HOST_DEVICE Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.tangent + b.tangent}; }
  friend HOST_DEVICE Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.tangent - b.tangent}; }
  friend HOST_DEVICE Dual operator-(Dual a) { return {-a.value, -a.tangent}; }
  friend HOST_DEVICE Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, times(a.tangent, b.value) + times(b.tangent, a.value)};
  }
  friend HOST_DEVICE Dual operator/(Dual a, Dual b) {
    const T quotient = a.value / b.value;
    return {quotient, (a.tangent - quotient * b.tangent) / b.value};
  }
  // A tangent of 0, that of a constant, stays 0 next to an infinite factor.
  static HOST_DEVICE T times(T tangent, T factor) { return tangent == T(0) ? T(0) : tangent * factor; }
  friend HOST_DEVICE bool operator>(Dual a, Dual b) { return a.value > b.value; }
  friend HOST_DEVICE bool operator<(Dual a, Dual b) { return a.value < b.value; }
  friend HOST_DEVICE bool operator>=(Dual a, Dual b) { return a.value >= b.value; }
  friend HOST_DEVICE bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
};

// The elementary functions that functors use, for numbers and dual numbers.
namespace math {

template <class T>
inline constexpr T kTwoOverSqrtPi = T(1.12837916709551257390L);

// Rounds once if the level has an FMA instruction; without one, a library call would cost more than it gains.
HOST_DEVICE inline float multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
HOST_DEVICE inline double multiply_add(double a, double b, double c) {
#ifdef __FMA__
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x without branches or calls, so that loops over it become vector code. x = n log 2 + r, |r| <= log(2) / 2; e^r by
// the polynomial of Cephes' expf; 2^n is added to the exponent bits. Largest relative error 9e-8; results below
// 2^-126 are 0. GPUs have an instruction for 2^x: their own function is a third as long (and keeps such results).
HOST_DEVICE inline float exp(float x) {
#ifdef __CUDA_ARCH__
  return ::expf(x);
#else
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x log2 e) in the low bits
  const float shifted = multiply_add(x, 1.44269504088896341f, kShift), n = shifted - kShift;
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  const float power = multiply_add(p, r * r, r) + 1.0f;
  const float scaled =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(power) + (std::bit_cast<std::uint32_t>(shifted) << 23));
  const float above_zero = x < -87.33654f ? 0.0f : scaled;
  // Infinity and NaN come from the product: a NaN whose mantissa is all ones, as GPUs write it, became a number above.
  return x <= 88.722839f ? above_zero : x * std::numeric_limits<float>::infinity();
#endif
}
HOST_DEVICE inline double exp(double x) { return std::exp(x); }
template <class T>
HOST_DEVICE Dual<T> exp(Dual<T> d) {
  const T y = exp(d.value);
  return {y, d.tangent * y};
}

// erf without branches: an odd polynomial up to 0.93, 1 - e^polynomial beyond (coefficients by N. Juffa, largest error
// 1 unit in the last place). GPUs use their own shorter function.
HOST_DEVICE inline float erf(float x) {
#ifdef __CUDA_ARCH__
  return ::erff(x);
#else
  const float t = std::fabs(x), s = x * x;
  float far = multiply_add(multiply_add(-1.72853470e-5f, t, 3.83197126e-4f), s,
                           multiply_add(-3.88396438e-3f, t, 2.42546219e-2f));
  far = multiply_add(far, t, -1.06777877e-1f);
  far = multiply_add(far, t, -6.34846687e-1f);
  far = multiply_add(far, t, -1.28717512e-1f);
  far = 1.0f - exp(multiply_add(far, t, -t));
  far = x < 0.0f ? -far : far;
  float near = -5.96761703e-4f;
  near = multiply_add(near, s, 4.99119423e-3f);
  near = multiply_add(near, s, -2.67681349e-2f);
  near = multiply_add(near, s, 1.12819925e-1f);
  near = multiply_add(near, s, -3.76125336e-1f);
  near = multiply_add(near, s, 1.28379166e-1f);
  near = multiply_add(near, x, x);
  return t > 0.927734375f ? far : near;
#endif
}
HOST_DEVICE inline double erf(double x) { return std::erf(x); }
template <class T>
HOST_DEVICE Dual<T> erf(Dual<T> d) {
  return {erf(d.value), d.tangent * kTwoOverSqrtPi<T> * exp(-d.value * d.value)};
}

#define LOCKSTEP_ELEMENTARY(name, derivative)                       \
  HOST_DEVICE inline float name(float x) { return std::name(x); }   \
  HOST_DEVICE inline double name(double x) { return std::name(x); } \
  template <class T>                                                \
  HOST_DEVICE Dual<T> name(Dual<T> d) {                             \
    const T x = d.value, y = name(x);                               \
    (void)x, (void)y;                                               \
    return {y, d.tangent * (derivative)};                           \
  }
LOCKSTEP_ELEMENTARY(log, 1 / x)
LOCKSTEP_ELEMENTARY(log1p, 1 / (1 + x))
LOCKSTEP_ELEMENTARY(sqrt, T(0.5) / y)
LOCKSTEP_ELEMENTARY(sin, std::cos(x))
LOCKSTEP_ELEMENTARY(cos, -std::sin(x))
LOCKSTEP_ELEMENTARY(tanh, 1 - y * y)
#undef LOCKSTEP_ELEMENTARY

HOST_DEVICE inline float pow(float x, float p) { return std::pow(x, p); }
HOST_DEVICE inline double pow(double x, double p) { return std::pow(x, p); }
template <class T>
HOST_DEVICE Dual<T> pow(Dual<T> x, T p) {
  return {std::pow(x.value, p), p == T(0) ? T(0) : x.tangent * p * std::pow(x.value, p - 1)};
}

}  // namespace math
}  // namespace lockstep::LOCKSTEP_KERNELS
