// Losses of single elements.
#include "lockstep/tensor/cuda/reduce_internal.h"
#include "lockstep/tensor/kernels/for_dtype_internal.h"
#include "lockstep/tensor/kernels/pointwise_internal.h"
#include "lockstep/tensor/ops/losses.h"

namespace lockstep::LOCKSTEP_KERNELS {

namespace {

template <class T>
DEVICE_ONLY T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
DEVICE_ONLY T absolute(T x) {
  return x < T(0) ? -x : x;
}

// A loss of x, y (the target) and w (pos_weight, or 1): `value` and `derivative` with respect to x. As on
// the CPU.
struct Bce {
  static constexpr bool kProbabilities = true;
  template <class T>
  DEVICE_ONLY static T value(T x, T y, T) {
    const T log_x = larger(math::log(x), T(-100)), log_rest = larger(math::log1p(-x), T(-100));
    return (y - T(1)) * log_rest - y * log_x;
  }
  template <class T>
  DEVICE_ONLY static T derivative(T x, T y, T) {
    return (x - y) / larger((T(1) - x) * x, T(1e-12f));
  }
};

struct BceWithLogits {
  static constexpr bool kProbabilities = false;
  template <class T>
  DEVICE_ONLY static T value(T x, T y, T w) {
    const T decay = math::exp(-absolute(x));  // never overflows
    return (T(1) - y) * x + (T(1) + (w - T(1)) * y) * (math::log1p(decay) + larger(-x, T(0)));
  }
  template <class T>
  DEVICE_ONLY static T derivative(T x, T y, T w) {
    const T decay = math::exp(-absolute(x));
    const T sigmoid = (x >= T(0) ? T(1) : decay) / (T(1) + decay);
    return (w * y + (T(1) - y)) * sigmoid - w * y;
  }
};

struct Mse {
  static constexpr bool kProbabilities = false;
  template <class T>
  DEVICE_ONLY static T value(T x, T y, T) {
    return (x - y) * (x - y);
  }
  template <class T>
  DEVICE_ONLY static T derivative(T x, T y, T) {
    return T(2) * (x - y);
  }
};

struct L1 {
  static constexpr bool kProbabilities = false;
  template <class T>
  DEVICE_ONLY static T value(T x, T y, T) {
    return absolute(x - y);
  }
  template <class T>
  DEVICE_ONLY static T derivative(T x, T y, T) {
    return x > y ? T(1) : x < y ? T(-1) : (x - y) * T(0);  // 0 where equal, NaN for NaN
  }
};

template <class Number>
struct Huber {
  static constexpr bool kProbabilities = false;
  Number delta;
  template <class T>
  DEVICE_ONLY T value(T x, T y, T w) const {
    const T slope = derivative(x, y, w);
    return slope * ((x - y) - slope * T(0.5));
  }
  template <class T>
  DEVICE_ONLY T derivative(T x, T y, T) const {
    const T d = x - y;
    return d < -delta ? -delta : d > delta ? delta : d;  // NaN stays
  }
};

template <class T, class F>
void with_loss(const raw::PointwiseLoss& loss, F function) {
  switch (loss.kind) {
    case raw::PointwiseLoss::kBce:
      return function(Bce{});
    case raw::PointwiseLoss::kBceWithLogits:
      return function(BceWithLogits{});
    case raw::PointwiseLoss::kMse:
      return function(Mse{});
    case raw::PointwiseLoss::kL1:
      return function(L1{});
    case raw::PointwiseLoss::kHuber:
      return function(Huber<T>{static_cast<T>(loss.delta)});
  }
}

template <class T, class Loss>
struct LossOf {
  Loss loss;
  const T *x, *y, *w;
  Fault* fault;
  DEVICE_ONLY T operator[](std::int64_t i) const {
    if constexpr (Loss::kProbabilities) {
      if (!(x[i] >= T(0) && x[i] <= T(1))) report(fault, Fault::kProbability, i, 0, 0);
    }
    return loss.value(x[i], y[i], w ? w[i] : T(1));
  }
  DEVICE_ONLY T derivative(std::int64_t i) const { return loss.derivative(x[i], y[i], w ? w[i] : T(1)); }
};

template <class T, class Loss>
struct EachLoss {
  LossOf<T, Loss> loss;
  T* out;
  DEVICE_ONLY void operator()(std::int64_t i) const { out[i] = loss[i]; }
};

template <class T, class Loss>
struct SumOfLosses {
  using Sum = T;
  LossOf<T, Loss> loss;
  T* out;
  double scale;
  DEVICE_ONLY Sum start() const { return 0; }
  DEVICE_ONLY void add(Sum& sum, std::int64_t at, std::int64_t, std::int64_t) const { sum += loss[at]; }
  DEVICE_ONLY Sum join(Sum a, Sum b) const { return a + b; }
  DEVICE_ONLY void finish(std::int64_t, Sum sum) const { *out = static_cast<T>(static_cast<double>(sum) * scale); }
};

template <class T, class Loss>
struct LossSlope {
  LossOf<T, Loss> loss;
  const T* grad;
  T* out;
  T scale;
  bool one_grad;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const T g = one_grad ? *grad * scale : grad[i];
    out[i] = g * loss.derivative(i);
  }
};

}  // namespace

void pointwise_loss(const raw::PointwiseLoss& loss, const void* x, const void* target, const void* pos_weight,
                    void* out, std::int64_t count, DType dtype, raw::Reduction reduction, double scale, std::int64_t*) {
  for_float(dtype, [&]<class T>(T) {
    with_loss<T>(loss, [&]<class Loss>(Loss kind) {
      const LossOf<T, Loss> of{kind, static_cast<const T*>(x), static_cast<const T*>(target),
                               static_cast<const T*>(pos_weight), fault_record()};
      T* const to = static_cast<T*>(out);
      if (reduction == raw::Reduction::kNone)
        launch_elements("pointwise loss", count, EachLoss<T, Loss>{of, to});
      else
        launch_reduce("pointwise loss", Rows{.n = count}, SumOfLosses<T, Loss>{of, to, scale});
    });
  });
}

void pointwise_loss_backward(const raw::PointwiseLoss& loss, const void* grad, const void* x, const void* target,
                             const void* pos_weight, void* out, std::int64_t count, DType dtype,
                             raw::Reduction reduction, double scale) {
  for_float(dtype, [&]<class T>(T) {
    with_loss<T>(loss, [&]<class Loss>(Loss kind) {
      const LossOf<T, Loss> of{kind, static_cast<const T*>(x), static_cast<const T*>(target),
                               static_cast<const T*>(pos_weight), fault_record()};
      launch_elements("pointwise loss backward", count,
                      LossSlope<T, Loss>{of, static_cast<const T*>(grad), static_cast<T*>(out), static_cast<T>(scale),
                                         reduction != raw::Reduction::kNone});
    });
  });
}

}  // namespace lockstep::LOCKSTEP_KERNELS
