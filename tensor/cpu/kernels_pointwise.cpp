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

template <class F, class T>
void value_loop(const Loop<2>& loop, const PointwiseParams& params) {
  run_loop<T, T>(loop, [f = make_pointwise<F>(params)](std::int64_t count, T* out, const T* in) {
    if constexpr (requires { F::values(count, out, in); }) {
      F::values(count, out, in);
    } else if constexpr (kHasPacket<F, T>) {
      map_packets(count, out, in, [](const Packet<T>& x) { return Packet<T>(F::packet(x)); });
    } else {
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(f.value(in[i]));
    }
  });
}

template <class F, raw::DTypeRule kRule>
void run_value(const Loop<2>& loop, DType dtype, const PointwiseParams& params) {
  if constexpr (kRule == raw::DTypeRule::kNumbers) {
    for_number(dtype, [&]<class T>(T) { value_loop<F, T>(loop, params); });
  } else {
    for_float(dtype, [&]<class T>(T) { value_loop<F, T>(loop, params); });
  }
}

template <class F>
void run_derivative(const Loop<4>& loop, DType dtype, const PointwiseParams& params) {
  for_float(dtype, [&]<class T>(T) {
    run_loop<T, T, T, T>(
        loop, [f = make_pointwise<F>(params)](std::int64_t count, T* out, const T* grad, const T* x, const T* y) {
          for (std::int64_t i = 0; i < count; ++i) out[i] = times_derivative<F>(grad[i], f.derivative(x[i], y[i]));
        });
  });
}

template <class F>
void run_second_derivative(const Loop<3>& loop, DType dtype, const PointwiseParams& params) {
  for_float(dtype, [&]<class T>(T) {
    run_loop<T, T, T>(loop, [f = make_pointwise<F>(params)](std::int64_t count, T* out, const T* grad, const T* x) {
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
