// Steps that are composed of public operations, instead of one kernel for several parameters. Not installed.
#pragma once

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/base/check_internal.h"
#include "lockstep/nn/module_internal.h"
#include "lockstep/optim/step_internal.h"

namespace lockstep::optim {

// The gradient of a parameter, number `index`; null if there is none. Throws InvalidArgument during a capture: a replay
// would repeat the numbers of this step.
inline const Tensor* gradient_to_compose(const char* type, std::size_t index, const nn::Parameter& parameter) {
  const Tensor* grad = gradient(parameter);
  if (!grad) return nullptr;
  const Tensor& p = parameter.master();
  LOCKSTEP_CHECK(!capture::is_active(p.device()),
                 "{}: step() is being captured in a CUDA graph, which would repeat today's learning rate and number of "
                 "steps; call it outside of the graph",
                 type);
  require_dtype(type, index, parameter);
  LOCKSTEP_CHECK(grad->dtype() == p.dtype() && grad->device() == p.device(),
                 "{}: parameters()[{}] is {}, its gradient {}; expected the same dtype and device", type, index,
                 describe(p), describe(*grad));
  return grad;
}

// Calls update(slot, parameter, gradient) for every parameter with a gradient, after counting the step.
template <class Slots, class Update>
void composed_step(const char* type, Slots& slots, const Update& update) {
  const TraceSpan span(TraceKind::kOptimizer, type);
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    auto& slot = slots[i];
    const Tensor* grad = gradient_to_compose(type, i, slot.parameter);
    if (!grad) continue;
    ++slot.steps;
    update(slot, slot.parameter.master(), *grad);
  }
}

// Throws InvalidArgument for pieces of a ShardedDataParallel and slices of tensor parallelism.
inline void require_whole_parameters(const char* type, const std::vector<nn::Parameter>& parameters) {
  for (const nn::Parameter& parameter : parameters) {
    LOCKSTEP_CHECK(parameter.sharding() != nn::Sharding::kPiece,
                   "{}: a parameter is distributed over the ranks, but the algorithm needs whole ones; use "
                   "DistributedDataParallel, or another optimizer",
                   type);
    if (parameter.slice()) nn::refuse_parts(type, {parameter}, "the algorithm needs whole ones; use another optimizer");
  }
}

}  // namespace lockstep::optim
