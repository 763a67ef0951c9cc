// Unary pointwise kernels, generated from pointwise.def.
#include "lockstep/tensor/cuda/loops_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"
#include "lockstep/tensor/kernels/wide_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class F>
struct Value {
  F f;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return static_cast<T>(f.value(x));
  }
};

template <class F>
struct Derivative {
  F f;
  template <class T>
  HOST_DEVICE T operator()(T grad, T x, T y) const {
    return times_derivative<F>(grad, f.derivative(x, y));
  }
};

template <class F>
struct SecondDerivative {
  F f;
  template <class T>
  HOST_DEVICE T operator()(T grad, T x) const {
    return times_derivative<F>(grad, second_derivative_of(f, x));
  }
};

// f of numbers of f16 or bf16: computed in f32 and rounded once.
template <class F, class T>
struct InF32 {
  F f;
  template <class... In>
  HOST_DEVICE T operator()(In... in) const {
    return narrow<T>(f(widen(in)...));
  }
};
// Runs f over a dense nest of f16 or bf16 numbers, of one or three inputs. Returns false for other dtypes.
template <int N, class F>
bool run_half(const char* op, const Loop<N>& loop, DType dtype, const F& f) {
  if (dtype != kFloat16 && dtype != kBFloat16) return false;
  for_half(dtype, [&]<class T>(T) {
    if constexpr (N == 2)
      run_dense_loop<T, T>(op, loop, InF32<F, T>{f});
    else
      run_dense_loop<T, T, T, T>(op, loop, InF32<F, T>{f});
  });
  return true;
}

template <class F, raw::DTypeRule kRule>
void run_value(const char* op, const Loop<2>& loop, DType dtype, const PointwiseParams& params) {
  const Value<F> value{make_pointwise<F>(params)};
  if (run_half(op, loop, dtype, value)) return;
  if constexpr (kRule == raw::DTypeRule::kNumbers)
    for_number(dtype, [&]<class T>(T) { run_loop<T, T>(op, loop, value); });
  else
    for_float(dtype, [&]<class T>(T) { run_loop<T, T>(op, loop, value); });
}

template <class F>
void run_derivative(const char* op, const Loop<4>& loop, DType dtype, const PointwiseParams& params) {
  const Derivative<F> derivative{make_pointwise<F>(params)};
  if (run_half(op, loop, dtype, derivative)) return;
  for_float(dtype, [&]<class T>(T) { run_loop<T, T, T, T>(op, loop, derivative); });
}

template <class F>
void run_second_derivative(const char* op, const Loop<3>& loop, DType dtype, const PointwiseParams& params) {
  for_float(dtype, [&]<class T>(T) { run_loop<T, T, T>(op, loop, SecondDerivative<F>{make_pointwise<F>(params)}); });
}

}  // namespace

#define POINTWISE(name, functor, dtypes, low, high)                                                \
  void name(const Loop<2>& loop, DType dtype, const PointwiseParams& params) {                     \
    run_value<functor, raw::DTypeRule::dtypes>(#name, loop, dtype, params);                        \
  }                                                                                                \
  void name##_derivative(const Loop<4>& loop, DType dtype, const PointwiseParams& params) {        \
    run_derivative<functor>(#name " backward", loop, dtype, params);                               \
  }                                                                                                \
  void name##_second_derivative(const Loop<3>& loop, DType dtype, const PointwiseParams& params) { \
    run_second_derivative<functor>(#name " backward of backward", loop, dtype, params);            \
  }
#include "lockstep/tensor/ops/pointwise.def"
#undef POINTWISE

}  // namespace lockstep::LOCKSTEP_KERNELS
