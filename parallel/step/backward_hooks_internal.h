// Hooks of a mode on the backwards that a user calls. Not installed.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/autograd/history_internal.h"
#include "lockstep/base/callback.h"

namespace lockstep::parallel {

class BackwardHooks {
 public:
  // `hook` is called at the beginning of each backward from a result of the mode, or from a tensor computed from one, while
  // this object exists.
  explicit BackwardHooks(Callback<void(autograd::Run&)> hook)
      : hook_(std::make_shared<Callback<void(autograd::Run&)>>(std::move(hook))) {}
  ~BackwardHooks() { *hook_ = {}; }
  BackwardHooks(const BackwardHooks&) = delete;
  BackwardHooks& operator=(const BackwardHooks&) = delete;

  // Returns `result`, which the mode's forward has computed.
  Tensor add(Tensor result) const {
    if (result.defined() && !result.is_leaf())
      autograd::register_run_hook(result, [hook = hook_](autograd::Run& run) {
        if (*hook) (*hook)(run);
      });
    return result;
  }

 private:
  std::shared_ptr<Callback<void(autograd::Run&)>> hook_;  // empty once this object is destroyed
};

}  // namespace lockstep::parallel
