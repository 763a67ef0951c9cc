// Access to a parameter's gradient without a reference count. Not installed.
#pragma once

#include "lockstep/autograd/history_internal.h"

namespace lockstep::optim {

// The gradient of `parameter`; null if there is none.
inline const Tensor* gradient(const Tensor& parameter) {
  const autograd::History* history = autograd::history(parameter);
  return history && history->grad.defined() ? &history->grad : nullptr;
}

}  // namespace lockstep::optim
