// Elementwise kernels with several operands, casts and fills. Plain loops: the compiler vectorises them, and without
// contraction a vectorised sum or product has the bits of the scalar one.
#include "lockstep/tensor/kernels/elementwise_internal.h"

#include <cstring>

#include "lockstep/tensor/cpu/copies_internal.h"
#include "lockstep/tensor/cpu/loops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

// out = f(a, b), or f(in), for every element.
template <class Out, class T, class F>
void binary(const Loop<3>& loop, F f) {
  run_loop<Out, T, T>(loop, [f](std::int64_t count, Out* out, const T* a, const T* b) {
    if constexpr (std::is_same_v<T, float> && requires { F::is_usual(*a, *b); }) {
      for_usual(
          count, out, [=](std::int64_t i) { return F::is_usual(a[i], b[i]); },
          [=](std::int64_t i) { return F::usual(a[i], b[i]); }, [=](std::int64_t i) { return f(a[i], b[i]); });
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
    }
  });
}
template <class Out, class In, class F>
void unary(const Loop<2>& loop, F f) {
  run_loop<Out, In>(loop, [f](std::int64_t count, Out* out, const In* in) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = f(in[i]);
  });
}

}  // namespace

void write_words(void* to, const void* from, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(std::uint64_t));
}

void fill(const Loop<1>& loop, DType dtype, const Scalar& value) {
  const auto run = [&]<class T>(T number) {
    run_loop<T>(loop, [number](std::int64_t count, T* out) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = number;
    });
  };
  if (dtype == kFloat16) return run(to_half(static_cast<float>(value.to_double())));
  if (dtype == kBFloat16) return run(to_bfloat16(static_cast<float>(value.to_double())));
  for_number(dtype, [&]<class T>(T) {
    run(dtype == kBool ? static_cast<T>(value.to_double() != 0) : scalar_value<T>(value));
  });
}

void add(const Loop<3>& loop, DType dtype, const Scalar& alpha) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, AddScaled<T>{scalar_value<T>(alpha)}); });
}
void mul(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Multiply{}); });
}
void div(const Loop<3>& loop, DType dtype) {
  for_float(dtype, [&]<class T>(T) { binary<T, T>(loop, Divide{}); });
}
void pow(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Power{}); });
}
void maximum(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Maximum{}); });
}
void minimum(const Loop<3>& loop, DType dtype) {
  for_number(dtype, [&]<class T>(T) { binary<T, T>(loop, Minimum{}); });
}

void compare(const Loop<3>& loop, DType dtype, raw::Compare relation) {
  for_number(dtype, [&]<class T>(T) { with_relation(relation, [&](auto f) { binary<std::uint8_t, T>(loop, f); }); });
}

// A functor that does not take T is not compiled for it: the wrappers never ask for it.
void step_function(const Loop<2>& loop, DType dtype, raw::Step function) {
  for_number(dtype, [&]<class T>(T) {
    with_step(function, [&](auto f) {
      if constexpr (std::is_invocable_v<decltype(f), T>) unary<T, T>(loop, f);
    });
  });
}
void binary_op(const Loop<3>& loop, DType dtype, raw::BinaryOp function) {
  for_number(dtype, [&]<class T>(T) {
    with_binary_op(function, [&](auto f) {
      if constexpr (std::is_invocable_v<decltype(f), T, T>) binary<T, T>(loop, f);
    });
  });
}

void where(const Loop<4>& loop, DType dtype) {
  for_size(dtype, [&]<class T>(T) {
    run_loop<T, std::uint8_t, T, T>(loop,
                                    [](std::int64_t count, T* out, const std::uint8_t* c, const T* a, const T* b) {
                                      for (std::int64_t i = 0; i < count; ++i) out[i] = Where{}(c[i], a[i], b[i]);
                                    });
  });
}

void cast(const Loop<2>& loop, DType from, DType to) {
  if (from == to) {
    for_size(from, [&]<class T>(T) { copy_elements<T>(loop); });
    return;
  }
  for_any(from,
          [&]<class From>(From) { for_any(to, [&]<class To>(To) { unary<To, From>(loop, Convert<From, To>{}); }); });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
