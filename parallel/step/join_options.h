/// \file
/// Options of `join`, with which ranks may have different numbers of batches.
#pragma once

#include "lockstep/base/callback.h"

namespace lockstep::parallel {

/// Options of `join`, the same on all ranks.
struct JoinOptions {
  /// Divide gradients by the number of all ranks (micro-batches), as if the gradients of joined ranks were zero; false:
  /// by the number of those that have data. With Weighting::kSamples the mean is over the samples of the step either
  /// way.
  bool divide_by_initial_world_size = true;
  bool enable = true;                       ///< false: `join` only calls `body`
  bool throw_on_early_termination = false;  ///< on all ranks, when a rank has no more data and another does
  /// Called on joined ranks after each step of the other ranks, with the step's gradients in grad(). Call the
  /// optimizer's step() here to keep the optimizer's state the same on all ranks.
  Callback<void()> shadow_step = {};
};

}  // namespace lockstep::parallel
