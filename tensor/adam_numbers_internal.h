// Included by kernels only, inside their namespace.
#pragma once

#include <cmath>

#include "lockstep/tensor/level_internal.h"
#include "lockstep/tensor/optim_ops.h"

namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS {

// The numbers of an Adam step in the parameter's own precision.
template <class T>
struct AdamNumbers {
  explicit AdamNumbers(const raw::AdamStep& s)
      : beta1(static_cast<T>(s.beta1)), beta2(static_cast<T>(s.beta2)), rest1(static_cast<T>(1 - s.beta1)),
        rest2(static_cast<T>(1 - s.beta2)), eps(static_cast<T>(s.eps)), rate(static_cast<T>(s.lr / s.correction1)),
        root(static_cast<T>(std::sqrt(s.correction2))), decay(static_cast<T>(s.weight_decay)),
        shrink(static_cast<T>(1 - s.lr * s.weight_decay)) {}
  T beta1, beta2, rest1, rest2, eps, rate, root, decay, shrink;
};

}  // namespace lockstep::inline LOCKSTEP_ABI::LOCKSTEP_KERNELS
