// Elementwise kernels with several operands, casts and fills. Plain loops: the compiler vectorises them, and without
// contraction a vectorised sum or product has the bits of the scalar one.
#include "lockstep/tensor/cpu/level.h"

#include <cmath>

#include "lockstep/tensor/cpu/loops.h"
#include "lockstep/tensor/half.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

namespace {

template <class T>
T scalar_value(const Scalar& value) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(value.to_double());
  else
    return static_cast<T>(value.to_int64());
}

template <class F>
void binary(const Loop<3>& loop, DType dtype, F f) {
  for_number(dtype, [&]<class T>(T) {
    run_loop<T, T, T>(loop, [f](std::int64_t count, T* out, const T* a, const T* b) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(f(a[i], b[i]));
    });
  });
}

template <class T>
T integer_power(T base, T exponent) {
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

}  // namespace

void fill(const Loop<1>& loop, DType dtype, const Scalar& value) {
  if (dtype == kFloat16 || dtype == kBFloat16) {
    const auto number = static_cast<float>(value.to_double());
    const std::uint16_t bits = dtype == kFloat16 ? to_half(number).bits : to_bfloat16(number).bits;
    run_loop<std::uint16_t>(loop, [bits](std::int64_t count, std::uint16_t* out) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = bits;
    });
    return;
  }
  for_number(dtype, [&]<class T>(T) {
    const T number = dtype == kBool ? static_cast<T>(value.to_double() != 0) : scalar_value<T>(value);
    run_loop<T>(loop, [number](std::int64_t count, T* out) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = number;
    });
  });
}

void add(const Loop<3>& loop, DType dtype, const Scalar& alpha) {
  for_number(dtype, [&]<class T>(T) {
    const T factor = scalar_value<T>(alpha);
    run_loop<T, T, T>(loop, [factor](std::int64_t count, T* out, const T* a, const T* b) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(a[i] + factor * b[i]);
    });
  });
}

void mul(const Loop<3>& loop, DType dtype) {
  binary(loop, dtype, [](auto a, auto b) { return a * b; });
}

void div(const Loop<3>& loop, DType dtype) {
  for_float(dtype, [&]<class T>(T) {
    run_loop<T, T, T>(loop, [](std::int64_t count, T* out, const T* a, const T* b) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] / b[i];
    });
  });
}

void pow(const Loop<3>& loop, DType dtype) {
  binary(loop, dtype, []<class T>(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return std::pow(a, b);
    else
      return integer_power(a, b);
  });
}

// NaN wins on either side, as in PyTorch.
void maximum(const Loop<3>& loop, DType dtype) {
  binary(loop, dtype, [](auto a, auto b) { return a > b || a != a ? a : b; });
}
void minimum(const Loop<3>& loop, DType dtype) {
  binary(loop, dtype, [](auto a, auto b) { return a < b || a != a ? a : b; });
}

void compare(const Loop<3>& loop, DType dtype, raw::Compare relation) {
  for_number(dtype, [&]<class T>(T) {
    const auto run = [&](auto f) {
      run_loop<std::uint8_t, T, T>(loop, [f](std::int64_t count, std::uint8_t* out, const T* a, const T* b) {
        for (std::int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
      });
    };
    switch (relation) {
      case raw::Compare::kEqual:
        return run([](T a, T b) { return a == b; });
      case raw::Compare::kNotEqual:
        return run([](T a, T b) { return a != b; });
      case raw::Compare::kLess:
        return run([](T a, T b) { return a < b; });
      case raw::Compare::kLessEqual:
        return run([](T a, T b) { return a <= b; });
      case raw::Compare::kGreater:
        return run([](T a, T b) { return a > b; });
      case raw::Compare::kGreaterEqual:
        return run([](T a, T b) { return a >= b; });
    }
  });
}

void where(const Loop<4>& loop, DType dtype) {
  for_size(dtype, [&]<class T>(T) {
    run_loop<T, std::uint8_t, T, T>(loop,
                                    [](std::int64_t count, T* out, const std::uint8_t* c, const T* a, const T* b) {
                                      for (std::int64_t i = 0; i < count; ++i) out[i] = c[i] ? a[i] : b[i];
                                    });
  });
}

namespace {

template <class From, class To>
To convert(From value) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
    return convert<float, To>(to_float(value));
  else if constexpr (std::is_same_v<To, Half>)
    return to_half(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, BFloat16>)
    return to_bfloat16(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, bool>)
    return value != From(0);
  // Through i64, so that a negative or large number wraps as in PyTorch instead of being undefined.
  else if constexpr (std::is_floating_point_v<From> && std::is_same_v<To, std::uint8_t>) {
    return static_cast<To>(static_cast<std::int64_t>(value));
  } else
    return static_cast<To>(value);
}

template <class F>
void for_any(DType dtype, F function) {
  switch (dtype) {
    case kBool:
      return function(bool{});
    case kFloat16:
      return function(Half{});
    case kBFloat16:
      return function(BFloat16{});
    default:
      return for_number(dtype, function);
  }
}

}  // namespace

void cast(const Loop<2>& loop, DType from, DType to) {
  if (from == to) {
    for_size(from, [&]<class T>(T) {
      run_loop<T, T>(loop, [](std::int64_t count, T* out, const T* in) {
        std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(T));
      });
    });
    return;
  }
  for_any(from, [&]<class From>(From) {
    for_any(to, [&]<class To>(To) {
      run_loop<To, From>(loop, [](std::int64_t count, To* out, const From* in) {
        for (std::int64_t i = 0; i < count; ++i) out[i] = convert<From, To>(in[i]);
      });
    });
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
