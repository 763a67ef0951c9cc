// Optimizer steps, and canonical sums over ranks and replicas.
#include "lockstep/tensor/adam_numbers_internal.h"
#include "lockstep/tensor/cuda/launch.h"
#include "lockstep/tensor/for_dtype_internal.h"
#include "lockstep/tensor/half.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

namespace {

template <class T>
struct Sgd {
  T* parameter;
  const T* grad;
  T* buffer;  // or null: no momentum
  T lr, momentum, keep, decay, sign;
  bool nesterov;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    const T p = parameter[i];
    T g = sign * grad[i];
    if (decay != T(0)) g += decay * p;
    if (buffer) {
      const T velocity = momentum * buffer[i] + keep * g;
      buffer[i] = velocity;
      g = nesterov ? g + momentum * velocity : velocity;
    }
    parameter[i] = p - lr * g;
  }
};

template <class T>
struct Adam {
  T* parameter;
  const T* grad;
  T *mean, *square;
  AdamNumbers<T> n;
  bool decays_gradient, decays_parameter;
  DEVICE_ONLY void operator()(std::int64_t i) const {
    T g = grad[i], x = parameter[i];
    if (decays_gradient) g += n.decay * x;
    if (decays_parameter) x *= n.shrink;
    const T m = n.beta1 * mean[i] + n.rest1 * g, s = n.beta2 * square[i] + n.rest2 * g * g;
    mean[i] = m;
    square[i] = s;
    parameter[i] = x - n.rate * m / (std::sqrt(s) / n.root + n.eps);
  }
};

}  // namespace

void sgd_step(void* parameter, const void* grad, void* buffer, std::int64_t count, DType dtype,
              const raw::SgdStep& step) {
  for_float(dtype, [&]<class T>(T) {
    launch_elements("sgd_step", count,
                    Sgd<T>{static_cast<T*>(parameter), static_cast<const T*>(grad), static_cast<T*>(buffer),
                           static_cast<T>(step.lr), static_cast<T>(step.momentum),
                           static_cast<T>(step.first ? 1 : 1 - step.dampening), static_cast<T>(step.weight_decay),
                           static_cast<T>(step.maximize ? -1 : 1), step.nesterov});
  });
}

void adam_step(void* parameter, const void* grad, void* mean, void* square, std::int64_t count, DType dtype,
               const raw::AdamStep& step) {
  for_float(dtype, [&]<class T>(T) {
    launch_elements("adam_step", count,
                    Adam<T>{static_cast<T*>(parameter), static_cast<const T*>(grad), static_cast<T*>(mean),
                            static_cast<T*>(square), AdamNumbers<T>(step), step.weight_decay != 0 && !step.decoupled,
                            step.weight_decay != 0 && step.decoupled});
  });
}

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
