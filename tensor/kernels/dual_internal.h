// Dual numbers a + b e with e^2 = 0: evaluating a functor's derivative on a dual number also gives the second
// derivative. Included by kernels only, inside their namespace, so that each instruction-set level has its own copy.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

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

// first + x (second + x (...)).
template <class T>
[[gnu::always_inline]] HOST_DEVICE inline T polynomial(T /*x*/, T last) {
  return last;
}
template <class T, class... Rest>
[[gnu::always_inline]] HOST_DEVICE inline T polynomial(T x, T first, Rest... rest) {
  return multiply_add(polynomial(x, rest...), x, first);
}

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

// The number in the type for a function's last operations: on CPUs f64, whose rounding does not add to that of exp. GPUs
// may have few units for f64.
#ifdef __CUDA_ARCH__
HOST_DEVICE inline float extended(float x) { return x; }
#else
HOST_DEVICE inline double extended(float x) { return x; }
#endif
HOST_DEVICE inline double extended(double x) { return x; }
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

// sin and cos for |x| <= kMostForSin, without branches, in f64: x = k pi / 2 + r, |r| <= pi / 4, and FreeBSD's polynomials
// for r (k_sinf.c, k_cosf.c).
inline constexpr float kMostForSin = 1e6f;  // beyond it k times the first part of pi / 2, of 33 bits, would be rounded
inline bool is_small_angle(float x) { return std::fabs(x) <= kMostForSin; }
struct Turn {
  double sine, cosine;     // of r
  std::uint64_t quarters;  // k modulo 2^51
};
inline Turn turn_of_small(float x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the rounded number in the low bits
  const double shifted = x * 0.63661977236758134308 + kShift, k = shifted - kShift;
  const double r = (x - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11, z = r * r, w = z * z;
  const double sine = r * (1.0 + z * ((-0.166666666416265235595 + z * 0.0083333293858894631756) +
                                      w * (-0.000198393348360966317347 + z * 0.0000027183114939898219064)));
  const double cosine = ((1.0 + z * -0.499999997251031003120) + w * 0.0416666233237390631894) +
                        w * z * (-0.00138867637746099294692 + z * 0.0000243904487962774090654);
  return {sine, cosine, std::bit_cast<std::uint64_t>(shifted)};
}
// sin(x + quarters pi / 2). Largest error 0.51 units in the last place.
inline float sin_of_small(float x, std::uint64_t quarters) {
  const Turn turn = turn_of_small(x);
  const std::uint64_t quarter = turn.quarters + quarters;
  const double y = (quarter & 1) != 0 ? turn.cosine : turn.sine;
  return static_cast<float>((quarter & 2) != 0 ? -y : y);
}
inline float tan_of_small(float x) {
  const Turn turn = turn_of_small(x);
  const bool is_odd = (turn.quarters & 1) != 0;
  const double above = is_odd ? -turn.cosine : turn.sine, below = is_odd ? turn.sine : turn.cosine;
  return static_cast<float>(above / below);
}

// x = 2^exponent (1 + m), |m| <= 1/3, for positive numbers.
struct Reduced {
  float exponent, m;
};
// The exponent of x / (1 + m), as a difference of bits.
HOST_DEVICE inline std::int32_t exponent_bits(float x) {
  constexpr std::uint32_t kTwoThirds = 0x3f2aaaab;
  return static_cast<std::int32_t>((std::bit_cast<std::uint32_t>(x) - kTwoThirds) & 0xff800000u);
}
HOST_DEVICE inline float divide_by_power(float x, std::int32_t bits) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) - static_cast<std::uint32_t>(bits));
}
HOST_DEVICE inline Reduced reduced(float x) {
  const bool subnormal = x < std::numeric_limits<float>::min();
  const float normal = subnormal ? x * 0x1p24f : x;
  const std::int32_t bits = exponent_bits(normal);
  return {static_cast<float>(bits) * 0x1p-23f - (subnormal ? 24.0f : 0.0f), divide_by_power(normal, bits) - 1.0f};
}
// log(1 + m) - m for |m| <= 1/3; a relative error of 2^-27 of log(1 + m).
HOST_DEVICE inline float log_rest(float m) {
  return m * m *
         polynomial(m, -5.000000121e-1f, 3.333320842e-1f, -2.499971746e-1f, 2.001074759e-1f, -1.668230570e-1f,
                    1.400116065e-1f, -1.216715412e-1f, 1.400475744e-1f, -1.294896554e-1f);
}
// The logarithm: y where x is positive and finite.
HOST_DEVICE inline float limited_log(float x, float y) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float beyond = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : x == 0.0f ? -kInfinity : x;
  return x > 0.0f && x < kInfinity ? y : beyond;
}
// Logarithms without branches.
HOST_DEVICE inline float log(float x) {
#ifdef __CUDA_ARCH__
  return ::logf(x);
#else
  const auto [exponent, m] = reduced(x);
  return limited_log(x, multiply_add(exponent, 0.69314718055994530942f, m + log_rest(m)));
#endif
}
// The logarithm to the base for which log(2) and log(e) are given: exact for its powers, with last operations in f64.
HOST_DEVICE inline float log_of_base(float x, double of_2, double of_e) {
  const auto [exponent, m] = reduced(x);
  return limited_log(x, static_cast<float>(exponent * of_2 + (extended(m) + log_rest(m)) * of_e));
}
HOST_DEVICE inline float log2(float x) {
#ifdef __CUDA_ARCH__
  return ::log2f(x);
#else
  return log_of_base(x, 1, 1.44269504088896340736);
#endif
}
HOST_DEVICE inline float log10(float x) {
#ifdef __CUDA_ARCH__
  return ::log10f(x);
#else
  return log_of_base(x, 0.30102999566398119521, 0.43429448190325182765);
#endif
}
// log(1 + x) = log(2^e (1 + m)) with m = 2^-e x + (2^-e - 1), which is exact or has a rounding error far below the result.
HOST_DEVICE inline float log1p(float x) {
#ifdef __CUDA_ARCH__
  return ::log1pf(x);
#else
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::int32_t bits = exponent_bits(1.0f + x);
  const float m = divide_by_power(x, bits) + (0.25f * divide_by_power(4.0f, bits) - 1.0f);  // 2^-e may be subnormal
  const float y = multiply_add(static_cast<float>(bits) * 0x1p-23f, 0.69314718055994530942f, m + log_rest(m));
  const float beyond = x < -1.0f ? std::numeric_limits<float>::quiet_NaN() : x * kInfinity;
  return x > -1.0f && x < kInfinity ? std::copysign(y, x) : beyond;  // that of -0 is -0
#endif
}

// Arcs without branches, from polynomials for an angle near 0, which is added to right angles in f64.
HOST_DEVICE inline float arc(float right_angles, float first, float second) {
  return static_cast<float>(right_angles * 1.57079632679489661923 + (extended(first) + extended(second)));
}
HOST_DEVICE inline float atan2(float y, float x) {
#ifdef __CUDA_ARCH__
  return ::atan2f(y, x);
#else
  const float height = std::fabs(y), width = std::fabs(x);
  const bool steep = height > width, left = std::bit_cast<std::int32_t>(x) < 0;
  const float small = steep ? width : height, large = steep ? height : width;
  const float equal = large == 0.0f ? 0.0f : 1.0f, quotient = small / large, t = small == large ? equal : quotient;
  const float z = t * t, turned = steep != left ? -t : t;
  const float rest = turned * z *
                     polynomial(z, -3.333329909e-1f, 1.999854828e-1f, -1.426424164e-1f, 1.095218556e-1f,
                                -8.403449663e-2f, 5.795758161e-2f, -3.117783354e-2f, 1.091459899e-2f, -1.793620175e-3f);
  return std::copysign(arc(steep ? 1.0f : left ? 2.0f : 0.0f, turned, rest), y);
#endif
}
HOST_DEVICE inline float atan(float x) {
#ifdef __CUDA_ARCH__
  return ::atanf(x);
#else
  return atan2(x, 1.0f);
#endif
}
// right_angles pi / 2 + factor asin(t), 0 <= t <= 0.5, z = t^2.
HOST_DEVICE inline float arc_of_sine(float right_angles, float factor, float t, float z) {
  const float scaled = factor * t;
  return arc(
      right_angles, scaled,
      scaled * z * polynomial(z, 1.666675248e-1f, 7.495297637e-2f, 4.547037678e-2f, 2.417951041e-2f, 4.216631583e-2f));
}
// Beyond 0.5, asin x = pi / 2 - 2 asin(sqrt((1 - x) / 2)).
HOST_DEVICE inline float asin(float x) {
#ifdef __CUDA_ARCH__
  return ::asinf(x);
#else
  const float size = std::fabs(x);
  const bool near = size <= 0.5f;
  const float z = near ? x * x : 0.5f * (1.0f - size);
  return std::copysign(arc_of_sine(near ? 0.0f : 1.0f, near ? 1.0f : -2.0f, near ? size : std::sqrt(z), z), x);
#endif
}
HOST_DEVICE inline float acos(float x) {
#ifdef __CUDA_ARCH__
  return ::acosf(x);
#else
  const float size = std::fabs(x), sign = std::copysign(1.0f, x);
  const bool near = size <= 0.5f;
  const float z = near ? x * x : 0.5f * (1.0f - size);
  return arc_of_sine(near ? 1.0f : 1.0f - sign, near ? -sign : 2.0f * sign, near ? size : std::sqrt(z), z);
#endif
}

// x^p as 2^(p log2 |x|) in f64, without branches, and C's special cases.
HOST_DEVICE inline float pow(float x, float p) {
#ifdef __CUDA_ARCH__
  return ::powf(x, p);
#else
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr double kShift = 6755399441055744.0;  // as in turn_of_small
  const float size = std::fabs(x);
  const auto [exponent, m] = reduced(size);
  const float whole = size == 0.0f ? -kInfinity : size < kInfinity ? exponent : size;
  const double d = m;
  const double log2_of_size =
      whole + d * polynomial(d, 1.44269504088896340736, -7.21347519629040645e-01, 4.80898344541366152e-01,
                             -3.60673971304664442e-01, 2.88539407966929506e-01, -2.40433956281172034e-01,
                             2.06076882473944456e-01, -1.80800794289277922e-01, 1.60878834974191337e-01,
                             -1.37503900042063448e-01, 1.23645953769382519e-01, -1.65975618011022091e-01,
                             1.57323721222004748e-01);
  const double product = p * log2_of_size, at_most = product > 200.0 ? 200.0 : product,
               in_range = at_most < -200.0 ? -200.0 : at_most;
  const double shifted = in_range + kShift, r = in_range - (shifted - kShift);
  const double power = polynomial(r, 1.0, 6.93147202855069811e-01, 2.40226479136733645e-01, 5.55033247109735436e-02,
                                  9.61843735320004264e-03, 1.33988744266465547e-03, 1.53533629967685841e-04);
  const double scale =
      std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) << 52) + std::bit_cast<std::uint64_t>(1.0));
  const bool is_one = (p == 0.0f) | (size == 1.0f);
  const float y = is_one ? 1.0f : static_cast<float>(power * scale);
  // What depends on p alone becomes numbers: as conditions they would divide a loop over x.
  const bool is_whole = std::rint(p) == p, is_odd = is_whole & (std::rint(0.5f * p) != 0.5f * p),
             is_negative = (x < 0.0f) & (size < kInfinity);
  const float of_negative = is_whole ? 1.0f : std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t sign = is_odd ? 0x80000000u : 0u;
  const float size_of_y = is_negative ? y * of_negative : y;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(size_of_y) | (std::bit_cast<std::uint32_t>(x) & sign));
#endif
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
