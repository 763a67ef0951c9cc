// The norm of gradients that are distributed over the ranks in pieces.
#pragma once

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/sharded/unit_gradients_internal.h"

namespace lockstep::parallel {

// Scales the gradients of the pieces as nn::clip_grad_norm_ scales whole gradients. Returns the norm. `parameters` are all
// of the model, of which the ranks of `slices` (null: this one) have different slices.
double clip_pieces(ProcessGroup& group, ProcessGroup* slices, const optim::NamedParameters& parameters,
                   const UnitGradients& gradients, double max_norm);

}  // namespace lockstep::parallel
