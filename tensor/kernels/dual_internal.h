// Dual numbers a + b e with e^2 = 0: evaluating a functor's derivative on a dual number also gives the second
// derivative. Included by kernels only, inside their namespace, so that each instruction-set level has its own copy.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/tensor/kernels/elementary_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"

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

// (e^r - 1 - r) / r^2 for |r| <= log(2) / 2: the polynomial of Cephes' expf.
HOST_DEVICE inline float exp_polynomial(float r) {
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  return multiply_add(p, r, 5.0000001201e-1f);
}

// Adding this leaves the rounded number in the low bits: 1.5 * 2^23.
inline constexpr float kRoundingShift = 12582912.0f;

// e^x for |x| <= 87. x = n log 2 + r, |r| <= log(2) / 2; 2^n is added to the exponent bits. Largest relative error 9e-8.
HOST_DEVICE inline float exp_in_range(float x) {
  const float shifted = multiply_add(x, 1.44269504088896341f, kRoundingShift), n = shifted - kRoundingShift;
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
  const float power = multiply_add(exp_polynomial(r), r * r, r) + 1.0f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(power) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}

// e^x without branches or calls, so that loops over it become vector code. Results below 2^-126 are 0. GPUs have an
// instruction for 2^x: their own function is a third as long (and keeps such results).
HOST_DEVICE inline float exp(float x) {
#ifdef __CUDA_ARCH__
  return ::expf(x);
#else
  const float above_zero = x < -87.33654f ? 0.0f : exp_in_range(x);
  // Infinity and NaN come from the product: a NaN whose mantissa is all ones, as GPUs write it, became a number above.
  return x <= 88.722839f ? above_zero : x * std::numeric_limits<float>::infinity();
#endif
}
HOST_DEVICE inline double exp(double x) { return std::exp(x); }
// exp for x <= 0: the same bits in fewer operations, as 2^n is a normal number. NaN stays NaN: it is a factor of the
// result.
HOST_DEVICE inline float exp_up_to_0(float x) {
#ifdef __CUDA_ARCH__
  return ::expf(x);
#else
  const float shifted = multiply_add(x, 1.44269504088896341f, kRoundingShift), n = shifted - kRoundingShift;
  const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, x));
  const float s =
      std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + std::bit_cast<std::uint32_t>(1.0f));
  const float y = (multiply_add(exp_polynomial(r), r * r, r) + 1.0f) * s;
  return x < -87.33654f ? 0.0f : y;
#endif
}
template <class T>
HOST_DEVICE Dual<T> exp(Dual<T> d) {
  const T y = exp(d.value);
  return {y, d.tangent * y};
}

// e^x - 1 for x <= 88, without branches: s (e^r - 1) + (s - 1) with s = 2^n, where r and the sum have a second part, as
// the terms may cancel. Largest error 1.1 units in the last place.
HOST_DEVICE inline float expm1_up_to_88(float x) {
  const float c = x < -18.0f ? -18.0f : x;
  const float shifted = multiply_add(c, 1.44269504088896341f, kRoundingShift), n = shifted - kRoundingShift;
  const float most = multiply_add(n, -0.693359375f, c), least = n * 2.12194440e-4f;
  const float r = most + least, rest = (most - r) + least;
  const float s =
      std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + std::bit_cast<std::uint32_t>(1.0f));
  const float whole = s - 1.0f, sum = multiply_add(s, r, whole), lost = multiply_add(s, r, whole - sum);
  const float y = sum + multiply_add(s, multiply_add(exp_polynomial(r), r * r, rest), lost);
  return std::copysign(y, x);  // that of -0 is -0
}
HOST_DEVICE inline float expm1(float x) {
#ifdef __CUDA_ARCH__
  return ::expm1f(x);
#else
  const float y = expm1_up_to_88(x);
  return x > 88.0f ? exp(x) : y;
#endif
}
HOST_DEVICE inline double expm1(double x) { return std::expm1(x); }
template <class T>
HOST_DEVICE Dual<T> expm1(Dual<T> d) {
  const T y = expm1(d.value);
  return {y, d.tangent * (y + T(1))};
}

template <class T>
HOST_DEVICE Dual<T> extended(Dual<T> x) {
  return x;
}

// 1 / (1 + e^-x) = n (1 - e / (1 + e)) with e = e^-|x|, and n = e below 0, else 1: the errors of the sum and of the
// quotient are scaled down by e / (1 + e). Largest error 1.63 units in the last place, without FMA 1.82.
HOST_DEVICE inline float sigmoid(float x) {
#ifdef __CUDA_ARCH__
  return 1.0f / (1.0f + ::expf(-x));
#else
  const float e = exp_up_to_0(-std::fabs(x)), n = x < 0.0f ? e : 1.0f;
  return multiply_add(-n, e / (1.0f + e), n);
#endif
}
HOST_DEVICE inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }  // 1 / infinity is 0, the right value
template <class T>
HOST_DEVICE Dual<T> sigmoid(Dual<T> d) {  // the derivative e^-x / (1 + e^-x)^2 is even, and finite for e^-|x|
  const T e = exp(d.value < T(0) ? d.value : -d.value);
  return {sigmoid(d.value), d.tangent * (e / ((T(1) + e) * (T(1) + e)))};
}

// x / (1 + e^-x). With FMA the quotient is corrected by its residual: largest error 1.71 units in the last place.
HOST_DEVICE inline float silu(float x) {
#if defined(__CUDA_ARCH__) || !defined(__FMA__)
  return static_cast<float>(x / (1 + extended(exp(-x))));
#else
  constexpr float kLeast = -88.722832f, kMost = 87.0f, kInfinity = std::numeric_limits<float>::infinity();
  // As signed integers floats above 0 keep their order, and as unsigned ones those below 0 are ordered by size.
  const auto bits = std::bit_cast<std::int32_t>(x), most = std::bit_cast<std::int32_t>(kMost);
  const auto upper = static_cast<std::uint32_t>(bits < most ? bits : most),
             least = std::bit_cast<std::uint32_t>(kLeast);
  const float e = exp_in_range(-std::bit_cast<float>(upper < least ? upper : least));
  const float inverse = x < kLeast ? 0.0f : 1.0f / (1.0f + e), y = x * inverse;
  return x < kInfinity ? multiply_add(multiply_add(-y, e, x) - y, inverse, y) : y;
#endif
}
HOST_DEVICE inline double silu(double x) { return x / (1 + exp(-x)); }
template <class T>
HOST_DEVICE Dual<T> silu(Dual<T> d) {
  return d * sigmoid(d);
}

// tanh x = (e^2x - 1) / (e^2x + 1); from 9.1 it is 1 in f32. Largest error 1.5 units in the last place.
HOST_DEVICE inline float tanh(float x) {
#ifdef __CUDA_ARCH__
  return ::tanhf(x);
#else
  const float size = std::fabs(x);
  const auto e = extended(expm1_up_to_88(size > 9.1f ? 18.2f : size + size));
  return std::copysign(static_cast<float>(e / (e + 2)), x);
#endif
}
HOST_DEVICE inline double tanh(double x) { return std::tanh(x); }
template <class T>
HOST_DEVICE Dual<T> tanh(Dual<T> d) {
  const T y = tanh(d.value);
  return {y, d.tangent * (T(1) - y * y)};
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

// The normal cumulative distribution function, without branches. Below 0 it is e^(-x^2 / 2) times a rational function of
// |x|, fitted to a relative error of 6e-9, so nothing cancels as in 1 + erf. Below -13 it is 0. Largest error 1 unit in the
// last place of 1.
HOST_DEVICE inline float normal_cdf(float x) {
#ifdef __CUDA_ARCH__
  return 0.5f * (1.0f + ::erff(x * 0.70710678118654752440f));
#else
  const float size = std::fabs(x), t = size > 13.0f ? 13.0f : size;
  float p = 4.077504273e-3f;
  p = multiply_add(p, t, 4.037188848e-2f);
  p = multiply_add(p, t, 1.824599249e-1f);
  p = multiply_add(p, t, 4.372484454e-1f);
  p = multiply_add(p, t, 0.5f);
  float q = 1.022065874e-2f;
  q = multiply_add(q, t, 1.012041276e-1f);
  q = multiply_add(q, t, 4.674240493e-1f);
  q = multiply_add(q, t, 1.199282988f);
  q = multiply_add(q, t, 1.672381846f);
  q = multiply_add(q, t, 1.0f);
  const float tail = size > 13.0f ? 0.0f : exp_in_range(-0.5f * t * t) * (p / q);
  return x < 0.0f ? tail : 1.0f - tail;
#endif
}
HOST_DEVICE inline double normal_cdf(double x) { return 0.5 * (1.0 + std::erf(x * 0.70710678118654752440)); }
template <class T>
HOST_DEVICE Dual<T> normal_cdf(Dual<T> d) {
  return {normal_cdf(d.value), d.tangent * T(0.39894228040143267794) * exp(T(-0.5) * d.value * d.value)};
}

HOST_DEVICE inline float sqrt(float x) { return std::sqrt(x); }
HOST_DEVICE inline float sin(float x) { return std::sin(x); }
HOST_DEVICE inline float cos(float x) { return std::cos(x); }
HOST_DEVICE inline float tan(float x) { return std::tan(x); }
#define LOCKSTEP_OF_F64(name) \
  HOST_DEVICE inline double name(double x) { return std::name(x); }
LOCKSTEP_OF_F64(log2)
LOCKSTEP_OF_F64(log10)
LOCKSTEP_OF_F64(tan)
LOCKSTEP_OF_F64(asin)
LOCKSTEP_OF_F64(acos)
LOCKSTEP_OF_F64(atan)
#define LOCKSTEP_ELEMENTARY(name, derivative) \
  LOCKSTEP_OF_F64(name)                       \
  template <class T>                          \
  HOST_DEVICE Dual<T> name(Dual<T> d) {       \
    const T x = d.value, y = name(x);         \
    (void)x, (void)y;                         \
    return {y, d.tangent * (derivative)};     \
  }
LOCKSTEP_ELEMENTARY(log, 1 / x)
LOCKSTEP_ELEMENTARY(log1p, 1 / (1 + x))
LOCKSTEP_ELEMENTARY(sqrt, T(0.5) / y)
LOCKSTEP_ELEMENTARY(sin, std::cos(x))
LOCKSTEP_ELEMENTARY(cos, -std::sin(x))
#undef LOCKSTEP_ELEMENTARY
#undef LOCKSTEP_OF_F64

HOST_DEVICE inline double atan2(double y, double x) { return std::atan2(y, x); }
HOST_DEVICE inline double pow(double x, double p) { return std::pow(x, p); }
template <class T>
HOST_DEVICE Dual<T> pow(Dual<T> x, T p) {
  return {pow(x.value, p), p == T(0) ? T(0) : x.tangent * p * pow(x.value, p - 1)};
}

}  // namespace math
}  // namespace lockstep::LOCKSTEP_KERNELS
