// The functors of pointwise.def: a value, a derivative (`derivative`) in terms of input x and output y, and, if Eigen has a
// vectorised form, that form (`packet`), or all values of a CPU's loop (`values`). Used on the host and on devices.
//
// To add a function: a functor here, a line in pointwise.def, a documented declaration in autograd/ops/functions.h.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/tensor/kernels/dual_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

struct Neg {
  HOST_DEVICE static auto value(auto x) { return -x; }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return decltype(x)(-1); }
};

struct Abs {
  HOST_DEVICE static auto value(auto x) { return x < 0 ? -x : x + 0; }  // + 0 turns -0 into 0
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
  }
};

// e^x of a packet: f32 by math::exp, f64 by Eigen, corrected outside the range of finite results, to which Eigen
// clamps its argument.
template <class P>
P exp_packet(const P& x) {
  using T = typename P::Scalar;
  if constexpr (sizeof(T) == 4) {
    P y;
    for (int i = 0; i < P::SizeAtCompileTime; ++i) y[i] = math::exp(x[i]);
    return y;
  } else {
    P y = x.exp();
    for (int i = 0; i < P::SizeAtCompileTime; ++i) {
      y[i] = x[i] < -708.3964 ? 0.0 : x[i] > 709.78271289338397 ? std::numeric_limits<double>::infinity() : y[i];
    }
    return y;
  }
}

struct Exp {
  HOST_DEVICE static auto value(auto x) { return math::exp(x); }
  HOST_DEVICE static auto derivative(auto /*x*/, auto y) { return y; }
  static auto packet(const auto& x) requires(sizeof(x[0]) == 8) { return exp_packet(x); }
};

// log of a packet: f32 by math::log, f64 by Eigen, whose log treats subnormal numbers as the smallest normal one, so they are
// scaled up first.
template <class P>
P log_packet(const P& x) {
  P y;
  if constexpr (sizeof(x[0]) == 4) {
    for (int i = 0; i < P::SizeAtCompileTime; ++i) y[i] = math::log(x[i]);
    return y;
  } else {
    P shift;
    for (int i = 0; i < P::SizeAtCompileTime; ++i) {
      const bool subnormal = x[i] < std::numeric_limits<double>::min();
      y[i] = subnormal ? x[i] * 0x1p53 : x[i];
      shift[i] = subnormal ? 53 * 0.69314718055994530942 : 0.0;
    }
    return y.log() - shift;
  }
}

struct Log {
  HOST_DEVICE static auto value(auto x) { return math::log(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return 1 / x; }
  static auto packet(const auto& x) requires(sizeof(x[0]) == 8) { return log_packet(x); }
};

struct Sqrt {
  HOST_DEVICE static auto value(auto x) { return math::sqrt(x); }
  template <class T>
  HOST_DEVICE static T derivative(T /*x*/, T y) {
    return T(0.5) / y;
  }
};

struct Rsqrt {
  HOST_DEVICE static auto value(auto x) { return 1 / math::sqrt(x); }
  template <class T>
  HOST_DEVICE static T derivative(T /*x*/, T y) {
    return T(-0.5) * y * y * y;
  }
};

struct Sin {
  HOST_DEVICE static auto value(auto x) { return math::sin(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return math::cos(x); }
  static auto packet(const auto& x) requires(sizeof(x[0]) == 8) { return x.sin(); }
  static bool is_usual(float x) { return math::is_small_angle(x); }
  static float usual_value(float x) { return math::sin_of_small(x, 0); }
  static float usual_derivative(float x) { return math::sin_of_small(x, 1); }
};

struct Cos {
  HOST_DEVICE static auto value(auto x) { return math::cos(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return -math::sin(x); }
  static auto packet(const auto& x) requires(sizeof(x[0]) == 8) { return x.cos(); }
  static bool is_usual(float x) { return math::is_small_angle(x); }
  static float usual_value(float x) { return math::sin_of_small(x, 1); }
  static float usual_derivative(float x) { return math::sin_of_small(x, 2); }
};

struct Tanh {
  HOST_DEVICE static auto value(auto x) { return math::tanh(x); }
  HOST_DEVICE static auto derivative(auto /*x*/, auto y) { return 1 - y * y; }
};

struct Sigmoid {
  HOST_DEVICE static auto value(auto x) { return math::sigmoid(x); }
  HOST_DEVICE static auto derivative(auto /*x*/, auto y) { return y * (1 - y); }
  template <class P>
  static P packet(const P& x) requires(sizeof(x[0]) == 8) {
    return 1.0 / (1.0 + exp_packet(P(-x)));
  }
};

struct Relu {
  static constexpr bool kStops = true;  // a derivative of 0 gives gradient 0, even for an infinite incoming gradient
  HOST_DEVICE static auto value(auto x) { return x < 0 ? 0 : x; }  // NaN stays
  template <class T>
  HOST_DEVICE static T derivative(T /*x*/, T y) {
    return y <= T(0) ? T(0) : T(1);
  }
};

struct LeakyRelu {
  double negative;
  template <class T>
  HOST_DEVICE T value(T x) const {
    return x > T(0) ? x : x * T(negative);
  }
  template <class T>
  HOST_DEVICE T derivative(T x, T /*y*/) const {
    return x > T(0) ? T(1) : T(negative);
  }
};

struct Gelu {  // x Phi(x), Phi the normal cumulative distribution function
  HOST_DEVICE static auto value(auto x) { return x * math::normal_cdf(x); }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return math::normal_cdf(x) + x * T(0.39894228040143267794) * math::exp(T(-0.5) * x * x);
  }
};

struct GeluTanh {  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  template <class T>
  HOST_DEVICE static T value(T x) {
    return T(0.5) * x * (T(1) + math::tanh(inner(x)));
  }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    const T t = math::tanh(inner(x)), slope = T(kScale) * (T(1) + T(3 * 0.044715) * x * x);
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope;
  }
  template <class T>
  HOST_DEVICE static T inner(T x) {
    return T(kScale) * (x + T(0.044715) * x * x * x);
  }
  static constexpr double kScale = 0.79788456080286535588;  // sqrt(2 / pi)
};

struct Silu {  // x sigmoid(x)
  HOST_DEVICE static auto value(auto x) { return math::silu(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) {
    const auto s = Sigmoid::value(x);
    return s * (1 + x * (1 - s));
  }
  template <class P>
  static P packet(const P& x) requires(sizeof(x[0]) == 8) {
    return x / (1.0 + exp_packet(P(-x)));
  }
};

struct Softplus {  // log(1 + e^(beta x)) / beta, without overflow or loss of precision; x itself above the threshold
  double beta, threshold;
  template <class T>
  HOST_DEVICE T value(T x) const {
    const T z = x * T(beta);
    const T soft = ((z > T(0) ? z : T(0)) + math::log1p(math::exp(z > T(0) ? -z : z))) / T(beta);
    return z > T(threshold) ? x : soft;
  }
  template <class T>
  HOST_DEVICE T derivative(T x, T /*y*/) const {
    const T z = x * T(beta);
    return z > T(threshold) ? T(1) : Sigmoid::value(z);
  }
};

struct Erf {
  HOST_DEVICE static auto value(auto x) { return math::erf(x); }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return T(1.12837916709551257390) * math::exp(-x * x);
  }
};

// 1 / log(2) and 1 / log(10): the derivatives of log2 and log10 at 1.
inline constexpr double kInverseLog2 = 1.44269504088896340736, kInverseLog10 = 0.43429448190325182765;

struct Log1p {
  HOST_DEVICE static auto value(auto x) { return math::log1p(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return 1 / (1 + x); }
};

struct Expm1 {
  HOST_DEVICE static auto value(auto x) { return math::expm1(x); }
  HOST_DEVICE static auto derivative(auto /*x*/, auto y) { return y + 1; }
};

struct Log2 {
  HOST_DEVICE static auto value(auto x) { return math::log2(x); }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return T(kInverseLog2) / x;
  }
};

struct Log10 {
  HOST_DEVICE static auto value(auto x) { return math::log10(x); }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return T(kInverseLog10) / x;
  }
};

struct Tan {
  HOST_DEVICE static auto value(auto x) { return math::tan(x); }
  HOST_DEVICE static auto derivative(auto /*x*/, auto y) { return 1 + y * y; }
  static bool is_usual(float x) { return math::is_small_angle(x); }
  static float usual_value(float x) { return math::tan_of_small(x); }
};

struct Asin {
  HOST_DEVICE static auto value(auto x) { return math::asin(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return 1 / math::sqrt(1 - x * x); }
};

struct Acos {
  HOST_DEVICE static auto value(auto x) { return math::acos(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return -1 / math::sqrt(1 - x * x); }
};

struct Atan {
  HOST_DEVICE static auto value(auto x) { return math::atan(x); }
  HOST_DEVICE static auto derivative(auto x, auto /*y*/) { return 1 / (1 + x * x); }
};

struct Mish {  // x tanh(softplus(x))
  template <class T>
  HOST_DEVICE static T value(T x) {
    return static_cast<T>(x * tanh_softplus(x));
  }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    const auto t = tanh_softplus(x);
    return static_cast<T>(t + x * (1 - t * t) * Sigmoid::value(x));
  }
  template <class T>
  HOST_DEVICE static auto tanh_softplus(T x) {  // e^s = 1 + e^x
    const auto e = math::extended(math::exp(x > T(0) ? -x : x)), n = x > T(0) ? 1 + e + e : e * (e + 2);
    return n / (x > T(0) ? n + 2 * e * e : n + 2);
  }
};

struct Hardswish {  // x clamp(x + 3, 0, 6) / 6
  template <class T>
  HOST_DEVICE static T value(T x) {
    const T raised = x + T(3) < T(0) ? T(0) : x + T(3);
    return x * (raised > T(6) ? T(6) : raised) / T(6);
  }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return x <= T(-3) ? T(0) : x >= T(3) ? T(1) : x / T(3) + T(0.5);
  }
};

struct Elu {  // x above 0, alpha (e^x - 1) below
  double alpha;
  template <class T>
  HOST_DEVICE T value(T x) const {
    const T below = T(alpha) * math::expm1(x);  // without a branch: vector code
    return x > T(0) ? x : below;
  }
  template <class T>
  HOST_DEVICE T derivative(T x, T /*y*/) const {
    return x > T(0) ? T(1) : T(alpha) * math::exp(x);
  }
  static bool is_usual(float x) { return x > 0.0f; }
  static float usual_value(float x) { return x; }
};

struct Clamp {
  static constexpr bool kStops = true;
  double low, high;  // NaN: no limit. If low > high, the result is high
  template <class T>
  HOST_DEVICE T value(T x) const {
    const T raised = x < T(low) ? T(low) : x;
    return raised > T(high) ? T(high) : raised;
  }
  template <class T>
  HOST_DEVICE T derivative(T x, T /*y*/) const {
    return (x > T(low) || low != low) && (x < T(high) || high != high) ? T(1) : T(0);
  }
};

struct PowScalar {
  double exponent;
  HOST_DEVICE auto value(auto x) const { return raise(x, exponent); }
  template <class T>
  HOST_DEVICE T derivative(T x, T /*y*/) const {
    return T(exponent) * raise(x, exponent == 0 ? 0 : exponent - 1);
  }
  HOST_DEVICE static float raise(float x, double p) { return math::pow(x, static_cast<float>(p)); }
  HOST_DEVICE static double raise(double x, double p) { return math::pow(x, p); }
  template <class T>
  HOST_DEVICE static Dual<T> raise(Dual<T> x, double p) {
    return math::pow(x, static_cast<T>(p));
  }
};

struct Cube {  // PowScalar with an exponent of 3
  HOST_DEVICE static auto value(auto x) { return x * x * x; }
  template <class T>
  HOST_DEVICE static T derivative(T x, T /*y*/) {
    return T(3) * x * x;
  }
};

// The functor with its parameters.
template <class F>
F make_pointwise(const raw::PointwiseParams& params) {
  if constexpr (std::is_empty_v<F>)
    return F{};
  else if constexpr (requires { F{0.0, 0.0}; })
    return F{params.a, params.b};
  else
    return F{params.a};
}

// grad f', or grad f''.
template <class F, class T>
HOST_DEVICE T times_derivative(T grad, T derivative) {
  if constexpr (requires { F::kStops; })
    return derivative == T(0) ? T(0) : grad * derivative;
  else
    return grad * derivative;
}

// f'' by evaluating f' on x + 1 e, with y = f(x + 1 e) = f(x) + f'(x) e.
template <class F, class T>
HOST_DEVICE T second_derivative_of(const F& f, T x) {
  const T y = f.value(x);
  const Dual<T> derivative = f.derivative(Dual<T>(x, 1), Dual<T>(y, f.derivative(x, y)));
  return derivative.tangent;
}

}  // namespace lockstep::LOCKSTEP_KERNELS
