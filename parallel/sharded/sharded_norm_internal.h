// The norm of gradients that are distributed over the ranks in pieces.
#pragma once

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/sharded/unit_gradients_internal.h"

namespace lockstep::parallel {

// Scales the gradients of the pieces as nn::clip_grad_norm_ scales whole gradients. Returns the norm. `parameters` are all
// that `module` lists.
double clip_pieces(ProcessGroup& group, nn::Module& module, const optim::NamedParameters& parameters,
                   const UnitGradients& gradients, double max_norm);

}  // namespace lockstep::parallel
