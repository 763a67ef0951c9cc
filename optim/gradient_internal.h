// A parameter's gradient where it stands, without counting a reference. Not installed.
#pragma once

#include "lockstep/autograd/history_internal.h"

namespace lockstep::optim {

// Null where there is none.
inline const Tensor* gradient(const Tensor& parameter) {
  const autograd::History* history = autograd::history(parameter);
  return history && history->grad.defined() ? &history->grad : nullptr;
}

}  // namespace lockstep::optim
