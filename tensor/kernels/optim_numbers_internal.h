// The hyperparameters of optimizer steps in the parameters' precision. Included by kernels only, inside their
// namespace.
#pragma once

#include "lockstep/tensor/kernels/level_internal.h"
#include "lockstep/tensor/ops/optim_ops_internal.h"

namespace lockstep::LOCKSTEP_KERNELS {

template <class T>
struct SgdNumbers {
  HOST_DEVICE explicit SgdNumbers(const raw::SgdStep& s)
      : lr(static_cast<T>(s.lr)), momentum(static_cast<T>(s.momentum)),
        keep(static_cast<T>(s.first ? 1 : 1 - s.dampening)), decay(static_cast<T>(s.weight_decay)),
        sign(static_cast<T>(s.maximize ? -1 : 1)) {}
  T lr, momentum, keep, decay, sign;
};

template <class T>
struct AdamNumbers {
  HOST_DEVICE explicit AdamNumbers(const raw::AdamStep& s)
      : beta1(static_cast<T>(s.beta1)), beta2(static_cast<T>(s.beta2)), rest1(static_cast<T>(1 - s.beta1)),
        rest2(static_cast<T>(1 - s.beta2)), eps(static_cast<T>(s.eps)), rate(static_cast<T>(s.rate)),
        root(static_cast<T>(s.root)), decay(static_cast<T>(s.weight_decay)), shrink(static_cast<T>(s.shrink)) {}
  T beta1, beta2, rest1, rest2, eps, rate, root, decay, shrink;
};

template <class T>
struct RmsPropNumbers {
  HOST_DEVICE explicit RmsPropNumbers(const raw::RmsPropStep& s)
      : lr(static_cast<T>(s.lr)), alpha(static_cast<T>(s.alpha)), rest(static_cast<T>(s.rest)),
        eps(static_cast<T>(s.eps)), decay(static_cast<T>(s.weight_decay)), momentum(static_cast<T>(s.momentum)) {}
  T lr, alpha, rest, eps, decay, momentum;
};

template <class T>
struct LionNumbers {
  HOST_DEVICE explicit LionNumbers(const raw::LionStep& s)
      : lr(static_cast<T>(s.lr)), beta1(static_cast<T>(s.beta1)), beta2(static_cast<T>(s.beta2)),
        rest1(static_cast<T>(1 - s.beta1)), rest2(static_cast<T>(1 - s.beta2)),
        shrink(static_cast<T>(1 - s.lr * s.weight_decay)) {}
  T lr, beta1, beta2, rest1, rest2, shrink;
};

}  // namespace lockstep::LOCKSTEP_KERNELS
