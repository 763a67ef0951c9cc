/// \file
/// Grad mode: whether operations of this thread record history. The guards restore the previous mode.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

namespace autograd {
bool grad_mode();             ///< on by default
void set_grad_mode(bool on);  ///< for this thread; prefer the guards
}  // namespace autograd

/// Turns recording on for this thread while the guard exists, inside a NoGradGuard; off with `on` = false.
class EnableGradGuard {
 public:
  explicit EnableGradGuard(bool on = true) : previous_(autograd::grad_mode()) { autograd::set_grad_mode(on); }
  ~EnableGradGuard() { autograd::set_grad_mode(previous_); }
  EnableGradGuard(const EnableGradGuard&) = delete;
  EnableGradGuard& operator=(const EnableGradGuard&) = delete;

 private:
  bool previous_;
};

/// Turns recording off for this thread while the guard exists: for evaluation, optimizer steps and in-place changes of
/// parameters.
class NoGradGuard : public EnableGradGuard {
 public:
  NoGradGuard() : EnableGradGuard(false) {}
};

}  // namespace lockstep
