// Unary pointwise kernels, generated from pointwise.def.
#include "lockstep/tensor/kernels/level_internal.h"

#include "lockstep/tensor/cpu/loops_internal.h"
#include "lockstep/tensor/cpu/packets_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class F, class T>
constexpr bool kHasPacket = requires(const Packet<T>& x) {
  F::packet(x);
};

// The functors are made where they are used, so that the compiler keeps their parameters in registers.
template <class F, class T>
void value_loop(const Loop<2>& loop, const PointwiseParams& params) {
  run_loop<T, T>(loop, [params](std::int64_t count, T* out, const T* in) {
    const F f = make_pointwise<F>(params);
    const auto value = [=](std::int64_t i) { return static_cast<T>(f.value(in[i])); };
    if constexpr (kHasPacket<F, T>) {
      map_packets(count, out, in, [](const Packet<T>& x) { return Packet<T>(F::packet(x)); });
    } else if constexpr (std::is_same_v<T, float> && requires { F::is_usual(*in); }) {
      for_usual(
          count, out, [=](std::int64_t i) { return F::is_usual(in[i]); },
          [=](std::int64_t i) { return F::usual_value(in[i]); }, value);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = value(i);
    }
  });
}

template <class F, raw::DTypeRule kRule>
void run_value(const Loop<2>& loop, DType dtype, const PointwiseParams& params) {
  if constexpr (std::is_same_v<F, PowScalar>) {
    if (params.a == 3) return run_value<Cube, kRule>(loop, dtype, params);
  }
  if constexpr (kRule == raw::DTypeRule::kNumbers) {
    for_number(dtype, [&]<class T>(T) { value_loop<F, T>(loop, params); });
  } else {
    for_float(dtype, [&]<class T>(T) { value_loop<F, T>(loop, params); });
  }
}

template <class F, class T>
void derivative_loop(const Loop<4>& loop, const PointwiseParams& params) {
  run_loop<T, T, T, T>(loop, [params](std::int64_t count, T* out, const T* grad, const T* x, const T* y) {
    const F f = make_pointwise<F>(params);
    const auto value = [=](std::int64_t i) { return times_derivative<F>(grad[i], f.derivative(x[i], y[i])); };
    if constexpr (std::is_same_v<T, float> && requires { F::usual_derivative(*x); }) {
      for_usual(
          count, out, [=](std::int64_t i) { return F::is_usual(x[i]); },
          [=](std::int64_t i) { return times_derivative<F>(grad[i], F::usual_derivative(x[i])); }, value);
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = value(i);
    }
  });
}

template <class F>
void run_derivative(const Loop<4>& loop, DType dtype, const PointwiseParams& params) {
  if constexpr (std::is_same_v<F, PowScalar>) {
    if (params.a == 3) return run_derivative<Cube>(loop, dtype, params);
  }
  for_float(dtype, [&]<class T>(T) { derivative_loop<F, T>(loop, params); });
}

template <class F>
void run_second_derivative(const Loop<3>& loop, DType dtype, const PointwiseParams& params) {
  for_float(dtype, [&]<class T>(T) {
    run_loop<T, T, T>(loop, [params](std::int64_t count, T* out, const T* grad, const T* x) {
      const F f = make_pointwise<F>(params);
      for (std::int64_t i = 0; i < count; ++i) out[i] = times_derivative<F>(grad[i], second_derivative_of(f, x[i]));
    });
  });
}

}  // namespace

#define POINTWISE(name, functor, dtypes, low, high)                                                \
  void name(const Loop<2>& loop, DType dtype, const PointwiseParams& params) {                     \
    run_value<functor, raw::DTypeRule::dtypes>(loop, dtype, params);                               \
  }                                                                                                \
  void name##_derivative(const Loop<4>& loop, DType dtype, const PointwiseParams& params) {        \
    run_derivative<functor>(loop, dtype, params);                                                  \
  }                                                                                                \
  void name##_second_derivative(const Loop<3>& loop, DType dtype, const PointwiseParams& params) { \
    run_second_derivative<functor>(loop, dtype, params);                                           \
  }
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE

}  // namespace lockstep::LOCKSTEP_KERNELS
