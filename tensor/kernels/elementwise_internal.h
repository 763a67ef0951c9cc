// The functors of the elementwise kernels that are not in pointwise.def, for all devices. Included by kernels only,
// inside their namespace.
#pragma once

#include <cmath>
#include <concepts>
#include <type_traits>

#include "lockstep/tensor/half_internal.h"
#include "lockstep/tensor/kernels/dual_internal.h"
#include "lockstep/tensor/kernels/level_internal.h"
#include "lockstep/tensor/ops/ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

template <class T>
T scalar_value(const Scalar& value) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(value.to_double());
  else
    return static_cast<T>(value.to_int64());
}

template <class T>
struct AddScaled {
  T factor;
  HOST_DEVICE T operator()(T a, T b) const { return static_cast<T>(a + factor * b); }
};

struct Multiply {
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};

struct Divide {
  HOST_DEVICE auto operator()(auto a, auto b) const { return a / b; }
};

struct Power {
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return math::pow(a, b);
    else
      return of_integers(a, b);
  }
  template <class T>
  HOST_DEVICE static T of_integers(T base, T exponent) {
    if constexpr (std::is_signed_v<T>) {  // 1 / base^-exponent, rounded towards 0; 0 for 0, as in PyTorch
      if (exponent < 0) return base == 1 ? T(1) : base == -1 ? T(exponent % 2 ? -1 : 1) : T(0);
    }
    T result = 1;
    for (; exponent > 0; exponent = static_cast<T>(exponent / 2)) {
      if (exponent % 2) result = static_cast<T>(result * base);
      base = static_cast<T>(base * base);
    }
    return result;
  }
};

// NaN in either operand gives NaN, as in PyTorch.
struct Maximum {
  HOST_DEVICE auto operator()(auto a, auto b) const { return a > b || a != a ? a : b; }
};
struct Minimum {
  HOST_DEVICE auto operator()(auto a, auto b) const { return a < b || a != a ? a : b; }
};

struct Sum {
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};

// Calls function(f) with the functor of a scatter that does not assign.
template <class F>
HOST_DEVICE void with_scatter(raw::Scatter mode, F function) {
  switch (mode) {
    case raw::Scatter::kMultiply:
      return function(Multiply{});
    case raw::Scatter::kMax:
      return function(Maximum{});
    case raw::Scatter::kMin:
      return function(Minimum{});
    default:
      return function(Sum{});
  }
}

struct Equal {
  HOST_DEVICE bool operator()(auto a, auto b) const { return a == b; }
};
struct NotEqual {
  HOST_DEVICE bool operator()(auto a, auto b) const { return a != b; }
};
struct Less {
  HOST_DEVICE bool operator()(auto a, auto b) const { return a < b; }
};
struct LessEqual {
  HOST_DEVICE bool operator()(auto a, auto b) const { return a <= b; }
};
struct Greater {
  HOST_DEVICE bool operator()(auto a, auto b) const { return a > b; }
};
struct GreaterEqual {
  HOST_DEVICE bool operator()(auto a, auto b) const { return a >= b; }
};

template <class F>
HOST_DEVICE void with_relation(raw::Compare relation, F function) {
  switch (relation) {
    case raw::Compare::kEqual:
      return function(Equal{});
    case raw::Compare::kNotEqual:
      return function(NotEqual{});
    case raw::Compare::kLess:
      return function(Less{});
    case raw::Compare::kLessEqual:
      return function(LessEqual{});
    case raw::Compare::kGreater:
      return function(Greater{});
    case raw::Compare::kGreaterEqual:
      return function(GreaterEqual{});
  }
}

struct Floor {
  HOST_DEVICE auto operator()(std::floating_point auto x) const { return std::floor(x); }
};
struct Ceil {
  HOST_DEVICE auto operator()(std::floating_point auto x) const { return std::ceil(x); }
};
struct Round {  // halves to even numbers
  HOST_DEVICE auto operator()(std::floating_point auto x) const { return std::rint(x); }
};
struct Trunc {
  HOST_DEVICE auto operator()(std::floating_point auto x) const { return std::trunc(x); }
};
struct Sign {  // 0 for NaN
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return static_cast<T>((x > T(0)) - (x < T(0)));
  }
};

// Calls function(f) with the functor of a step function.
template <class F>
HOST_DEVICE void with_step(raw::Step step, F function) {
  switch (step) {
    case raw::Step::kFloor:
      return function(Floor{});
    case raw::Step::kCeil:
      return function(Ceil{});
    case raw::Step::kRound:
      return function(Round{});
    case raw::Step::kTrunc:
      return function(Trunc{});
    case raw::Step::kSign:
      return function(Sign{});
  }
}

// a % b with the sign of a. For integers, 0 where b is 0 or -1: the instruction would trap for the smallest a.
struct Fmod {
  // For floats |a / b| < 2^28, so that f64 holds the quotient's whole part times b and the difference exactly.
  static bool is_usual(float a, float b) {
    return std::fabs(a) < 0x1p28f * std::fabs(b) && std::fabs(b) < std::numeric_limits<float>::infinity();
  }
  static float usual(float a, float b) {
    const double exact = a, whole = std::trunc(exact / b);
    return std::copysign(static_cast<float>(exact - whole * b), a);
  }
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmod(a, b);
    if (b == T(0) || (std::is_signed_v<T> && b == static_cast<T>(-1))) return T(0);
    if constexpr (std::is_integral_v<T>) return static_cast<T>(a % b);
  }
};

// a % b with the sign of b, as in Python.
struct Remainder {
  static bool is_usual(float a, float b) { return Fmod::is_usual(a, b); }
  static float usual(float a, float b) { return from_rest(Fmod::usual(a, b), b); }
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    return from_rest(Fmod{}(a, b), b);
  }
  template <class T>
  HOST_DEVICE static T from_rest(T rest, T b) {
    return rest != T(0) && (rest < T(0)) != (b < T(0)) ? static_cast<T>(rest + b) : rest;
  }
};

// The largest integer that is not above a / b. Floats as in Python: from the exact remainder, so that the quotient is
// consistent with it.
struct FloorDivide {
  static bool is_usual(float a, float b) { return Fmod::is_usual(a, b); }
  static float usual(float a, float b) { return from_rest(Fmod::usual(a, b), a, b); }
  template <class T>
  HOST_DEVICE static T from_rest(T rest, T a, T b) {
    const T quotient = (a - rest) / b;
    const T exact = rest != T(0) && (rest < T(0)) != (b < T(0)) ? quotient - T(1) : quotient;
    const T whole = std::floor(exact), rounded = exact - whole > T(0.5) ? whole + T(1) : whole;
    return exact == T(0) ? std::copysign(T(0), a / b) : rounded;
  }
  template <class T>
  HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return b == T(0) ? a / b : from_rest(std::fmod(a, b), a, b);
    } else {
      if (b == T(0)) return T(0);
      if constexpr (std::is_signed_v<T>) {  // wraps for the smallest a, as in PyTorch
        if (b == T(-1)) return static_cast<T>(std::make_unsigned_t<T>(0) - static_cast<std::make_unsigned_t<T>>(a));
      }
      const T quotient = static_cast<T>(a / b), rest = static_cast<T>(a % b);
      return rest != T(0) && (rest < T(0)) != (b < T(0)) ? static_cast<T>(quotient - 1) : quotient;
    }
  }
};

struct Atan2 {
  template <std::floating_point T>
  HOST_DEVICE T operator()(T a, T b) const {
    return math::atan2(a, b);
  }
};

struct And {
  template <std::integral T>
  HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <std::integral T>
  HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <std::integral T>
  HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Calls function(f) with the functor of a binary function.
template <class F>
HOST_DEVICE void with_binary_op(raw::BinaryOp op, F function) {
  switch (op) {
    case raw::BinaryOp::kRemainder:
      return function(Remainder{});
    case raw::BinaryOp::kFmod:
      return function(Fmod{});
    case raw::BinaryOp::kFloorDivide:
      return function(FloorDivide{});
    case raw::BinaryOp::kAtan2:
      return function(Atan2{});
    case raw::BinaryOp::kAnd:
      return function(And{});
    case raw::BinaryOp::kOr:
      return function(Or{});
    case raw::BinaryOp::kXor:
      return function(Xor{});
  }
}

struct Where {
  HOST_DEVICE auto operator()(std::uint8_t condition, auto a, auto b) const { return condition ? a : b; }
};

template <class From, class To>
struct Convert {
  HOST_DEVICE To operator()(From value) const {
    if constexpr (std::is_same_v<From, To>)
      return value;
    else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
      return Convert<float, To>()(to_float(value));
    else if constexpr (std::is_same_v<To, Half>)
      return to_half(static_cast<float>(value));
    else if constexpr (std::is_same_v<To, BFloat16>)
      return to_bfloat16(static_cast<float>(value));
    else if constexpr (std::is_same_v<To, bool>)
      return value != From(0);
    // Converts through i64, so that a negative or large number wraps as in PyTorch instead of being undefined.
    else if constexpr (std::is_floating_point_v<From> && std::is_same_v<To, std::uint8_t>)
      return static_cast<To>(static_cast<std::int64_t>(value));
    else
      return static_cast<To>(value);
  }
};

}  // namespace lockstep::LOCKSTEP_KERNELS
