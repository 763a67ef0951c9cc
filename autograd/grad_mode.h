/// \file
/// Grad mode: whether operations of this thread record history. The guards restore the previous mode.
#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

namespace autograd {
bool grad_mode();             ///< on by default
void set_grad_mode(bool on);  ///< for this thread; prefer the guards. Always off under InferenceGuard.
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

/// A NoGradGuard that finds mistakes, as PyTorch's inference mode: memory allocated on this thread while it exists must
/// not take part in training. Saving such a tensor for backward, and outside of the guard requires_grad_() and changes
/// in place, throw InvalidArgument; clone() makes an ordinary tensor. Views are of the kind of their base. An
/// EnableGradGuard inside it has no effect. It is not faster than NoGradGuard, because recording nothing costs nothing
/// and changes are counted by one instruction.
class InferenceGuard : public NoGradGuard {
 public:
  InferenceGuard();
  ~InferenceGuard();

 private:
  bool previous_;
};

/// PyTorch's anomaly mode, to find where a NaN comes from: a backward on this thread, while the guard exists, throws
/// InvalidArgument after the first operation that computes a gradient with a NaN. The error names the operation and, if it
/// was recorded under a guard as well, the module in which it ran. Operations recorded under a guard are checked in any
/// backward. Forward is not checked. Each check reads all elements, so use it for a few steps only.
class AnomalyGuard {
 public:
  AnomalyGuard();
  ~AnomalyGuard();
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;

 private:
  bool previous_;
};

}  // namespace lockstep
