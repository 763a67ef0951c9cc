// Functions of f32 without branches, so that loops over them become vector code: angles, logarithms, arcs, powers. Included by
// kernels only, inside their namespace, so that each instruction-set level has its own copy.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/tensor/kernels/level_internal.h"

namespace lockstep::LOCKSTEP_KERNELS::math {

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

// The number in the type for a function's last operations: on CPUs f64, whose rounding does not add to that of exp. GPUs
// may have few units for f64.
#ifdef __CUDA_ARCH__
HOST_DEVICE inline float extended(float x) { return x; }
#else
HOST_DEVICE inline double extended(float x) { return x; }
#endif
HOST_DEVICE inline double extended(double x) { return x; }

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
  // Numbers from conditions on p alone: the conditions would divide a loop over x.
  const bool is_whole = std::rint(p) == p, is_odd = is_whole & (std::rint(0.5f * p) != 0.5f * p),
             is_negative = (x < 0.0f) & (size < kInfinity);
  const float of_negative = is_whole ? 1.0f : std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t sign = is_odd ? 0x80000000u : 0u;
  const float size_of_y = is_negative ? y * of_negative : y;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(size_of_y) | (std::bit_cast<std::uint32_t>(x) & sign));
#endif
}

}  // namespace lockstep::LOCKSTEP_KERNELS::math
