// The functors of the elementwise kernels that are not in pointwise.def, for all devices. Included by kernels only,
// inside their namespace.
#pragma once

#include <cmath>
#include <type_traits>

#include "lockstep/tensor/half_internal.h"
#include "lockstep/tensor/level_internal.h"

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
      return std::pow(a, b);
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
