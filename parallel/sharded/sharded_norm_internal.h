// The norm of gradients that are distributed over the ranks in pieces.
#pragma once

#include "lockstep/parallel/sharded/unit_gradients_internal.h"

namespace lockstep::parallel {

// Scales the gradients of the pieces as nn::clip_grad_norm_ scales whole gradients. Returns the norm.
double clip_pieces(ProcessGroup& group, const UnitGradients& gradients, double max_norm);

}  // namespace lockstep::parallel
